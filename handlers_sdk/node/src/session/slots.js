/**
 * The deliveries that wait to be handed to the runner, and those that the runner has.
 *
 * A runner starts the next step the moment a slot is free. It can only do so if it has that step already, so
 * at_least_once steps are handed over ahead of free slots: as many as the observed pace says. The runner itself keeps to
 * the slots and to the concurrency of each handler (`runners/run_slots.js`). An at_most_once step asks its broker for
 * permission, and a slot must be free for it from then on. So it is never handed over ahead, and while one asks, no step
 * is.
 */

import * as limits from '../protocol/limits.js'
import { QUEUED } from './deliveries.js'
import { Pace } from './pace.js'
import { Queue } from './queue.js'

/** The run queue. A delivery is taken from its hand-over, or from its request for permission, to its end. */
export class Slots {
  constructor(slots, offers) {
    this.asking = new Map() // at_most_once: has a slot, and waits for the broker's go
    this.taken = 0
    this.ahead = 0 // the number of steps that may be handed over ahead of free slots
    this.unblocked = new Queue() // before `queued`
    this.queued = new Queue()
    this.slots = slots
    this.limited = new Map()
    offers.byNumber.forEach((offer, number) => {
      if (offer.concurrency !== null) this.limited.set(number, new Limited(offer.concurrency))
    })
  }

  queue(held) {
    this.queued.push(held)
  }

  hasQueue() {
    return this.queued.size > 0 || this.unblocked.size > 0
  }

  /** True if the delivery at the head of the queue can be taken, unless its handler's concurrency is used up. */
  hasNext() {
    const queue = this.unblocked.size > 0 ? this.unblocked : this.queued
    if (queue.size === 0) return false
    const mustHaveSlot = this.asking.size > 0 || queue.first.isAtMostOnce
    return this.taken < (mustHaveSlot ? this.slots : this.slots + this.ahead)
  }

  /** Take the next delivery from the queue. null: nothing in the queue can be taken now. */
  takeNext(nowMs) {
    while (this.hasNext()) {
      const isUnblocked = this.unblocked.size > 0
      const held = (isUnblocked ? this.unblocked : this.queued).shift()
      const limited = this.limitedOf(held)
      if (held.state !== QUEUED) {
        if (limited !== undefined) this.unblock(limited, nowMs) // cancelled while queued, perhaps after it was unblocked
        continue
      }
      if (limited !== undefined) {
        if (isUnblocked) {
          if (this.room(limited, held, nowMs) <= 0) {
            limited.blocked.unshift(held)
            continue
          }
        } else if (limited.blocked.size > 0 || this.room(limited, held, nowMs) <= 0) {
          limited.blocked.push(held)
          continue
        }
        limited.take(nowMs)
      }
      this.taken += 1
      return held
    }
    return null
  }

  /** The delivery has ended, or will never start. */
  release(held, nowMs) {
    this.taken -= 1
    const limited = this.limitedOf(held)
    if (limited !== undefined) {
      limited.release(nowMs)
      this.unblock(limited, nowMs)
    }
  }

  /** Put deliveries that waited for this handler's concurrency before the queue. */
  unblock(limited, nowMs) {
    const { blocked } = limited
    let unblocked = 0
    while (
      blocked.size > 0 &&
      (blocked.first.state !== QUEUED || this.room(limited, blocked.first, nowMs) > unblocked)
    ) {
      const held = blocked.shift()
      if (held.state === QUEUED) {
        this.unblocked.push(held)
        unblocked += 1
      }
    }
  }

  limitedOf(held) {
    return this.limited.size > 0 ? this.limited.get(held.offer) : undefined
  }

  room(limited, held, nowMs) {
    return limited.room(this.asking.size > 0 || held.isAtMostOnce, nowMs)
  }
}

/** The deliveries of a handler with its own concurrency. Its pace limits how many run ahead of it. */
class Limited {
  constructor(concurrency) {
    this.concurrency = concurrency
    this.taken = 0
    this.blocked = new Queue()
    this.pace = new Pace(0)
  }

  room(withoutAhead, nowMs) {
    const ahead = withoutAhead ? 0 : Math.trunc(this.pace.stepsIn(limits.PREFETCH_MS, nowMs) + 0.5)
    return this.concurrency + ahead - this.taken
  }

  take(nowMs) {
    this.taken += 1
    this.pace.resume(nowMs)
  }

  release(nowMs) {
    this.taken -= 1
    this.pace.countEnd(nowMs)
    if (this.taken === 0) this.pace.pause(nowMs)
  }
}
