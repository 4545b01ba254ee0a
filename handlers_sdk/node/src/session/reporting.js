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
    batch.ready.push([held, result])
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
      const done = batch.ready.filter(([held]) => held.state === DONE)
      batch.ready = []
      const owners = new Set(done.map(([held]) => held.peer))
      for (const peer of owners) {
        const own = owners.size === 1 ? done : done.filter(([held]) => held.peer === peer)
        for (const part of parts(own)) this.send(peer, batch, part, nowMs)
      }
    }
  }

  onAck(message, nowMs) {
    for (const rid of message.rids) {
      const acked = this.outbox.remove(rid)
      if (acked !== null) for (const held of acked.done) this.holdings.bury(held, nowMs)
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
      const failure = sdkFailure(held, 'result_refused', `${code}: ${text}`)
      this.send(refused.peer, refused.batch, [[held, failure]], nowMs, true)
    }
  }

  /**
   * Move results to the broker that now owns their deliveries. Results for the previous owner get a separate message.
   */
  changeOwner(message, adopted, peer, nowMs) {
    const pairs = message.done.map((held, i) => [held, message.results[i]])
    const rest = pairs.filter(([held]) => !adopted.includes(held))
    if (rest.length === 0) {
      message.peer = peer
      return
    }
    this.outbox.remove(message.rid)
    const moved = adopted.map((held) => pairs.find(([other]) => other === held))
    this.send(message.peer, message.batch, rest, nowMs, message.isReplacement)
    this.send(peer, message.batch, moved, nowMs, message.isReplacement)
  }

  /** Send one results message, or two halves if the broker does not accept its size. */
  send(peer, batch, done, nowMs, isReplacement = false) {
    const session = peer.session ?? batch.session
    const rid = this.rid + 1
    const { free, slotsFree } = this.credit.offer(peer, nowMs)
    const deployment = peer.deployment ?? ''
    const head = { session, deployment, batch_id: batch.id, rid, n: this.out.nextN(), free, slots_free: slotsFree }
    const results = done.map(([, result]) => result)
    const body = codec.encodeResults(this.out.worker, head, results.map(codec.encodeResult))
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
        const [held, result] = done[0]
        if (typeof result.metadata?.stderr === 'string') {
          this.send(peer, batch, [[held, withoutStderr(result)]], nowMs)
          return
        }
        const failure = tooLarge(held, bytes, peer.bytesMax)
        this.out.add({ kind: 'result_too_large', step: held.run.step, result: failure })
        this.send(peer, batch, [[held, failure]], nowMs, true)
        return
      }
    }
    this.rid = rid
    const deliveries = done.map(([held]) => held)
    for (const held of deliveries) if (held.message === null) batch.unsent -= 1 // a replacement counts once
    const kept = new ResultsMessage({ rid, peer, batch, head, results, body, done: deliveries, nowMs, isReplacement })
    for (const held of deliveries) held.message = kept
    this.outbox.send(kept)
    if (batch.unsent === 0) this.intake.cancelAccept(peer, session, batch.id)
  }
}

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
