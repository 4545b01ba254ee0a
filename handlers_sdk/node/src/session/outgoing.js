/** The actions decided so far, and the counter `n` of the messages sent. */

import * as codec from '../protocol/codec.js'
import * as limits from '../protocol/limits.js'
import * as topics from '../protocol/topics.js'

const SENT_MAX = 128 // hellos and heartbeats whose send time is remembered: for minutes, while a lease lasts seconds

/** Collects the actions of all parts, in the order in which they were decided. */
export class Outgoing {
  constructor(worker) {
    this.worker = worker
    this.n = 0 // the last number used
    this.sentAt = new Map() // by n
    this.actions = []
  }

  add(action) {
    this.actions.push(action)
  }

  log(level, event, facts) {
    this.actions.push({ kind: 'log', level, event, facts })
  }

  send(topic, body) {
    this.actions.push({ kind: 'send', topic, body })
  }

  sendTo(peer, type, members) {
    this.send(peer.topic, codec.encode(type, this.worker, members))
  }

  sendToAll(type, members) {
    this.send(topics.WORKERS, codec.encode(type, this.worker, members))
  }

  /** The actions decided since the last call. */
  take() {
    const actions = this.actions
    this.actions = []
    return actions
  }

  nextN() {
    this.n += 1
    return this.n
  }

  /** The next number, for a message that brokers echo. The lease starts at the send time of this message. */
  nextTimedN(nowMs) {
    const n = this.nextN()
    this.sentAt.set(n, nowMs)
    if (this.sentAt.size > SENT_MAX) this.sentAt.delete(this.sentAt.keys().next().value)
    return n
  }

  /** The send time of the hello or heartbeat with this number; null if unknown or too old. */
  sentMs(n) {
    return this.sentAt.get(n) ?? null
  }
}

/** Split the items into lists that fit into one message. */
export function parts(items) {
  if (items.length <= limits.BATCH_ITEMS_MAX) return [items]
  const lists = []
  for (let i = 0; i < items.length; i += limits.BATCH_ITEMS_MAX) lists.push(items.slice(i, i + limits.BATCH_ITEMS_MAX))
  return lists
}
