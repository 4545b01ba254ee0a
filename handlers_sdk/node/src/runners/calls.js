/** One call of a handler, from its hand-over by the session to its outcome. */

import { Context } from '../context.js'
import { encodeCompleted } from '../protocol/codec.js'
import { badInput, badOutput, encodeOutput, failed, readInput, stopped } from '../handler.js'
import * as runLog from './run_log.js'

export const GIVE_BACK = null // an outcome: the step was not started, or had no effect

/** One run, with its handler and context. `memory` and `index`: see RunMemory in actions.js. */
export class HandlerCall {
  constructor({ memory, index, step, offer, handler, timeoutMs, deadlineMs, runner, edge = null }) {
    this.memory = memory
    this.index = index
    this.step = step
    this.offer = offer
    this.handler = handler
    this.timeoutMs = timeoutMs
    this.deadlineMs = deadlineMs
    this.runner = runner // {clock, logger, report(call, done, total, note)}
    this.edge = edge // null: the step certainly needs no opening
    this.opened = null // by the edge: {values, task}
    this.context = null
    this.startedMs = 0
    this.endedBy = undefined // after the end: the reason of the request to stop, or null
    this.hasLostLease = false
  }

  /** The last check before the handler is called: may it be called? If not, the step is given back. */
  begin(nowMs) {
    if (!this.memory.begin(this.index, nowMs)) return false
    this.startedMs = nowMs
    return true
  }

  /** Why the run was asked to stop; null if it was not. Also correct while the handler computes. */
  stopReason() {
    return this.endedBy === undefined ? this.memory.stopReason(this.index) : this.endedBy
  }

  isLeaseLost() {
    return this.endedBy === undefined ? this.memory.isLeaseLost(this.index) : this.hasLostLease
  }

  /** The outcome is decided: the memory of the run belongs to another run from now on. */
  end() {
    this.hasLostLease = this.isLeaseLost()
    this.endedBy = this.stopReason()
    this.memory.end(this.index)
  }

  /**
   * Run the step between its opening and the closing of its outcome. Returns the outcome, or a promise of it: the output as JSON text, a result {status, output, error,
   * metadata}, or GIVE_BACK. Never throws, and the promise never rejects.
   */
  run() {
    if (this.edge === null) return this.call()
    const opened = this.edge.open(this.step)
    return opened instanceof Promise ? opened.then((settled) => this.callLater(settled)) : this.callOpened(opened)
  }

  /** Call the handler, unless the step could not be opened or may not run any more: the opening may have taken long. */
  callOpened(opened) {
    if (opened.refusal !== null) return this.logged(opened.refusal)
    this.opened = opened
    if (this.isTooLate()) return GIVE_BACK
    const outcome = this.call()
    return outcome instanceof Promise ? outcome.then((settled) => this.closed(settled)) : this.closed(outcome)
  }

  /** Did the lease end while the step was opened? Also if a new session has begun: another worker may have the step. */
  isTooLate() {
    return this.memory.isLeaseOver(this.index, this.runner.clock()) || this.isLeaseLost()
  }

  /** The same for a step whose opening had to wait: the run may have been asked to stop meanwhile. */
  callLater(opened) {
    const reason = this.isTooLate() ? null : this.stopReason()
    if (opened.refusal !== null || reason === null) return this.callOpened(opened)
    this.opened = opened
    return reason === 'shutdown' ? GIVE_BACK : this.closed(stopped(this.handler, this.step, reason, this.tookMs))
  }

  /** The outcome as it may leave the worker. */
  closed(outcome) {
    return outcome === GIVE_BACK ? GIVE_BACK : this.edge.close(this.step, this.opened, outcome)
  }

  get isSealed() {
    return this.opened !== null && this.opened.task !== null
  }

  /** Call the handler. Returns the same as `run`. */
  call() {
    const { handler, step, runner } = this
    let value
    try {
      value = readInput(handler, step)
    } catch (fault) {
      return this.logged(badInput(handler, step, fault))
    }
    this.context = new Context(step, {
      flags: this,
      clock: runner.clock,
      logger: runner.logger,
      isSealed: this.isSealed,
      report: (done, total, note) => runner.report(this, done, total, note),
    })
    Context.begin(this.context, this.startedMs, Math.min(this.startedMs + this.timeoutMs, this.deadlineMs))
    try {
      const { run } = handler // called without `this`
      value = run(value, this.context)
    } catch (error) {
      return this.thrown(error)
    }
    if (typeof value?.then !== 'function') return this.returned(value)
    return Promise.resolve(value).then(
      (output) => this.returned(output),
      (error) => this.thrown(error),
    )
  }

  /** The run was asked to stop: the memory has the reason. */
  stop() {
    if (this.context !== null) Context.stop(this.context)
  }

  get tookMs() {
    return this.runner.clock() - this.startedMs
  }

  returned(value) {
    try {
      return encodeOutput(value)
    } catch (fault) {
      return this.logged(badOutput(this.handler, this.step, fault, this.tookMs))
    }
  }

  thrown(error) {
    const { step, handler } = this
    const reason = this.stopReason()
    const isAborted = error instanceof Error && error.name === 'AbortError'
    if (reason !== null && (isAborted || reason === 'timeout')) {
      if (reason === 'shutdown' && step.delivery_mode === 'at_least_once') return GIVE_BACK
      return stopped(handler, step, reason, this.tookMs)
    }
    runLog.thrown(this.runner.logger, step, error, reason, this.isSealed)
    return failed(handler, error, this.tookMs)
  }

  /** The JSON of the result of this run, which has returned this output. */
  completed(output, nowMs) {
    const { step, handler } = this
    return encodeCompleted(step.step_id, step.delivery, output, nowMs - this.startedMs, handler.versionJson)
  }

  logged(result) {
    runLog.notReported(this.runner.logger, this.step, result, this.isSealed)
    return result
  }
}
