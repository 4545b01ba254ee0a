/** Results messages that are not acknowledged yet. They are kept and resent. */

import * as codec from '../protocol/codec.js'
import * as limits from '../protocol/limits.js'
import * as topics from '../protocol/topics.js'
import { NEVER } from '../actions.js'

/** The unacknowledged results messages by `rid`. */
export class ResultsOutbox {
  constructor(out) {
    this.bytes = 0
    this.resendAtMs = NEVER
    this.messages = new Map()
    this.out = out
  }

  /** Send the message, and keep it until it is acknowledged. */
  send(message) {
    this.messages.set(message.rid, message)
    this.bytes += message.bytes
    if (message.atMs < this.resendAtMs) this.resendAtMs = message.atMs
    this.out.send(message.peer.topic, message.body)
  }

  remove(rid) {
    const message = this.messages.get(rid)
    if (message === undefined) return null
    this.messages.delete(rid)
    this.bytes -= message.bytes
    return message
  }

  /** Remove the messages for a broker whose database was replaced. Returns their number. */
  discard(peer) {
    const rids = [...this.messages.values()].filter((message) => message.peer === peer).map((message) => message.rid)
    for (const rid of rids) this.remove(rid)
    return rids.length
  }

  /** Resend the messages that are due, and schedule the next attempt of each. */
  resend(nowMs) {
    let atMs = NEVER
    for (const message of this.messages.values()) {
      if (message.atMs <= nowMs) {
        this.renew(message)
        message.tries += 1
        message.waitMs = Math.min(message.waitMs * 2, limits.RESULTS_RETRANSMIT_MAX_MS)
        message.atMs = nowMs + message.waitMs
        this.out.send(message.peer.topic, message.body)
        if (message.tries >= limits.RESULTS_BROADCAST_FROM_TRY) {
          // The owner may be gone, and the worker cannot know which broker owns its steps now.
          this.out.send(topics.RESULTS, message.body)
        }
      }
      atMs = Math.min(atMs, message.atMs)
    }
    this.resendAtMs = atMs
  }

  /** Send this message with the next actions. */
  hasten(message, nowMs) {
    message.atMs = this.resendAtMs = nowMs
  }

  /** Send the messages for this broker with the next actions, because its session has just opened. */
  hastenAll(peer, nowMs) {
    for (const message of this.messages.values()) if (message.peer === peer) this.hasten(message, nowMs)
  }

  /** Put the current session into the message. `n` and `free` stay unchanged: an old `n` marks old credit. */
  renew(message) {
    const { session, deployment } = message.peer
    if (session === null || session === message.session) return
    message.session = session
    message.head = { ...message.head, session, deployment: deployment ?? '' }
    message.body = codec.encodeResults(
      this.out.worker,
      message.head,
      message.done.map((held) => codec.encodeResult(held.result)),
    )
    this.bytes -= message.bytes
    message.bytes = Buffer.byteLength(message.body)
    this.bytes += message.bytes
  }
}
