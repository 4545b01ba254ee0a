/** Sends the results of finished runs, and ends their deliveries when a broker acknowledges or refuses the message. */

import * as codec from '../protocol/codec.js'
import { NEVER } from '../actions.js'
import { OUTCOME_UNKNOWN } from '../errors.js'
import { DONE, ResultsMessage } from './deliveries.js'
import { parts } from './outgoing.js'

const HOLD_MS = 1
const MIB = 1024 * 1024

// With these codes the broker does not refuse the content of a results message, so other content would not help.
const HOPELESS = new Set(['wrong_batch', 'wrong_sender', 'unknown_delivery', 'unknown_session', 'unknown_type'])

/**
 * Reports results. A message holds results of one batch, so a result waits at most HOLD_MS for others of its batch: until
 * the batch is whole, or nothing runs, or the observed pace promises none in that time.
 */
export class ResultsReporting {
  constructor(holdings, credit, intake, outbox, out) {
    this.holdings = holdings
    this.credit = credit
    this.intake = intake
    this.outbox = outbox
    this.out = out
    this.sendAtMs = NEVER
    this.ready = new Set() // batches with results that are not sent
    this.whole = [] // those of them whose steps have all ended
    this.rid = 0
  }

  add(held, result, nowMs) {
    const { batch } = held
    held.result = result
    batch.ready.push(held)
    batch.open -= 1
    if (batch.open === 0) this.whole.push(batch)
    this.ready.add(batch)
    if (this.sendAtMs === NEVER) this.sendAtMs = nowMs + HOLD_MS
  }

  /** True if all steps of a batch have ended, so its results can be sent. */
  get hasWhole() {
    return this.whole.length > 0
  }

  /** True if results must be sent now. `runs`: the number of steps that could still add to them. */
  isDue(nowMs, runs) {
    if (this.sendAtMs === NEVER) return false
    return nowMs >= this.sendAtMs || runs === 0 || this.hasWhole || !this.isMoreExpected(nowMs)
  }

  isMoreExpected(nowMs) {
    return this.holdings.pace.stepsIn(HOLD_MS, nowMs) >= 1
  }

  /** Send the results of whole batches; all results, if none is expected in time. Called if `isDue`. */
  sendDue(nowMs, runs) {
    const { whole } = this
    this.whole = []
    /** @type {Iterable<any>} */
    let ready = whole
    if (nowMs < this.sendAtMs && runs > 0 && this.isMoreExpected(nowMs)) {
      for (const batch of whole) this.ready.delete(batch)
    } else {
      ready = this.ready
      this.ready = new Set()
    }
    if (this.ready.size === 0) this.sendAtMs = NEVER
    for (const batch of ready) {
      const { ready: done } = batch
      batch.ready = []
      const { peer } = done[0]
      if (done.every((held) => held.state === DONE && held.peer === peer)) {
        for (const part of parts(done)) this.send(peer, batch, part, nowMs)
      } else {
        this.sendByOwner(batch, done, nowMs)
      }
    }
  }

  /** Send these results, without those that are no longer held, to the brokers that own their deliveries now. */
  sendByOwner(batch, ready, nowMs) {
    const done = ready.filter((held) => held.state === DONE)
    for (const peer of new Set(done.map((held) => held.peer))) {
      const own = done.filter((held) => held.peer === peer)
      for (const part of parts(own)) this.send(peer, batch, part, nowMs)
    }
  }

  onAck(message, nowMs) {
    for (const rid of message.rids) {
      const acked = this.outbox.remove(rid)
      if (acked !== null) this.holdings.buryAcknowledged(acked, nowMs)
    }
  }

  onRefused(message, nowMs) {
    const { broker, refused: refusedType, code, message: text } = message
    this.out.log('error', 'message_refused', { broker, refused: refusedType, code, message: text })
    const refused = message.rid === null ? null : this.outbox.remove(message.rid)
    if (refused === null) return
    if (refused.isReplacement || HOPELESS.has(code)) {
      for (const held of refused.done) this.holdings.bury(held, nowMs)
      return
    }
    // The broker will never accept these results. If they were only dropped, the steps would run again.
    for (const held of refused.done) {
      held.result = sdkFailure(held, 'result_refused', `${code}: ${text}`)
      this.send(refused.peer, refused.batch, [held], nowMs, true)
    }
  }

