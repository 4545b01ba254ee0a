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
    this.byAge = new Queue() // {atMs, peer, batch, keys}: deliveries of one batch that ended together, the oldest first
    this.disowned = new Map()
  }

  has(key) {
    return this.received.has(key) || (this.disowned.size > 0 && this.disowned.has(key))
  }

  add(keys, peer, batch, nowMs) {
    if (keys.length === 0) return
    const buried = { atMs: nowMs, peer, batch, keys }
    for (const key of keys) this.received.set(key, buried)
    this.byAge.push(buried)
    while (this.received.size > TOMBSTONES_MAX) this.forgetOldest()
  }

  /** Make sure that this delivery, which may still be under way, never starts here. */
  disown(key, peer, nowMs) {
    if (!this.received.has(key)) this.disowned.set(key, { atMs: nowMs, peer })
  }

  /** Forget tombstones that are older than TOMBSTONE_MS. */
  sweep(nowMs) {
    const before = nowMs - limits.TOMBSTONE_MS
    while (this.byAge.size > 0 && this.byAge.first.atMs < before) this.forgetOldest()
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
    this.byAge = this.byAge.filter((buried) => buried.peer !== peer)
  }

  forgetOldest() {
    const buried = this.byAge.shift()
    for (const key of buried.keys) {
      if (this.received.get(key) === buried) this.received.delete(key) // otherwise it was buried again since
    }
    const { peer, batch } = buried
    if (batch.session === peer.session && batch.number > peer.floor) peer.floor = batch.number
  }
}
