/**
 * The session: receives facts, and returns actions.
 *
 * The caller passes the time with every call, in milliseconds of a clock that counts sleep. It passes all facts that
 * have arrived, then calls `actions`, and calls it again at `wakeAt` at the latest. Results of one batch that finished in
 * the meantime are sent in one message.
 *
 * The guarantees: a process runs a delivery at most once. No step starts after its broker may consider this worker dead.
 * An at_most_once step starts only after the broker's go. A result is kept until a broker has committed it.
 */

import * as codec from '../protocol/codec.js'
import * as topics from '../protocol/topics.js'
import { InvalidMessage } from '../protocol/errors.js'
import { NEVER } from '../actions.js'
import { Announcements } from './announcements.js'
import { Brokers } from './brokers.js'
import { Offers } from './config.js'
import { Credit } from './credit.js'
import { DONE, RUNNING, distinct, keyOf } from './deliveries.js'
import { BrokerLinks } from './endpoints.js'
import { HeldDeliveries } from './holdings.js'
import { Intake } from './intake.js'
import { Leases } from './leases.js'
import { ResultsOutbox } from './outbox.js'
import { Outgoing, parts } from './outgoing.js'
import { Pace } from './pace.js'
import { ProgressReports } from './progress.js'
import { ResultsReporting, withoutVerdict } from './reporting.js'
import { Runs } from './runs.js'
import { Slots } from './slots.js'

/** One worker's sessions with all its brokers. `random` returns numbers in [0, 1); `memory` is shared with the runner. */
export class Session {
  constructor(config, random, memory) {
    this.inbox = topics.toWorker(config.worker)
    this.bytesMax = config.maxMessageBytes
    this.hasQuit = false
    const offers = new Offers(config.offers)
    this.out = new Outgoing(config.worker)
    this.brokers = new Brokers(memory)
    this.slots = new Slots(config.slots, offers)
    this.holdings = new HeldDeliveries(this.slots, new Pace(config.queueMax))
    this.outbox = new ResultsOutbox(this.out)
    this.runs = new Runs(offers, memory, this.slots, this.holdings, this.out)
    this.credit = new Credit(config, this.brokers, this.holdings, this.outbox)
    const { brokers, holdings, outbox, credit, out } = this
    this.intake = new Intake(offers, config.acceptDelayMs, brokers, holdings, credit, outbox, out)
    this.reporting = new ResultsReporting(holdings, credit, this.intake, outbox, out)
    this.progress = new ProgressReports(holdings, out)
    this.announcements = new Announcements(config, random, brokers, holdings, credit, out)
    this.leases = new Leases(brokers, this.announcements, credit, holdings, this.runs, outbox, out)
    this.endpoints = new BrokerLinks(config, brokers, holdings, out)
  }

  // -- facts in -------------------------------------------------------------------------------------------------------

  start(nowMs) {
    this.announcements.start(nowMs)
    this.endpoints.start(nowMs)
  }

  /** Receive a frame of the SUB socket, split at its first space. `body` is a Buffer. */
  receive(topic, body, nowMs) {
    this.leases.check(nowMs)
    if (topic !== this.inbox && topic !== topics.BROKERS) return
    if (body.length > this.bytesMax) {
      this.intake.onUnreadable(body, 'too_large', `${body.length} bytes`, nowMs)
      return
    }
    let message
    try {
      message = codec.decodeBroker(body)
    } catch (refusal) {
      if (!(refusal instanceof InvalidMessage)) throw refusal
      if (refusal.code !== 'unknown_type') this.intake.onUnreadable(body, 'bad_message', refusal.message, nowMs)
      return
    }
    if (topic === this.inbox || message.type === 'here') this.dispatch(message, body.length, nowMs)
  }

  /** Report the end of a run that the action `run` started. The first report of a run counts. */
  finished(item, result, nowMs) {
    const key = keyOf(item[0], item[1])
    const held = this.holdings.get(key)
    if (held === undefined || held.state !== RUNNING) {
      this.holdings.releaseOrphan(key, nowMs)
      return
    }
    let reported = result
    if (result.status !== 'completed' && (held.isInterrupted || nowMs >= held.timeoutAtMs)) {
      reported = withoutVerdict(held, result)
    }
    this.reporting.add(held, reported, nowMs)
    if (this.progress.sendAtMs !== NEVER) this.progress.forget(held)
    this.holdings.finish(held, nowMs)
  }