  /**
   * Move results to the broker that now owns their deliveries. Results for the previous owner get a separate message.
   */
  changeOwner(message, adopted, peer, nowMs) {
    const rest = message.done.filter((held) => !adopted.includes(held))
    if (rest.length === 0) {
      message.peer = peer
      return
    }
    this.outbox.remove(message.rid)
    this.send(message.peer, message.batch, rest, nowMs, message.isReplacement)
    this.send(peer, message.batch, adopted, nowMs, message.isReplacement)
  }

  /** Send the results of these deliveries in one message, or in two halves if the broker does not accept its size. */
  send(peer, batch, done, nowMs, isReplacement = false) {
    const session = peer.session ?? batch.session
    const rid = this.rid + 1
    const { free, slotsFree } = this.credit.offer(peer, nowMs)
    const deployment = peer.deployment ?? ''
    const head = { session, deployment, batch_id: batch.id, rid, n: this.out.nextN(), free, slots_free: slotsFree }
    const body = codec.encodeResults(this.out.worker, head, done.map(resultText))
    // A character has at most three bytes in UTF-8 for each unit of its length here.
    const bytes = body.length * 3 > peer.bytesMax ? Buffer.byteLength(body) : 0
    if (bytes > peer.bytesMax) {
      if (done.length > 1) {
        const half = Math.floor(done.length / 2)
        this.send(peer, batch, done.slice(0, half), nowMs, isReplacement)
        this.send(peer, batch, done.slice(half), nowMs, isReplacement)
        return
      }
      if (!isReplacement) {
        const [held] = done
        if (typeof held.result.metadata?.stderr === 'string') {
          held.result = withoutStderr(held.result)
          this.send(peer, batch, done, nowMs)
          return
        }
        held.result = tooLarge(held, bytes, peer.bytesMax)
        this.out.add({ kind: 'result_too_large', step: held.run.step, result: held.result })
        this.send(peer, batch, done, nowMs, true)
        return
      }
    }
    this.rid = rid
    const kept = new ResultsMessage({ rid, peer, batch, head, body, done, nowMs, isReplacement })
    for (const held of done) {
      if (held.message === null) batch.unsent -= 1 // a replacement counts once
      held.message = kept
    }
    this.outbox.send(kept)
    if (batch.unsent === 0) this.intake.cancelAccept(peer, session, batch.id)
  }
}

const resultText = (held) => codec.encodeResult(held.result)

/**
 * The result without a verdict on an at_most_once step: a failure after a request to stop does not prove that the step
 * had no effect.
 */
export function withoutVerdict(held, result) {
  if (!held.isAtMostOnce || result.error === null) return result
  return { ...result, error: { ...result.error, code: OUTCOME_UNKNOWN } }
}

/** The result without its standard error, which is for people only and must not cost the outcome. */
function withoutStderr(result) {
  return { ...result, metadata: { ...result.metadata, stderr: null } }
}

function tooLarge(held, messageBytes, bytesMax) {
  const text =
    `the output has ${size(messageBytes)}; the limit is ${size(bytesMax)}: ` +
    'store it elsewhere and return a reference'
  return sdkFailure(held, 'too_large', text)
}

/** Rounded up, so that a size above a limit also reads as one. */
function size(sizeBytes) {
  return sizeBytes < MIB ? `${sizeBytes} bytes` : `${Math.ceil((sizeBytes / MIB) * 10) / 10} MiB`
}

/** The result of a step that ran, but whose result cannot be delivered. */
function sdkFailure(held, code, text) {
  const error = held.isAtMostOnce
    ? { message: `${code}: ${text}`, code: OUTCOME_UNKNOWN }
    : { message: text, code, retryable: false }
  const [stepId, delivery] = held.item
  return { step_id: stepId, delivery, status: 'error', output: 'null', error, metadata: null }
}
