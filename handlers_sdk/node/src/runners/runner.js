/**
 * Runs handlers on the main thread: synchronous ones one after the other, asynchronous ones together. It starts the next
 * step itself when a slot is free.
 *
 * Outcomes are passed on in batches. They never wait for a handler that computes: before a handler is called, the
 * outcomes of others are passed on, unless its last call was short.
 */

import { Queue } from '../session/queue.js'
import { GIVE_BACK } from './calls.js'
import { RunSlots } from './run_slots.js'

const SERVE_MAX_MS = 5 // after this time of short calls, the event loop has a turn
const SHORT_MS = 0.2 // a call that keeps the event loop for no longer is short
const OUTCOMES_MAX = 256 // outcomes in one batch

export class Runner {
  /** `post` receives a flat list: run, outcome; run, outcome; … An outcome that is text is the JSON of the result. */
  /** @param {any} options */
  constructor({ slots, offers, clock, post, onCurrent = () => {} }) {
    this.slots = new RunSlots(slots, offers)
    this.clock = clock
    this.post = post
    this.onCurrent = onCurrent // is told which run computes on this thread; -1: none
    this.calls = new Queue() // they have a slot, and must be started
    this.outcomes = []
    this.isServing = false
    this.isScheduled = false
    this.isFlushScheduled = false
    this.blockedMs = new Map() // by handler: for how long its last call kept the event loop
  }

  /** Add calls, and start those that have a slot. */
  add(calls) {
    for (const call of this.slots.add(calls)) this.calls.push(call)
    this.serve()
  }

  serve() {
    if (this.isServing) return
    this.isServing = true
    let nowMs = this.clock()
    const sinceMs = nowMs
    while (this.calls.size > 0 && nowMs - sinceMs <= SERVE_MAX_MS) nowMs = this.start(this.calls.shift(), nowMs)
    if (this.calls.size > 0 && !this.isScheduled) {
      this.isScheduled = true
      setImmediate(() => {
        this.isScheduled = false
        this.serve()
      })
    }
    this.isServing = false
    this.flush()
  }

  /** Call the handler. Returns the time afterwards. */
  start(call, nowMs) {
    if (this.outcomes.length > 0 && (this.blockedMs.get(call.handler) ?? Infinity) > SHORT_MS) this.flush()
    if (!call.begin(nowMs)) {
      this.end(call, GIVE_BACK, nowMs)
      return nowMs
    }
    this.onCurrent(call.index)
    const outcome = call.run()
    this.onCurrent(-1)
    const afterMs = this.clock()
    this.blockedMs.set(call.handler, afterMs - nowMs)
    if (outcome instanceof Promise) {
      outcome.then((settled) => {
        this.end(call, settled, this.clock())
        this.serveSoon()
      })
    } else {
      this.end(call, outcome, afterMs)
    }
    return afterMs
  }

  /** Note the outcome of a call, and give its slot to the next one. */
  end(call, outcome, nowMs) {
    call.end()
    this.outcomes.push(call.index, typeof outcome === 'string' ? call.completed(outcome, nowMs) : outcome)
    const following = this.slots.release(call)
    if (following !== null) this.calls.push(following)
    if (this.outcomes.length >= 2 * OUTCOMES_MAX) this.flush()
  }

  /** After the end of an asynchronous call: others that end in the same turn of the event loop share the batch. */
  serveSoon() {
    if (this.isServing || this.isFlushScheduled) return
    this.isFlushScheduled = true
    setImmediate(() => {
      this.isFlushScheduled = false
      this.serve()
    })
  }

  flush() {
    if (this.outcomes.length === 0) return
    const { outcomes } = this
    this.outcomes = []
    this.post(outcomes)
  }
}
