/** Records of what a worker holds: deliveries, the batches that contained them, and the messages with their results. */

import * as limits from '../protocol/limits.js'
import { NEVER } from '../actions.js'

// A delivery passes through these states in this order. In any of them it can end, and then becomes a tombstone.
export const QUEUED = 'queued' // waits in the session
export const ASKING = 'asking' // at_most_once: has a slot, and waits for the broker's go
export const RUNNING = 'running' // handed to the runner: its run begins when a slot is free
export const DONE = 'done' // its result is kept until a broker acknowledges it

const DELIVERIES = 512
const STEP_ID_MAX = 2 ** 44 - 1

/** The key of an item in maps: one number where that is possible, because a Map finds numbers faster than texts. */
export function keyOf(stepId, delivery) {
  const isNumber = delivery >= 0 && delivery < DELIVERIES && Math.abs(stepId) <= STEP_ID_MAX
  return isNumber ? stepId * DELIVERIES + delivery : `${stepId}.${delivery}`
}

/** The items, each once: a broker may list one twice, a worker may not. */
export function distinct(items) {
  const byKey = new Map()
  for (const item of items) {
    const key = keyOf(item[0], item[1])
    if (!byKey.has(key)) byKey.set(key, item)
  }
  return byKey.size === items.length ? items : [...byKey.values()]
}

/** The steps of one message. Their results are reported together if possible. */
export class HeldBatch {
  constructor(id, session, size) {
    this.id = id
    this.session = session
    this.number = batchNumber(id)
    this.open = 0 // accepted steps that have not ended
    this.unsent = size // steps without a sent result
    this.ready = [] // finished, and in no message yet
  }
}

/** One delivery in this process. */
export class HeldDelivery {
  constructor(key, step, peer, batch, offer, nowMs) {
    this.key = key
    this.item = [step.step_id, step.delivery]
    this.step = step // null after the run has ended, when only the result is needed
    this.peer = peer // the broker that owns the delivery; changed by an adoption
    this.batch = batch
    this.offer = offer
    this.receivedMs = nowMs
    this.run = null // since its hand-over to the runner
    this.state = QUEUED // null: no longer held
    this.isAtMostOnce = step.delivery_mode === 'at_most_once'
    this.isStopping = false // was asked to stop
    this.isInterrupted = false // the same, or lost its broker: a failure of an at_most_once step proves nothing
    this.askAtMs = 0
    this.askWaitMs = 0
    this.result = null // of the ended run
    this.message = null // with the result
  }

  get timeoutAtMs() {
    return this.run === null ? NEVER : this.run.timeoutAtMs
  }

  /**
   * The state for brokers, for which a step runs from its start. A granted step counts as running at once. A run whose
   * outcome is still on its way here counts as done: its slot may belong to another run already.
   */
  get reportedState() {
    if (this.state !== RUNNING || this.run === null) return this.state
    if (this.run.hasEnded) return DONE
    return this.isAtMostOnce || this.run.startedMs !== null ? RUNNING : QUEUED
  }

  /**
   * Milliseconds since the start of the run, or since the receipt if the run has not started. A granted run that begins
   * now has no age: the time for which it waited for its go is not part of its timeout.
   */
  ageMs(nowMs) {
    const startedMs = this.run === null ? null : this.run.startedMs
    if (startedMs === null && this.reportedState === RUNNING) return 0
    return Math.max(0, Math.trunc(nowMs - (startedMs ?? this.receivedMs)))
  }

  /** True if the run has not begun, and now never will. The caller then ends the delivery. */
  withdraw() {
    if (this.state === RUNNING) return this.run !== null && this.run.takeBack()
    return this.state === QUEUED || this.state === ASKING
  }
}

/** A results message that no broker has acknowledged yet. */
export class ResultsMessage {
  constructor({ rid, peer, batch, head, body, done, nowMs, isReplacement }) {
    this.rid = rid
    this.peer = peer
    this.batch = batch
    this.session = head.session
    this.head = head // the members before `results`
    this.body = body
    this.bytes = Buffer.byteLength(body)
    this.done = done
    this.isReplacement = isReplacement // carries an error in place of a result that no broker accepts
    this.tries = 1
    this.waitMs = limits.RESULTS_RETRANSMIT_MS
    this.atMs = nowMs + this.waitMs
  }
}

const NUMBER = /^[0-9]{1,16}$/

/**
 * The increasing number n of `batch_<nonce>_<n>`. An id of another form has -1, and is never refused as stale by its
 * number.
 */
export function batchNumber(batchId) {
  const number = batchId.slice(batchId.lastIndexOf('_') + 1)
  return NUMBER.test(number) ? Number(number) : -1
}
