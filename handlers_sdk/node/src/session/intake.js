/**
 * `steps` messages, and their answers. A repeated `steps` message is answered again, or the broker would resend it
 * forever.
 */

import * as codec from '../protocol/codec.js'
import { PROTOCOL_LEVEL_1 } from '../protocol/limits.js'
import { NEVER } from '../actions.js'
import { DONE, HeldBatch, HeldDelivery, distinct, keyOf } from './deliveries.js'
import { parts } from './outgoing.js'

const MAJOR = PROTOCOL_LEVEL_1.split('.')[0]

/** Receives steps, and sends `accept` and `refuse`. */
export class Intake {
  constructor(offers, acceptDelayMs, brokers, holdings, credit, outbox, out) {
    this.acceptAtMs = NEVER
    this.offers = offers
    this.acceptDelayMs = acceptDelayMs
    this.brokers = brokers
    this.holdings = holdings
    this.credit = credit
    this.outbox = outbox
    this.out = out
    this.unaccepted = new Map() // by broker, session and batch: when to accept it
  }

  /** `size`: the bytes of the message. */
  onSteps(peer, message, size, nowMs) {
    peer.promises.use(message.steps.length)
    if (message.protocol_version.split('.')[0] !== MAJOR) {
      const items = message.steps.map((step) => [step.step_id, step.delivery])
      this.refuseUnread(peer, message.session, message.batch_id, items, 'bad_message', nowMs)
      return
    }
    const batch = new HeldBatch(message.batch_id, message.session, message.steps.length)
    this.credit.noteSize(size / Math.max(1, message.steps.length))
    const refused = new Map() // by code
    let isAccepted = false
    let isRepeated = false
    const { holdings } = this
    const { tombstones } = holdings
    let places = this.credit.places()
    peer.stepsMs = nowMs
    for (const step of message.steps) {
      const key = keyOf(step.step_id, step.delivery)
      const held = holdings.get(key)
      if (held !== undefined) {
        if (this.answerAgain(peer, held, refused, nowMs)) isRepeated = true
        continue
      }
      const offer = this.offers.find(step.handler_class)
      let code
      if (tombstones.has(key) || (batch.number >= 0 && batch.number <= peer.floor)) code = 'stale'
      else if (offer === null) code = 'unknown_handler'
      else if (this.credit.isDraining) code = 'draining'
      else if (places <= 0 || holdings.isOrphan(key)) code = 'busy'
      else {
        holdings.add(new HeldDelivery(key, step, peer, batch, offer, nowMs))
        isAccepted = true
        places -= 1
        continue
      }
      addTo(refused, code, [step.step_id, step.delivery])
      if (code !== 'stale') tombstones.add([key], peer, batch, nowMs)
    }
    if (isAccepted || isRepeated) {
      const atMs = isRepeated ? nowMs : nowMs + this.acceptDelayMs
      const { session, batch_id: batchId } = message
      this.unaccepted.set(`${peer.id} ${session} ${batchId}`, { peer, session, batchId, dueMs: atMs })
      this.acceptAtMs = Math.min(this.acceptAtMs, atMs)
    }
    for (const [code, items] of refused) this.refuse(peer, message.batch_id, items, code, nowMs)
  }

  /** Send no accept for this batch, because its results were sent and are an answer, too. */
  cancelAccept(peer, session, batchId) {
    this.unaccepted.delete(`${peer.id} ${session} ${batchId}`)
  }

  acceptDue(nowMs) {
    let atMs = NEVER
    for (const [key, { peer, session, batchId, dueMs }] of this.unaccepted) {
      if (dueMs > nowMs) {
        atMs = Math.min(atMs, dueMs)
        continue
      }
      this.unaccepted.delete(key)
      if (peer.session === session) {
        const { free, slotsFree } = this.credit.offer(peer, nowMs)
        this.out.sendTo(peer, 'accept', { session, batch_id: batchId, free, slots_free: slotsFree })
      }
    }
    this.acceptAtMs = atMs
  }

  /** End these deliveries, whose runs have not begun and never will, and return the steps to their brokers. */
  giveBack(withdrawn, code, nowMs) {
    const byBatch = new Map()
    for (const held of withdrawn) {
      const key = `${held.peer.id} ${held.batch.id}`
      if (!byBatch.has(key)) byBatch.set(key, { peer: held.peer, batchId: held.batch.id, items: [] })
      byBatch.get(key).items.push(held.item)
      this.holdings.bury(held, nowMs)
    }
    for (const { peer, batchId, items } of byBatch.values()) this.refuse(peer, batchId, items, code, nowMs, true)
  }

  /** Refuse these items. `isReturn`: they were accepted before. */
  refuse(peer, batchId, items, code, nowMs, isReturn = false) {
    const { session } = peer
    if (session === null) return
    const { free, slotsFree } = this.credit.offer(peer, nowMs)
    for (const part of parts(distinct(items))) {
      this.out.sendTo(peer, 'refuse', { session, batch_id: batchId, items: part, code, free, slots_free: slotsFree })
    }
    if (code !== 'stale') {
      // Returns keep the queues short, and many may be sent in a second: no operator has to act.
      const level = isReturn ? 'debug' : code === 'draining' ? 'info' : 'warning'
      this.out.log(level, 'steps_refused', { broker: peer.id, batch_id: batchId, code, steps: items.length })
    }
  }

  /** Refuse the steps of a message that cannot be read, or its broker would resend it forever. */
  onUnreadable(body, code, why, nowMs) {
    this.out.log('error', 'message_unreadable', { code, why })
    const remains = codec.decodeRemains(body)
    if (remains === null || remains.batch_id === '') return
    const peer = this.brokers.get(remains.broker)
    if (peer !== null && peer.session === remains.session) {
      this.refuseUnread(peer, remains.session, remains.batch_id, remains.items, code, nowMs)
    }
  }

  /** Answer a delivery that is held already. True: its batch is accepted again. */
  answerAgain(peer, held, refused, nowMs) {
    if (held.peer !== peer)
      addTo(refused, 'stale', held.item) // another broker has adopted the delivery meanwhile
    else if (held.message !== null) this.outbox.hasten(held.message, nowMs)
    else if (held.state !== DONE) return true
    return false
  }

  refuseUnread(peer, session, batchId, items, code, nowMs) {
    const keys = items.map(([stepId, delivery]) => keyOf(stepId, delivery))
    this.holdings.buryUnread(peer, new HeldBatch(batchId, session, items.length), keys, nowMs)
    this.refuse(peer, batchId, items, code, nowMs)
  }
}

function addTo(refused, code, item) {
  const items = refused.get(code)
  if (items === undefined) refused.set(code, [item])
  else items.push(item)
}
