/** Progress reports: only the latest of each run is sent, at most five times a second. */

import { NEVER } from '../actions.js'
import { parts } from './outgoing.js'

const PROGRESS_EVERY_MS = 200

/** The latest progress of each run that was not sent yet. */
export class ProgressReports {
  constructor(holdings, out) {
    this.sendAtMs = NEVER
    this.holdings = holdings
    this.out = out
    this.latest = new Map()
    this.sentMs = -NEVER
  }

  add(held, done, total, note, nowMs) {
    this.latest.set(held.key, [held.item[0], held.item[1], done, total, note])
    this.sendAtMs = Math.max(nowMs, this.sentMs + PROGRESS_EVERY_MS)
  }

  forget(held) {
    this.latest.delete(held.key)
  }

  send(nowMs) {
    this.sendAtMs = NEVER
    this.sentMs = nowMs
    const { latest } = this
    this.latest = new Map()
    const byPeer = new Map()
    for (const [key, entry] of latest) {
      const held = this.holdings.get(key)
      if (held === undefined || held.peer.session === null) continue
      if (!byPeer.has(held.peer)) byPeer.set(held.peer, [])
      byPeer.get(held.peer).push(entry)
    }
    for (const [peer, items] of byPeer) {
      for (const part of parts(items)) this.out.sendTo(peer, 'progress', { session: peer.session, items: part })
    }
  }
}
