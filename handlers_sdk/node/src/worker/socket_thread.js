/**
 * The thread that owns both sockets and the session: a worker thread of Node. No handler runs on it, so heartbeats go on
 * while a handler computes on the main thread.
 *
 * The thread passes frames and outcomes to the session, and the session's actions to the sockets and to the main thread
 * (handler_side.js). The messages between both threads are batches. Decisions that cannot wait for a message are in
 * shared memory: whether a run begins, the leases, and requests to stop.
 */

import { parentPort, workerData } from 'node:worker_threads'
import { NEVER, RunMemory } from '../actions.js'
import { Clock } from '../identity.js'
import * as codec from '../protocol/codec.js'
import * as runLog from '../runners/run_log.js'
import { Config } from '../session/config.js'
import { Session } from '../session/session.js'
import { WorkerEvents } from './events.js'
import { Outgoing } from './hand_over.js'
import { LoopWatch } from './loop_watch.js'
import { BrokerSearch } from './search.js'
import { WorkerSockets } from './sockets.js'

const DRAIN_MS = 25_000 // time for runs to end before they are asked to stop
const EXPEL_MS = 2_000 // time for runs to end after a request to stop
const RECEIVE_BYTES_MAX = 64 * 1024 // received before actions are performed: the first steps run meanwhile
const WAIT_MAX_MS = 60_000

/** Runs a worker from its first hello until it has quit. */
class SocketThread {
  constructor({ config, curve, clock, leases, hasLogger }, loopWatch) {
    this.config = new Config(config)
    this.clock = new Clock(clock)
    this.toMain = new Outgoing((message, transfer) => parentPort.postMessage(message, transfer))
    const memory = new RunMemory({ leases, onChunk: (chunk) => this.toMain.addChunk(chunk) })
    this.session = new Session(this.config, Math.random, memory)
    this.logger = hasLogger ? this.toMain.logger() : null
    this.events = new WorkerEvents(
      this.config.worker,
      (id) => this.session.endpoints.linkOf(id),
      this.logger,
      curve === null ? null : curve.public,
    )
    this.search = new BrokerSearch(this.events)
    this.loopWatch = loopWatch
    loopWatch.ping = () => this.toMain.ping()
    this.runs = new RunsOut()
    this.expelAtMs = this.leaveAtMs = NEVER
    this.isDraining = this.hasQuit = this.hasFailed = false
    this.receivedBytes = 0
    this.isTurnDue = false
    this.timer = null
    this.timerAtMs = NEVER
    this.sockets = new WorkerSockets({
      workerId: this.config.worker,
      links: this.config.links,
      curve,
      events: this.events,
      receive: (frame) => this.receive(frame),
      failed: (fault) => this.fail(fault),
    })
  }

  start() {
    const { worker, offers, slots, pid } = this.config
    this.session.start(this.clock.nowMs())
    const handlers = offers.map((offer) => offer.pattern)
    this.events.log('info', 'worker_started', { name: worker.split(':')[0], handlers, slots, pid })
    this.lookForBrokers()
    this.turn()
  }

  // -- facts ----------------------------------------------------------------------------------------------------------

  receive(frame) {
    const parts = codec.split(frame)
    if (parts === null || this.hasQuit) return
    this.session.receive(parts[0], parts[1], this.clock.nowMs())
    this.receivedBytes += frame.length
    if (this.receivedBytes >= RECEIVE_BYTES_MAX) this.turn()
    else this.turnSoon()
  }

  /** A message of the main thread. */
  onMessage(message) {
    if (message.command === 'close') this.closeAtOnce()
    if (this.hasQuit) return
    const nowMs = this.clock.nowMs()
    if (message.progress !== undefined) this.onProgress(message.progress, nowMs)
    if (message.outcomes !== undefined) this.onOutcomes(message.outcomes, nowMs)
    if (message.command === 'quiet') this.session.quiet(nowMs)
    if (message.command === 'drain') {
      this.session.drain(nowMs)
      this.expelSoonest(nowMs + message.drainMs)
    }
    this.turn()
  }

  /** `outcomes`: run, outcome; run, outcome; … */
  onOutcomes(outcomes, nowMs) {
    for (let i = 0; i < outcomes.length; i += 2) {
      const run = this.runs.take(outcomes[i])
      const outcome = outcomes[i + 1]
      if (outcome === null) this.session.giveBack(run.item, nowMs)
      else this.session.finished(run.item, resultOf(run, outcome), nowMs)
      run.release()
    }
  }

  onProgress(reports, nowMs) {
    for (const [index, done, total, note] of reports) {
      const run = this.runs.get(index)
      if (run !== undefined) this.session.progressed(run.item, done, total, note, nowMs)
    }
  }

  // -- turns ----------------------------------------------------------------------------------------------------------

  /** Act soon: frames that are received in the same turn of the event loop share their actions. */
  turnSoon() {
    if (this.isTurnDue) return
    this.isTurnDue = true
    setImmediate(() => {
      if (this.isTurnDue) this.turn()
    })
  }

  turn() {
    if (this.hasQuit) return
    try {
      this.isTurnDue = false
      this.receivedBytes = 0
      const nowMs = this.clock.nowMs()
      for (const action of this.session.actions(nowMs)) this.perform(action)
      this.checkDrain(nowMs)
      if (nowMs >= this.search.reportAtMs) this.lookForBrokers()
      if (this.runs.size > 0) this.watchLoop(nowMs)
      this.toMain.flush()
      if (this.hasQuit) this.end()
      else this.sleep(nowMs)
    } catch (fault) {
      this.fail(fault)
    }
  }

