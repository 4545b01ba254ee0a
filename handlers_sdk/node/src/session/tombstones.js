/** The deliveries that this process must not start, or not start again. */

import * as limits from '../protocol/limits.js'
import { Queue } from './queue.js'

const TOMBSTONES_MAX = 20_000

/**
 * Remembers deliveries that are over or were refused.
 *
 * The number of tombstones may be limited because batch numbers increase within a session. When a tombstone is
 * forgotten, the floor of its session rises to its batch number, and unknown batches up to the floor are refused as
 * stale. A delivery that was disowned before its receipt has no batch number, so its tombstone is kept for the full time.
 */
export class Tombstones {
  constructor() {
    this.received = new Map()
    this.order = new Queue() // the keys of `received`, the oldest first: a Map finds its oldest entry slowly
    this.disowned = new Map()
    this.last = { atMs: 0, peer: null, batch: null }
  }

  has(key) {
    return this.received.has(key) || this.disowned.has(key)
  }

  add(key, peer, batch, nowMs) {
    if (!this.received.has(key)) this.order.push(key)
    // Many end together: they share one entry.
    const { last } = this
    const isSame = last.atMs === nowMs && last.peer === peer && last.batch === batch
    this.last = isSame ? last : { atMs: nowMs, peer, batch }
    this.received.set(key, this.last)
    if (this.received.size > TOMBSTONES_MAX) this.forgetOldest()
  }

  /** Make sure that this delivery, which may still be under way, never starts here. */
  disown(key, peer, nowMs) {
    if (!this.received.has(key)) this.disowned.set(key, { atMs: nowMs, peer })
  }

  /** Forget tombstones that are older than TOMBSTONE_MS. */
  sweep(nowMs) {
    const before = nowMs - limits.TOMBSTONE_MS
    while (this.order.size > 0 && this.received.get(this.order.first).atMs < before) this.forgetOldest()
    for (const [key, { atMs }] of this.disowned) {
      if (atMs >= before) break
      this.disowned.delete(key)
    }
  }

  /** Forget the tombstones of a broker whose database was replaced, because its ids now belong to other steps. */
  forgetBroker(peer) {
    for (const entries of [this.received, this.disowned]) {
      for (const [key, entry] of entries) if (entry.peer === peer) entries.delete(key)
    }
    this.order = Queue.of(this.received.keys())
  }

  forgetOldest() {
    const key = this.order.shift()
    const { peer, batch } = this.received.get(key)
    this.received.delete(key)
    if (batch.session === peer.session && batch.number > peer.floor) peer.floor = batch.number
  }
}