  /** Return a step to its broker: its run did not start, or had no effect, so another worker may run the step. */
  giveBack(item, nowMs) {
    const key = keyOf(item[0], item[1])
    const held = this.holdings.get(key)
    if (held === undefined || held.state !== RUNNING) {
      this.holdings.releaseOrphan(key, nowMs)
      return
    }
    this.intake.giveBack([held], this.credit.isDraining ? 'draining' : 'busy', nowMs)
  }

  progressed(item, done, total, note, nowMs) {
    const held = this.holdings.get(keyOf(item[0], item[1]))
    if (held !== undefined && held.state === RUNNING) this.progress.add(held, done, total, note, nowMs)
  }

  /** Accept no new steps, and finish those that are held. */
  quiet(nowMs) {
    this.credit.isQuiet = true
    this.announcements.requestHeartbeat(nowMs)
  }

  /** Report whether the runner accepts no steps at the moment, although slots are free. */
  full(isFull, nowMs) {
    if (isFull !== this.credit.isFull) {
      this.credit.isFull = isFull
      this.announcements.requestHeartbeat(nowMs)
    }
  }

  /** Return steps that have not started, finish those that run, then `quit`. */
  drain(nowMs) {
    if (this.credit.isDraining) return
    this.credit.isDraining = true
    this.leases.check(nowMs)
    this.intake.giveBack(this.holdings.withdraw(), 'draining', nowMs)
    this.out.log('info', 'worker_drains', { running: this.holdings.running().length })
    this.announcements.requestHeartbeat(nowMs)
  }

  get isDraining() {
    return this.credit.isDraining
  }

  /** Ask every run to stop, because the time to drain is over. Returns the number of runs. */
  expel() {
    return this.runs.interruptAll('shutdown')
  }

  // -- actions out ----------------------------------------------------------------------------------------------------

  /** All actions that are due now, in their order. */
  actions(nowMs) {
    // Called for every frame and every end of a run, so a part that is not due costs only a comparison.
    if (nowMs >= this.leases.checkAtMs) this.leases.check(nowMs)
    if (nowMs >= this.runs.timeoutAtMs) this.runs.stopOverdue(nowMs)
    this.handOver(nowMs)
    if (nowMs >= this.credit.returnAtMs) this.returnExcess(nowMs)
    if (this.reporting.isDue(nowMs, this.slots.taken)) this.reporting.sendDue(nowMs, this.slots.taken)
    if (nowMs >= this.outbox.resendAtMs) this.outbox.resend(nowMs)
    if (nowMs >= this.runs.askAtMs) this.runs.ask(nowMs)
    if (nowMs >= this.intake.acceptAtMs) this.intake.acceptDue(nowMs)
    if (nowMs >= this.progress.sendAtMs) this.progress.send(nowMs)
    if (nowMs >= this.announcements.helloAtMs) this.announcements.hello(nowMs)
    if (nowMs >= this.announcements.heartbeatAtMs) this.heartbeat(nowMs)
    if (nowMs >= this.endpoints.checkAtMs) this.endpoints.check(nowMs)
    if (this.credit.isDraining && this.mayQuit()) {
      this.hasQuit = true
      this.heartbeat(nowMs)
      this.out.add({ kind: 'quit' })
    }
    return this.out.take()
  }

  /** The latest time for the next call of `actions`; minus infinity: now. At that time, nothing may be due. */
  wakeAt() {
    if (this.out.actions.length > 0 || this.slots.hasNext() || this.reporting.hasWhole) return -NEVER
    if (this.reporting.sendAtMs !== NEVER && this.slots.taken === 0) return -NEVER
    if (this.credit.isDraining && this.mayQuit()) return -NEVER
    return Math.min(
      this.leases.checkAtMs,
      this.runs.timeoutAtMs,
      this.credit.returnAtMs,
      this.reporting.sendAtMs,
      this.outbox.resendAtMs,
      this.runs.askAtMs,
      this.intake.acceptAtMs,
      this.progress.sendAtMs,
      this.announcements.helloAtMs,
      this.announcements.heartbeatAtMs,
      this.endpoints.checkAtMs,
    )
  }

  /** True if nothing is held: no step, and no result that a broker has not acknowledged. */
  get isIdle() {
    return this.holdings.size === 0
  }

  holding(nowMs) {
    return this.holdings.report(nowMs)
  }

  // -- messages -------------------------------------------------------------------------------------------------------

