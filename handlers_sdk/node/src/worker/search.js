/** Reports that no broker answers: after three seconds, then at growing intervals. */

import { NEVER } from '../actions.js'
import { diagnosis } from './reachability.js'

const AFTER_MS = [3_000, 10_000, 30_000, 60_000]
const EVERY_MS = 300_000 // after those

/** Knows since when links have no session, and when to report that next. */
export class BrokerSearch {
  constructor(events) {
    this.reportAtMs = NEVER
    this.events = events
    this.sinceMs = 0
    this.reports = 0
  }

  /** Note the links without a session, after each change and at `reportAtMs`. Reports the first when due. */
  update(closed, nowMs) {
    if (closed.length === 0) {
      this.reportAtMs = NEVER
      this.reports = 0
      return
    }
    if (this.reportAtMs === NEVER) {
      this.sinceMs = nowMs
      this.reportAtMs = nowMs + AFTER_MS[0]
    }
    if (nowMs < this.reportAtMs) return
    this.reports += 1
    const waitMs = AFTER_MS[this.reports] ?? nowMs - this.sinceMs + EVERY_MS
    this.reportAtMs = this.sinceMs + waitMs
    const seconds = Math.round((nowMs - this.sinceMs) / 1000)
    diagnosis(closed[0], this.events.publicKey).then(({ endpoint, reason }) => {
      if (this.reportAtMs !== NEVER) this.events.log('warning', 'no_broker', { endpoint, reason, seconds })
    })
  }
}
