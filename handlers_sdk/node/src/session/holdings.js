/** Every delivery that this process holds: the list `holding` of heartbeats. */

import { ASKING, DONE, QUEUED, RUNNING } from './deliveries.js'
import { Tombstones } from './tombstones.js'

/** The held deliveries by item, from their receipt until their result is acknowledged. */
export class HeldDeliveries {
  constructor(slots, pace) {
    this.load = 0 // deliveries that need a slot or have one
    this.pace = pace
    this.tombstones = new Tombstones()
    this.slots = slots
    this.held = new Map()
    this.orphans = new Map() // still run, for a database that was replaced
  }

  get size() {
    return this.held.size
  }

  get(key) {
    return this.held.get(key)
  }

  isOrphan(key) {
    return this.orphans.has(key)
  }

  running() {
    return [...this.held.values()].filter((held) => held.state === RUNNING)
  }

  /** All deliveries whose runs have not begun. They never will: the caller must end these deliveries. */
  withdraw() {
    return [...this.held.values()].filter((held) => held.withdraw())
  }

  /**
   * At most `count` deliveries of these brokers whose runs have not begun, the newest first. Not those that ask for
   * permission.
   */
  withdrawNewest(count, peers) {
    const withdrawn = []
    for (const held of [...this.held.values()].reverse()) {
      if (withdrawn.length >= count) break
      const isGranted = held.isAtMostOnce && held.state === RUNNING
      if (peers.has(held.peer) && held.state !== ASKING && !isGranted && held.withdraw()) withdrawn.push(held)
    }
    return withdrawn
  }

  ofBroker(peer) {
    return [...this.held.values()].filter((held) => held.peer === peer)
  }

  /** The member `holding` of hello and heartbeat. */
  report(nowMs) {
    const items = []
    for (const held of this.held.values()) {
      const state = held.reportedState
      if (state !== null) items.push([held.item[0], held.item[1], state, held.ageMs(nowMs)])
    }
    return items
  }

  /** Add a delivery that was just received, and put it into the run queue. */
  add(held) {
    this.held.set(held.key, held)
    held.peer.load += 1
    this.load += 1
    held.batch.open += 1
    if (this.load === 1) this.pace.resume(held.receivedMs)
    this.slots.queue(held)
  }

  /** Record the end of a run. Only its result is kept. */
  finish(held, nowMs) {
    held.state = DONE
    held.step = null
    this.pace.countEnd(nowMs)
    this.lighten(held, nowMs)
    this.slots.release(held, nowMs)
  }

  /** Forget the delivery, but keep its tombstone. */
  bury(held, nowMs) {
    const { state } = held
    held.state = null
    if (state === null) return
    this.held.delete(held.key)
    this.tombstones.add([held.key], held.peer, held.batch, nowMs)
    if (state === DONE) {
      held.message = held.result = null
      return
    }
    held.step = null
    this.lighten(held, nowMs)
    if (state === ASKING) this.slots.asking.delete(held.key)
    if (state !== QUEUED) this.slots.release(held, nowMs)
  }

  /** Forget the deliveries of a results message that its broker has committed: `bury`, for all of them at once. */
  buryAcknowledged(message, nowMs) {
    const { peer } = message
    const keys = []
    for (const held of message.done) {
      if (held.state !== DONE || held.peer !== peer) {
        this.bury(held, nowMs)
        continue
      }
      held.state = held.message = held.result = null
      this.held.delete(held.key)
      keys.push(held.key)
    }
    this.tombstones.add(keys, peer, message.batch, nowMs)
  }

  /** Keep tombstones of refused deliveries, so that they do not start if they are received again. */
  buryUnread(peer, batch, keys, nowMs) {
    const unknown = keys.filter((key) => !this.held.has(key))
    this.tombstones.add(unknown, peer, batch, nowMs)
  }

  /** Change the owner of a delivery to the broker that has adopted it. */
  move(held, peer) {
    if (held.state !== DONE) {
      held.peer.load -= 1
      peer.load += 1
    }
    held.peer = peer
    if (held.run !== null) held.run.setLease(peer.lease) // a run that has not begun now needs the new owner's lease
  }

  /** Let a run end whose broker's database was replaced, but drop its result. */
  orphan(held, nowMs) {
    this.held.delete(held.key)
    this.orphans.set(held.key, held)
    this.lighten(held, nowMs)
  }

  releaseOrphan(key, nowMs) {
    const held = this.orphans.get(key)
    if (held !== undefined) {
      this.orphans.delete(key)
      this.slots.release(held, nowMs)
    }
  }

  lighten(held, nowMs) {
    held.peer.load -= 1
    this.load -= 1
    if (this.load === 0) this.pace.pause(nowMs)
  }
}