  dispatch(message, size, nowMs) {
    switch (message.type) {
      case 'ack':
        return this.reporting.onAck(message, nowMs)
      case 'here':
        return this.leases.onHere(this.brokers.getOrAdd(message.broker, nowMs), message, nowMs)
      case 'welcome': {
        const peer = this.brokers.getOrAdd(message.broker, nowMs)
        if (this.leases.onWelcome(peer, message, nowMs)) this.endpoints.learn(peer, message.brokers, nowMs)
        return
      }
      case 'reset':
        return this.leases.onReset(this.brokers.getOrAdd(message.broker, nowMs), message, nowMs)
      case 'refused':
        return this.reporting.onRefused(message, nowMs)
    }
    const peer = this.brokers.get(message.broker)
    if (peer === null || peer.session !== message.session || peer.epoch !== message.epoch) {
      return // not in the current session: the next heartbeat informs the sender
    }
    switch (message.type) {
      case 'steps': {
        const isWaking = this.credit.isWaking(peer, nowMs)
        this.intake.onSteps(peer, message, size, nowMs)
        if (isWaking) this.announcements.recallCredit(nowMs)
        return
      }
      case 'heartbeat_ack':
        this.leases.onHeartbeatAck(peer, message, nowMs)
        if (message.brokers !== null) this.endpoints.learn(peer, message.brokers, nowMs)
        if (message.quit) this.drain(nowMs)
        return
      case 'go':
        return this.runs.onGo(peer, message.items, nowMs)
      case 'cancel':
        return this.onCancel(peer, message, nowMs)
      case 'adopt':
        return this.onAdopt(peer, message, nowMs)
    }
  }

  onCancel(peer, message, nowMs) {
    const notStarted = []
    for (const [stepId, delivery] of message.items) {
      const key = keyOf(stepId, delivery)
      const held = this.holdings.get(key)
      if (held === undefined) this.holdings.tombstones.disown(key, peer, nowMs)
      else if (held.peer === peer && held.state !== DONE) {
        if (held.withdraw()) notStarted.push(held)
        else this.runs.interrupt(held, message.reason)
      }
    }
    this.intake.giveBack(notStarted, 'stale', nowMs)
  }

  /** Move deliveries to another broker, or to the same one after a restart. Unknown ones will never start here. */
  onAdopt(peer, message, nowMs) {
    const answers = []
    const moved = new Map() // by results message
    for (const [stepId, delivery] of distinct(message.items)) {
      const key = keyOf(stepId, delivery)
      const held = this.holdings.get(key)
      if (held === undefined || held.state === null) {
        this.holdings.tombstones.disown(key, peer, nowMs)
        answers.push([stepId, delivery, 'unknown', 0])
        continue
      }
      answers.push([stepId, delivery, held.reportedState, held.ageMs(nowMs)])
      if (held.message !== null) {
        this.outbox.hasten(held.message, nowMs)
        if (held.message.peer !== peer) {
          if (!moved.has(held.message)) moved.set(held.message, [])
          moved.get(held.message).push(held)
        }
      }
      this.holdings.move(held, peer)
    }
    for (const part of parts(answers)) this.out.sendTo(peer, 'adopted', { session: peer.session, items: part })
    for (const [results, deliveries] of moved) this.reporting.changeOwner(results, deliveries, peer, nowMs)
  }

  // -- helpers --------------------------------------------------------------------------------------------------------

  /** Hand steps to the runner, as far as slots and pace permit, and watch those that still wait. */
  handOver(nowMs) {
    const { slots } = this
    if (slots.hasQueue()) {
      slots.ahead = this.credit.ahead(nowMs)
      if (slots.hasNext()) this.runs.startQueued(nowMs)
    }
    this.credit.watch(nowMs)
  }

  /** Return the newest steps that no longer fit, because steps have become longer. */
  returnExcess(nowMs) {
    const { count, peers } = this.credit.excess(nowMs)
    if (count > 0) this.intake.giveBack(this.holdings.withdrawNewest(count, peers), 'busy', nowMs)
  }

  mayQuit() {
    return this.credit.isDraining && this.holdings.size === 0 && !this.hasQuit
  }

  heartbeat(nowMs) {
    this.holdings.tombstones.sweep(nowMs)
    if (!this.announcements.isForCredit) this.credit.rotate()
    this.announcements.heartbeat(nowMs)
  }
}
