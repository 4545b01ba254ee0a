/**
 * The slots of a worker's runner, and the calls that wait for one.
 *
 * The calls start in the order in which they were handed over, and wait for a slot and for a place in the concurrency of
 * their handler. A call is any object with `offer`, the number of its handler's offer.
 */

import { Queue } from '../session/queue.js'

export class RunSlots {
  constructor(slots, offers) {
    this.free = slots
    this.waiting = new Queue()
    this.places = new Map()
    this.blocked = new Map()
    offers.forEach((offer, number) => {
      if (offer.concurrency === null) return
      this.places.set(number, offer.concurrency)
      this.blocked.set(number, new Queue())
    })
  }

  /** Add calls. Returns those that have a slot now, and must be started. */
  add(calls) {
    for (const call of calls) this.waiting.push(call)
    const started = []
    while (this.free > 0) {
      const call = this.next()
      if (call === null) break
      this.free -= 1
      started.push(call)
    }
    return started
  }

  /** Release the slot of a call. Returns the call that has the slot now, and must be started; null if there is none. */
  release({ offer }) {
    if (this.places.has(offer)) {
      const blocked = this.blocked.get(offer)
      if (blocked.size > 0) return blocked.shift()
      this.places.set(offer, this.places.get(offer) + 1)
    }
    const following = this.next()
    if (following === null) this.free += 1
    return following
  }

  /** The next call in the queue whose handler has a place. Calls before it wait for their own handlers. */
  next() {
    while (this.waiting.size > 0) {
      const call = this.waiting.shift()
      const places = this.places.get(call.offer)
      if (places === undefined) return call
      if (places > 0) {
        this.places.set(call.offer, places - 1)
        return call
      }
      this.blocked.get(call.offer).push(call)
    }
    return null
  }
}