  /** Have the next turn when the session has to act, at the latest. */
  sleep(nowMs) {
    const sessionAtMs = this.session.wakeAt()
    if (sessionAtMs <= nowMs) {
      this.turnSoon()
      return
    }
    let atMs = Math.min(sessionAtMs, this.expelAtMs, this.leaveAtMs, this.search.reportAtMs, nowMs + WAIT_MAX_MS)
    if (this.runs.size > 0) atMs = Math.min(atMs, this.loopWatch.checkAtMs)
    if (this.timer !== null && this.timerAtMs <= atMs) return // the timer wakes early enough, and sets the next one
    if (this.timer !== null) clearTimeout(this.timer)
    this.timerAtMs = atMs
    this.timer = setTimeout(
      () => {
        this.timer = null
        this.turn()
      },
      Math.max(1, Math.ceil(atMs - nowMs)),
    )
  }

  expelSoonest(atMs) {
    this.isDraining = true
    this.expelAtMs = Math.min(this.expelAtMs, atMs)
  }

  /** After the time to drain, ask runs to stop. After EXPEL_MS, quit without waiting for them. */
  checkDrain(nowMs) {
    if (this.session.isDraining && !this.isDraining) this.expelSoonest(nowMs + DRAIN_MS) // a broker has ordered it
    if (nowMs >= this.expelAtMs) {
      this.expelAtMs = NEVER
      this.leaveAtMs = nowMs + (this.session.expel() > 0 ? EXPEL_MS : 0)
      this.turnSoon()
    }
    if (nowMs >= this.leaveAtMs) this.hasQuit = true
  }

  watchLoop(nowMs) {
    const current = this.loopWatch.check(nowMs)
    if (current === null) return
    const run = this.runs.get(current)
    if (run !== undefined) {
      runLog.loopBlocked(this.logger, run.step, this.config.offers[run.offer].pattern, this.loopWatch.blockedS)
    }
  }

  // -- actions of the session -----------------------------------------------------------------------------------------

  perform(action) {
    switch (action.kind) {
      case 'run':
        this.runs.add(action.run)
        this.toMain.addRun(action.run)
        return
      case 'send':
        this.sockets.send(action.topic + action.body)
        return
      case 'cancel_run':
        this.cancel(action)
        return
      case 'connect':
        this.sockets.connect(action.link, action.serverKey)
        return
      case 'disconnect':
        this.sockets.disconnect(action.link)
        return
      case 'rebuild':
        this.sockets.rebuild(action.link)
        return
      case 'result_too_large':
        runLog.notReported(this.logger, action.step, action.result)
        return
      case 'log':
        this.events.log(action.level, action.event, action.facts)
        this.lookForBrokers()
        return
      case 'quit':
        this.hasQuit = true
        return
    }
    throw new Error(`unknown action ${action.kind}`)
  }

  cancel({ run, reason }) {
    if (run.endedMs !== undefined) return
    runLog.interrupted(this.logger, run.step, reason)
    run.requestStop(reason)
    if (reason !== 'lease_lost') this.toMain.addCancel(run)
  }

  lookForBrokers() {
    this.search.update(this.session.endpoints.withoutSession(), this.clock.nowMs())
  }

  // -- the end --------------------------------------------------------------------------------------------------------

  async end() {
    clearTimeout(this.timer)
    await this.sockets.close()
    this.loopWatch.closed()
    this.events.log('info', 'worker_ended', { unacknowledged: this.session.holdings.size })
    this.toMain.end({ abandoned: this.runs.size })
    parentPort.close()
  }

  /** The process ends now: nothing that is still unsent matters. */
  closeAtOnce() {
    this.hasQuit = true
    clearTimeout(this.timer)
    this.sockets.closeAtOnce()
    this.loopWatch.closed()
  }

  fail(fault) {
    if (this.hasFailed) return
    this.hasFailed = this.hasQuit = true
    this.events.log('error', 'worker_failed', { error: fault.stack ?? String(fault) })
    clearTimeout(this.timer)
    this.toMain.end({ abandoned: this.runs.size, fault: fault.message ?? String(fault) })
    this.sockets?.closeAtOnce()
    this.loopWatch.closed()
    parentPort.close()
  }
}

/** An outcome as the session takes it. The JSON of a completed result is sent as it is. */
function resultOf({ item: [stepId, delivery] }, outcome) {
  if (typeof outcome !== 'string') return { step_id: stepId, delivery, ...outcome }
  return { status: 'completed', error: null, metadata: null, text: outcome }
}

/** The runs that the main thread has, until their outcome, by their places in shared memory. */
class RunsOut {
  constructor() {
    this.size = 0
    this.byIndex = []
  }

  add(run) {
    this.byIndex[run.index] = run
    this.size += 1
  }

  get(index) {
    return this.byIndex[index] ?? undefined
  }

  take(index) {
    const run = this.byIndex[index]
    this.byIndex[index] = null
    this.size -= 1
    return run
  }
}

const loopWatch = new LoopWatch(workerData.beat)
if (loopWatch.mayOpen()) {
  const thread = new SocketThread(workerData, loopWatch)
  parentPort.on('message', (message) => thread.onMessage(message))
  thread.start()
}
