/** The messages to every broker: hello (until every broker has sent welcome), heartbeats, and bye. */

import * as limits from '../protocol/limits.js'
import { NEVER } from '../actions.js'

/** Sends hello, heartbeat and bye. `random` returns numbers in [0, 1), for the jitter of the intervals. */
export class Announcements {
  constructor(config, random, brokers, holdings, credit, out) {
    this.helloAtMs = NEVER
    this.heartbeatAtMs = NEVER
    this.config = config
    this.random = random
    this.brokers = brokers
    this.holdings = holdings
    this.credit = credit
    this.out = out
    this.helloWaitMs = limits.HELLO_RETRY_MS
    this.helloSentMs = -NEVER
    this.helloN = 0
    this.mayMoveCredit = true
    this.isForCredit = false // the next heartbeat was requested only because places move
  }

  start(nowMs) {
    this.helloAtMs = nowMs
    this.heartbeatAtMs = nowMs + this.heartbeatEveryMs()
  }

  /** Begin to send hello again. The pause since the last hello is at least that of the first retry. */
  requestHello(nowMs) {
    this.helloWaitMs = limits.HELLO_RETRY_MS
    const soonestMs = this.helloSentMs + this.spread(limits.HELLO_RETRY_MS, limits.HELLO_JITTER)
    this.helloAtMs = Math.min(this.helloAtMs, Math.max(nowMs, soonestMs))
  }

  /**
   * Begin to send hello again after this pause, because this broker keeps ending the session. Another broker that has no
   * session either does not wait for it.
   */
  requestHelloAfter(waitMs, peer, nowMs) {
    this.helloWaitMs = limits.HELLO_RETRY_MS
    const atMs = nowMs + waitMs
    const othersAreOpen = [...this.brokers].every((other) => other === peer || other.session !== null)
    this.helloAtMs = othersAreOpen ? atMs : Math.min(this.helloAtMs, atMs)
  }

  /** Send a heartbeat with the next actions, because the brokers must be informed at once. */
  requestHeartbeat(nowMs) {
    this.heartbeatAtMs = nowMs
  }

  /**
   * Send a heartbeat with the next actions, because a broker is no longer idle, and its share was lent. The remainder of
   * the split does not rotate with it.
   */
  recallCredit(nowMs) {
    this.mayMoveCredit = true
    this.requestCredit(nowMs)
  }

  /**
   * Send a heartbeat with the next actions, because places have become free for another broker. At most once between two
   * other heartbeats: each ack of one could cause the next.
   */
  moveCredit(nowMs) {
    if (this.mayMoveCredit) {
      this.mayMoveCredit = false
      this.requestCredit(nowMs)
    }
  }

  requestCredit(nowMs) {
    if (this.heartbeatAtMs > nowMs) {
      this.heartbeatAtMs = nowMs
      this.isForCredit = true
    }
  }

  /** Stop sending hello, if every broker has answered a hello that was sent after its last drop or `here`. */
  stopHelloIfWelcomed() {
    if (this.brokers.size === 0) return
    for (const peer of this.brokers) if (peer.session === null || peer.nAfter >= this.helloN) return
    this.helloAtMs = NEVER
  }

  hello(nowMs) {
    const c = this.config
    const n = this.out.nextTimedN(nowMs)
    const { free, slotsFree } = this.credit.offerAll(n, nowMs)
    this.out.sendToAll('hello', {
      n,
      versions: limits.VERSIONS_SUPPORTED,
      next: this.brokers.nextNumbers(),
      sessions: this.brokers.sessions(),
      handlers: c.offers.map((offer) => offer.pattern),
      shadow_safe: c.offers.filter((offer) => offer.shadowSafe).map((offer) => offer.pattern),
      labels: c.labels,
      slots: c.slots,
      prefetch: c.queueMax,
      free,
      slots_free: slotsFree,
      holding: this.holdings.report(nowMs),
      heartbeat_ms: c.heartbeatMs,
      lang: c.lang,
      sdk: c.sdk,
      handler_version: c.handlerVersion,
      host: c.host,
      pid: c.pid,
      pid_started: c.pidStarted,
      proof: c.proof,
      max_message_bytes: c.maxMessageBytes,
    })
    this.helloSentMs = nowMs
    this.helloN = n
    this.helloAtMs = nowMs + this.spread(this.helloWaitMs, limits.HELLO_JITTER)
    this.helloWaitMs = Math.min(this.helloWaitMs * 2, limits.HELLO_RETRY_MAX_MS)
    this.stopHelloIfWelcomed()
  }

  /** Send a heartbeat; while draining, also a bye. */
  heartbeat(nowMs) {
    const n = this.out.nextTimedN(nowMs)
    const { free, slotsFree } = this.credit.offerAll(n, nowMs)
    this.out.sendToAll('heartbeat', {
      n,
      next: this.brokers.nextNumbers(),
      sessions: this.brokers.sessions(),
      free,
      slots_free: slotsFree,
      holding: this.holdings.report(nowMs),
    })
    if (this.credit.isDraining) this.out.sendToAll('bye', { n: this.out.nextTimedN(nowMs) })
    this.heartbeatAtMs = nowMs + this.spread(this.heartbeatEveryMs(), limits.HEARTBEAT_JITTER)
    if (!this.isForCredit) this.mayMoveCredit = true
    this.isForCredit = false
  }

  heartbeatEveryMs() {
    let ms = Math.min(this.config.heartbeatMs, limits.LEASE_MS)
    for (const peer of this.brokers) if (peer.session !== null) ms = Math.min(ms, peer.heartbeatMs)
    return Math.max(limits.HEARTBEAT_MIN_MS, ms)
  }

  spread(ms, jitter) {
    return ms * (1 + jitter * (2 * this.random() - 1))
  }
}
