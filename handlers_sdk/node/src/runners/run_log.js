/**
 * The log lines of runs that end without an output: the events `run_failed` and `run_interrupted`. Also the warning
 * `loop_blocked`.
 *
 *     task 9 step 12 pay attempt 1 of 4 failed: TypeError: x is undefined
 *         at ship (/srv/worker.js:12:9) …
 *
 * An unexpected error is an error, with its stack. What a handler says on purpose is a warning of one line.
 */

import { Permanent, Retry, StepError } from '../errors.js'
import * as logs from '../logs.js'
import { plainWord } from '../protocol/sealed_payloads.js'
import { shortened } from '../texts.js'
import { backtrace, summary, typeOf } from '../tracebacks.js'

const TEXT_CHARS_MAX = 500 // the stack and the result have more

const REASONS = {
  timeout: 'exceeded its timeout and is asked to stop',
  task_cancelled: 'is asked to stop: the task was cancelled',
  not_granted: 'is asked to stop: the broker does not grant it',
  superseded:
    'is asked to stop: the broker has ended this run (its timeout, or a retry elsewhere); its result will not be used',
  shutdown: 'is asked to stop: the worker shuts down',
  lease_lost: 'continues without a broker: its result may come too late',
}
const EXPECTED = new Set(['task_cancelled', 'shutdown'])

/** Log the error of a handler; of a sealed step, only its type. */
export function thrown(logger, step, error, cancelReason, isSealed = false) {
  if (isSealed) {
    write(
      logger,
      'warning',
      'run_failed',
      step,
      `failed: ${plainWord(typeOf(error)) ?? 'Error'}; the text of the error is sealed`,
    )
    return
  }
  if (cancelReason !== null) {
    write(logger, 'info', 'run_failed', step, `ended after it was asked to stop (${cancelReason}): ${summary(error)}`)
    return
  }
  let text = `failed: ${summary(error)}`
  if (!(error instanceof StepError)) {
    write(logger, 'error', 'run_failed', step, text, error)
    return
  }
  if (error instanceof Retry) text += `; a retry may start after ${error.afterMs / 1000} s`
  else if (error instanceof Permanent) text += '; no retry'
  if (error.cause !== undefined) text += ` (caused by ${summary(error.cause)})`
  write(logger, 'warning', 'run_failed', step, text)
}

/** Log a failure that the SDK has found: input that does not fit, output that is not JSON, a result too large. */
export function notReported(logger, step, result, isSealed = false) {
  const text = isSealed ? 'the text of the error is sealed' : result.error.message
  write(logger, 'error', 'run_failed', step, `failed: ${result.error.code}: ${text}`)
}

/** Log that a run is asked to stop. A handler may ignore it, so the end of the run may never be logged. */
export function interrupted(logger, step, reason) {
  write(logger, EXPECTED.has(reason) ? 'info' : 'warning', 'run_interrupted', step, REASONS[reason])
}

/** Log that a handler blocks the event loop, on which all other handlers of the worker run. */
export function loopBlocked(logger, step, handler, blockedS) {
  const text =
    `delays all other steps: handler ${handler} has blocked the event loop for ${blockedS} s: ` +
    'await, or compute in a worker thread'
  write(logger, 'warning', 'loop_blocked', step, text)
}

function write(logger, level, event, step, text, error = undefined) {
  const attempt = `attempt ${step.metadata.attempt + 1} of ${step.metadata.retry_limit + 1}` // people count from 1
  const name = `task ${step.task_id} step ${step.step_id} ${step.step_name} ${attempt}`
  const line = `${name} ${shortened(text, TEXT_CHARS_MAX)}`
  if (logger !== null) {
    logs.write(logger, level, line, { event, ...logs.stepIds(step), ...(error !== undefined && { err: error }) })
    return
  }
  logs.write(null, level, error === undefined ? line : [line, ...backtrace(error).slice(1)].join('\n'))
}
