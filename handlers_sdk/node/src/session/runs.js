/** Runs, from their slot to their end: permission for at_most_once steps, start, timeouts, cancels. */

import * as limits from '../protocol/limits.js'
import { NEVER, Run } from '../actions.js'
import { ASKING, RUNNING, keyOf } from './deliveries.js'
import { parts } from './outgoing.js'

const RECHECK_MS = 50 // a run that has not begun by its deadline is checked again after this time

/** Starts deliveries in the run queue, and asks runs to stop. */
export class Runs {
  constructor(offers, memory, slots, holdings, out) {
    this.askAtMs = NEVER
    this.timeoutAtMs = NEVER
    this.offers = offers.byNumber
    this.memory = memory
    this.slots = slots
    this.holdings = holdings
    this.out = out
  }

  startQueued(nowMs) {
    for (let held = this.slots.takeNext(nowMs); held !== null; held = this.slots.takeNext(nowMs)) {
      if (held.isAtMostOnce) {
        held.state = ASKING
        held.askAtMs = nowMs
        held.askWaitMs = limits.START_RETRANSMIT_MS
        this.slots.asking.set(held.key, held)
        this.askAtMs = nowMs
      } else {
        this.start(held, nowMs)
      }
    }
  }

  /** Send `start` for the at_most_once steps that are due. Resent until the broker answers go or cancel. */
  ask(nowMs) {
    const asking = this.slots.asking
    const due = new Map()
    this.askAtMs = NEVER
    for (const held of asking.values()) {
      if (held.askAtMs <= nowMs) {
        if (!due.has(held.peer)) due.set(held.peer, [])
        due.get(held.peer).push(held.item)
        held.askAtMs = nowMs + held.askWaitMs
        held.askWaitMs = Math.min(held.askWaitMs * 2, limits.START_RETRANSMIT_MAX_MS)
      }
      this.askAtMs = Math.min(this.askAtMs, held.askAtMs)
    }
    for (const [peer, items] of due) {
      if (peer.session === null) continue
      for (const part of parts(items)) this.out.sendTo(peer, 'start', { session: peer.session, items: part })
    }
  }

  /** Ask this broker with the next actions, because its session has just opened. */
  hasten(peer, nowMs) {
    for (const held of this.slots.asking.values()) if (held.peer === peer) held.askAtMs = this.askAtMs = nowMs
  }

  onGo(peer, items, nowMs) {
    for (const [stepId, delivery] of items) {
      const held = this.slots.asking.get(keyOf(stepId, delivery))
      if (held !== undefined && held.peer === peer) {
        this.slots.asking.delete(held.key)
        this.start(held, nowMs)
      }
    }
  }

  /**
   * Ask a run that has begun to stop. The first reason counts, and a run is asked once, although a broker repeats its
   * cancel at every heartbeat that lists the run. `lease_lost` informs the handler, and stops nothing.
   */
  interrupt(held, reason) {
    held.isInterrupted = true
    if (!held.isStopping) {
      held.isStopping = reason !== 'lease_lost'
      this.out.add({ kind: 'cancel_run', run: held.run, reason })
    }
  }

  /** Ask every run to stop. Returns their number. */
  interruptAll(reason) {
    const running = this.holdings.running()
    for (const held of running) this.interrupt(held, reason)
    return running.length
  }

  stopOverdue(nowMs) {
    let atMs = NEVER
    for (const held of this.holdings.running()) {
      const { run } = held
      const startedMs = run.startedMs // read once: the runner's thread may begin the run at any time
      if (startedMs === null) {
        atMs = Math.min(atMs, nowMs + run.timeoutMs, Math.max(run.deadlineMs, nowMs + RECHECK_MS))
        continue
      }
      const timeoutAtMs = Math.min(startedMs + run.timeoutMs, run.deadlineMs)
      if (timeoutAtMs > nowMs) atMs = Math.min(atMs, timeoutAtMs)
      else this.interrupt(held, 'timeout')
    }
    this.timeoutAtMs = atMs
  }

  start(held, nowMs) {
    const { step } = held
    if (nowMs >= held.peer.lease.untilMs) throw new Error("a step must not start after its broker's lease")
    held.state = RUNNING
    let timeoutMs = step.metadata.timeout_ms || NEVER
    const ownMs = this.offers[held.offer].timeoutMs
    if (ownMs !== null && ownMs < timeoutMs) timeoutMs = ownMs
    const deadlineMs = step.metadata.deadline_ms
    const endsMs = deadlineMs === null ? NEVER : held.receivedMs + deadlineMs
    const soonestMs = Math.min(nowMs + timeoutMs, endsMs) // if the run begins at once
    if (soonestMs < this.timeoutAtMs) this.timeoutAtMs = soonestMs
    held.run = new Run(this.memory, held.item, step, held.offer, held.peer.lease, timeoutMs, endsMs)
    this.out.add({ kind: 'run', run: held.run })
  }
}
