/**
 * The session with each broker: opened by hello and welcome, valid during its lease, dropped after it.
 *
 * A lease begins when the echoed hello or heartbeat was sent, on the worker's own clock. Therefore the lease ends at the
 * worker before the broker may consider the worker dead, and their clocks need not agree.
 */

import * as limits from '../protocol/limits.js'
import * as topics from '../protocol/topics.js'
import { NEVER } from '../actions.js'
import { DONE, RUNNING } from './deliveries.js'

const PERMANENT = new Set(['version', 'unauthorized']) // resets that a hello does not change

/** Opens, extends and drops sessions. */
export class Leases {
  constructor(brokers, announcements, credit, holdings, runs, outbox, out) {
    this.checkAtMs = NEVER
    this.brokers = brokers
    this.announcements = announcements
    this.credit = credit
    this.holdings = holdings
    this.runs = runs
    this.outbox = outbox
    this.out = out
  }

  /** Drop sessions whose lease is over: no step may start in them, and their messages are ignored. */
  check(nowMs) {
    if (nowMs < this.checkAtMs) return
    for (const peer of this.brokers) {
      if (peer.lease.untilMs && nowMs >= peer.lease.untilMs) this.drop(peer, 'lease_over', nowMs)
    }
    let atMs = NEVER
    for (const peer of this.brokers) if (peer.lease.untilMs) atMs = Math.min(atMs, peer.lease.untilMs)
    this.checkAtMs = atMs
  }

  onHere(peer, message, nowMs) {
    if (peer.deployment !== null && peer.deployment !== message.deployment) {
      this.replace(peer, message.deployment, message.epoch, nowMs)
      return
    }
    if (message.epoch < peer.epoch) return
    if (message.epoch > peer.epoch) {
      // The broker restarted. Its deliveries continue with the current lease; the new session will adopt them.
      peer.epoch = message.epoch
      peer.session = null
    }
    peer.deployment = message.deployment
    peer.nAfter = this.out.n
    this.announcements.requestHello(nowMs)
  }

  /**
   * Open or extend a session. True if the message answers a hello with the current session number, and its lease is not
   * over yet.
   */
  onWelcome(peer, message, nowMs) {
    const [epoch, k] = topics.sessionParts(message.session)
    const sentMs = this.out.sentMs(message.n)
    if (epoch !== message.epoch || k !== peer.next || message.n <= peer.nAfter || sentMs === null) return false
    if (peer.deployment !== null && peer.deployment !== message.deployment) {
      this.replace(peer, message.deployment, message.epoch, nowMs)
      return false
    }
    const untilMs = sentMs + message.lease_ms * limits.LEASE_WORKER_FACTOR
    if (epoch < peer.epoch || untilMs <= nowMs) return false // from before a restart, or its lease is over already
    const isNew = message.session !== peer.session
    peer.epoch = epoch
    peer.deployment = message.deployment
    peer.bytesMax = message.max_message_bytes
    peer.leaseMs = message.lease_ms
    peer.heartbeatMs = Math.min(message.heartbeat_ms || limits.HEARTBEAT_MS, Math.floor(message.lease_ms / 5))
    peer.promises.acknowledge(message.n)
    if (isNew) peer.lease.untilMs = 0 // a restarted broker may have a shorter lease, which then applies
    this.extend(peer, untilMs, nowMs)
    if (isNew) this.open(peer, message.session, nowMs)
    return true
  }

  onHeartbeatAck(peer, message, nowMs) {
    const sentMs = this.out.sentMs(message.n)
    if (sentMs !== null) this.extend(peer, sentMs + peer.leaseMs * limits.LEASE_WORKER_FACTOR, nowMs)
    if (peer.promises.acknowledge(message.n) && this.credit.moves(peer)) this.announcements.moveCredit(nowMs)
    if (message.quiet !== peer.isQuiet) {
      peer.isQuiet = message.quiet
      this.announcements.requestHeartbeat(nowMs)
    }
  }

  onReset(peer, message, nowMs) {
    if (message.next === peer.next && message.epoch >= peer.epoch) {
      this.drop(peer, message.code, nowMs, PERMANENT.has(message.code) ? 'error' : 'warning')
    }
  }

  open(peer, session, nowMs) {
    peer.session = session
    peer.openedMs = nowMs
    peer.floor = -1
    peer.isQuiet = false
    this.announcements.requestHeartbeat(nowMs) // carries the credit
    this.outbox.hastenAll(peer, nowMs)
    this.runs.hasten(peer, nowMs)
    this.announcements.stopHelloIfWelcomed()
    this.out.log('info', 'session_opened', { broker: peer.id, session })
  }

  extend(peer, untilMs, nowMs) {
    peer.answeredMs = nowMs
    if (untilMs > peer.lease.untilMs) {
      peer.lease.untilMs = untilMs
      this.checkAtMs = Math.min(this.checkAtMs, untilMs)
    }
  }

  /** End the session. Deliveries that have not started here never start, because another worker may get them. */
  drop(peer, why, nowMs, level = 'warning') {
    let dropped = 0
    for (const held of this.holdings.ofBroker(peer)) {
      if (held.state === DONE) continue
      if (held.withdraw()) {
        this.holdings.bury(held, nowMs)
        dropped += 1
      } else {
        this.runs.interrupt(held, 'lease_lost')
      }
    }
    const { session } = peer
    peer.session = null
    peer.next += 1
    peer.lease.untilMs = 0
    peer.nAfter = this.out.n
    this.out.log(level, 'session_dropped', { broker: peer.id, session, why, not_started: dropped })
    this.requestHello(peer, session, why, nowMs)
  }

  /** Send hello at once after a drop, and after a growing pause if the broker keeps ending the session. */
  requestHello(peer, session, why, nowMs) {
    if (session !== null && nowMs - peer.openedMs >= peer.leaseMs / 2) peer.dropWaitMs = 0
    let waitMs
    if (PERMANENT.has(why)) {
      waitMs = peer.dropWaitMs = limits.DROP_WAIT_MAX_MS
    } else {
      waitMs = peer.dropWaitMs
      peer.dropWaitMs = Math.min(limits.DROP_WAIT_MAX_MS, Math.max(limits.DROP_WAIT_MS, 2 * waitMs))
    }
    if (waitMs > 0) this.announcements.requestHelloAfter(waitMs, peer, nowMs)
    else this.announcements.requestHello(nowMs)
  }

  /**
   * Discard everything of a broker that has another database: earlier deliveries have no owner, and their ids now belong
   * to other steps.
   */
  replace(peer, deployment, epoch, nowMs) {
    const discarded = this.outbox.discard(peer)
    for (const held of this.holdings.ofBroker(peer)) {
      if (held.state !== RUNNING || held.withdraw()) {
        this.holdings.bury(held, nowMs)
      } else {
        this.runs.interrupt(held, 'superseded')
        this.holdings.orphan(held, nowMs)
      }
    }
    this.out.log('error', 'deployment_replaced', { broker: peer.id, deployment, results_discarded: discarded })
    this.drop(peer, 'deployment_replaced', nowMs)
    this.holdings.tombstones.forgetBroker(peer)
    peer.deployment = deployment
    peer.epoch = epoch
  }
}
