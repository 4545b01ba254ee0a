/** The context of a run: the second argument of every handler. */

import { ConfigurationError, StepwireError } from './errors.js'
import { StepLogger } from './logs.js'
import { shortened } from './texts.js'

const NOTE_CHARS_MAX = 200
const NUMBER_MAX = 2 ** 53

/** The reason of `ctx.signal`: what `fetch` and other calls throw after the run was asked to stop. */
export class RunStopped extends StepwireError {
  constructor(reason) {
    super(reason === 'timeout' ? 'the run exceeded its timeout' : `the run was cancelled: ${reason}`)
    this.name = 'AbortError'
    this.reason = reason
  }
}

/**
 * One delivery of a step, for its handler.
 *
 * `idempotencyKey` is the same for every attempt and delivery of the step. Pass it to every service that must not act
 * twice. `delivery` only increases: a store that keeps the highest value can refuse writes of an earlier run.
 */
export class Context {
  #step
  #flags // {stopReason(), isLeaseLost()}: read from memory that is shared with the sockets' thread
  #clock
  #report
  #logger
  #isSealed
  #startedMs = 0
  #timeoutAtMs = Infinity
  #controller = null
  #log = null

  constructor(step, { flags, clock, report, logger = null, isSealed = false }) {
    this.#step = step
    this.#flags = flags
    this.#clock = clock
    this.#report = report
    this.#logger = logger
    this.#isSealed = isSealed
  }

  // -- the step -------------------------------------------------------------------------------------------------------

  get taskId() {
    return this.#step.task_id
  }

  get stepId() {
    return this.#step.step_id
  }

  get stepName() {
    return this.#step.step_name
  }

  get handlerClass() {
    return this.#step.handler_class
  }

  /** The number of failed attempts before this one. */
  get attempt() {
    return this.#step.metadata.attempt
  }

  get retryLimit() {
    return this.#step.metadata.retry_limit
  }

  get delivery() {
    return this.#step.delivery
  }

  get deliveryMode() {
    return this.#step.delivery_mode
  }

  get idempotencyKey() {
    return this.#step.metadata.idempotency_key
  }

  get traceparent() {
    return this.#step.metadata.traceparent
  }

  /** The vendor part of the trace context. Pass it on together with `traceparent`. */
  get tracestate() {
    return this.#step.metadata.tracestate
  }

  /** True in a shadow run. The result is only compared, so the run must have no effects. */
  get isShadow() {
    return this.#step.metadata.shadow
  }

  /** The step's `handler_config`. */
  get config() {
    return this.#step.handler_config
  }

  /** The outputs of the steps that this step depends on, by step name. */
  get results() {
    return this.#step.previous_results
  }

  // -- time -----------------------------------------------------------------------------------------------------------

  /** Milliseconds until the timeout; Infinity without a timeout. */
  get remainingMs() {
    return Math.max(0, this.#timeoutAtMs - this.#clock())
  }

  /** The time of the timeout on the worker's own clock. */
  get deadlineMs() {
    return this.#timeoutAtMs
  }

  /** Milliseconds since the start of the run. */
  get elapsedMs() {
    return Math.max(0, this.#clock() - this.#startedMs)
  }

  // -- stop -----------------------------------------------------------------------------------------------------------

  /** True when the run should stop. Also correct in a loop that never returns to the event loop. */
  get cancelled() {
    return this.cancelReason !== null
  }

  /** Why the run should stop: timeout, task_cancelled, superseded, shutdown, …; null while it may go on. */
  get cancelReason() {
    return this.#flags.stopReason()
  }

  /** True if the broker may now run the step on another worker. For information: it stops nothing. */
  get leaseLost() {
    return this.#flags.isLeaseLost()
  }

  /** The same as `cancelled`, as an AbortSignal: pass it to `fetch`, timers and other calls. */
  get signal() {
    if (this.#controller === null) {
      this.#controller = new AbortController()
      const reason = this.cancelReason
      if (reason !== null) this.#controller.abort(new RunStopped(reason))
    }
    return this.#controller.signal
  }

  // -- reports --------------------------------------------------------------------------------------------------------

  /**
   * Report the progress of this run: `done` of `total`, and a short note for people.
   *
   * Calls are cheap: only the latest report of a run is sent, at most five times a second. A note with more than 200
   * characters is cut after 199, and ends with `…`; a note of a sealed step is not sent. Throws
   * ConfigurationError for anything but finite numbers.
   */
  progress(done, total = null, note = null) {
    for (const number of [done, total]) {
      if (number !== null && !(typeof number === 'number' && Math.abs(number) <= NUMBER_MAX)) {
        throw new ConfigurationError(`progress(${done}, ${total}): both must be finite numbers up to 2^53`)
      }
    }
    this.#report(done, total, note === null || this.#isSealed ? null : shortened(String(note), NOTE_CHARS_MAX))
  }

  /** A logger whose records carry the step's ids. Without a logger of the program, it writes to stderr from info on. */
  get log() {
    this.#log ??= new StepLogger(this.#logger, this.#step)
    return this.#log
  }

  get logger() {
    return this.log
  }

  // -- called by the SDK ----------------------------------------------------------------------------------------------

  /** The run begins now: it may have waited for a slot since this object was made. */
  static begin(context, startedMs, timeoutAtMs) {
    context.#startedMs = startedMs
    context.#timeoutAtMs = timeoutAtMs
  }

  /** The run was asked to stop: the flags have the reason already. */
  static stop(context) {
    const reason = context.cancelReason
    if (reason !== null && context.#controller !== null) context.#controller.abort(new RunStopped(reason))
  }
}
