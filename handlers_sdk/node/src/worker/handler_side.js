/** The main thread's side of a worker: it runs the handlers, and talks with the thread that owns the sockets. */

import { Worker as Thread } from 'node:worker_threads'
import { RunMemory } from '../actions.js'
import { Clock } from '../identity.js'
import { mayNeedOpening } from '../protocol/sealed_payloads.js'
import { HandlerCall } from '../runners/calls.js'
import { Runner } from '../runners/runner.js'
import { BEAT_BYTES, LoopBeat } from './loop_watch.js'

const RUN_FIELDS = 6 // see hand_over.js
const CLOSE_MS = 5_000 // the sockets close within milliseconds, unless the computer is overloaded

/** Runs from the start of the socket thread to its end. */
export class HandlerSide {
  constructor({ config, handlers, curve, logger, edge, threadUrl = new URL('./socket_thread.js', import.meta.url) }) {
    const clock = new Clock()
    const beat = new SharedArrayBuffer(BEAT_BYTES)
    this.handlers = handlers
    this.logger = logger
    this.edge = edge
    this.memory = new RunMemory()
    this.beat = new LoopBeat(beat)
    this.calls = new Map() // by place in shared memory
    this.reports = new Map() // progress to be passed on: the latest of each run
    this.clock = () => clock.nowMs()
    this.runner = new Runner({
      slots: config.slots,
      offers: config.offers,
      clock: this.clock,
      post: (outcomes) => this.postOutcomes(outcomes),
      onCurrent: (index) => this.beat.setCurrent(index),
    })
    this.context = { clock: this.clock, logger, report: (...report) => this.report(...report) }
    this.onExit = () => this.closeSockets()
    process.on('exit', this.onExit)
    this.ended = new Promise((settle) => {
      this.settle = (ended) => {
        process.off('exit', this.onExit)
        settle(ended)
      }
    })
    this.thread = new Thread(threadUrl, {
      execArgv: [], // options for the program's own source, such as --input-type, are not for this thread
      name: 'stepwire-sockets',
      workerData: {
        config,
        curve,
        clock: clock.shared,
        beat,
        leases: this.memory.leases,
        hasLogger: logger !== null,
      },
    })
    this.thread.on('message', (message) => this.onMessage(message))
    this.thread.on('error', (fault) => this.settle({ abandoned: this.calls.size, fault: fault.message }))
    this.thread.on('exit', () => this.settle({ abandoned: this.calls.size, fault: 'the socket thread has ended' }))
  }

  quiet() {
    this.thread.postMessage({ command: 'quiet' })
  }

  drain(drainMs) {
    this.thread.postMessage({ command: 'drain', drainMs })
  }

  /**
   * The program calls process.exit, or an error ends it. Node then stops the other thread, and ZeroMQ would abort the
   * process if its sockets were still open.
   */
  closeSockets() {
    if (this.beat.areClosed()) return
    this.thread.postMessage({ command: 'close' })
    this.beat.waitForClose(CLOSE_MS)
  }

  onMessage(message) {
    if (message.ping) this.beat.answer()
    for (const chunk of message.chunks ?? []) this.memory.addChunk(chunk)
    for (const [method, text, facts] of message.records ?? []) this.logger[method](text, facts)
    for (const index of message.cancels ?? []) this.calls.get(index)?.stop()
    if (message.runs !== undefined) this.runner.add(this.callsOf(message))
    if (message.ended !== undefined) this.settle(message.ended)
  }

  callsOf({ texts, runs }) {
    const steps = texts.map((text) => JSON.parse(text).steps)
    const edges = texts.map((text) => (mayNeedOpening(text) ? this.edge : null)) // once for all steps of a message
    const calls = []
    for (let i = 0; i < runs.length; i += RUN_FIELDS) {
      const offer = runs[i + 1]
      const call = new HandlerCall({
        memory: this.memory,
        index: runs[i],
        step: withDefaults(steps[runs[i + 4]][runs[i + 5]]),
        offer,
        handler: this.handlers[offer],
        timeoutMs: runs[i + 2],
        deadlineMs: runs[i + 3],
        runner: this.context,
        edge: edges[runs[i + 4]],
      })
      this.calls.set(call.index, call)
      calls.push(call)
    }
    return calls
  }

  postOutcomes(outcomes) {
    for (let i = 0; i < outcomes.length; i += 2) {
      this.calls.delete(outcomes[i])
      if (this.reports.size > 0) this.reports.delete(outcomes[i])
    }
    this.thread.postMessage({ outcomes })
  }

  report(call, done, total, note) {
    if (call.endedBy !== undefined) return
    if (this.reports.size === 0) setImmediate(() => this.postReports())
    this.reports.set(call.index, [call.index, done, total, note])
  }

  postReports() {
    if (this.reports.size === 0) return
    this.thread.postMessage({ progress: [...this.reports.values()] })
    this.reports.clear()
  }
}

/** A step of a broker's message with its absent members at their defaults. The session has checked it. */
export function withDefaults(step) {
  if (step.handler_config === undefined) step.handler_config = {}
  if (step.task_context === undefined) step.task_context = {}
  if (step.previous_results === undefined) step.previous_results = {}
  if (step.delivery_mode === undefined) step.delivery_mode = 'at_least_once'
  const { metadata } = step
  metadata.traceparent ??= null
  metadata.tracestate ??= null
  metadata.shadow ??= false
  return step
}
