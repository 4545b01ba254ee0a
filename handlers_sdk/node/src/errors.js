/**
 * Every exception of the SDK. All of them are a `StepwireError`.
 *
 *     StepwireError
 *     ├── ConfigurationError      a worker or handler cannot be set up like this
 *     └── StepError               thrown by handlers: the step failed
 *         ├── Permanent           the step failed, and a retry cannot help
 *         ├── Retry               the step failed, and may be retried after a pause
 *         └── OutcomeUnknown      the handler cannot know whether the step had its effect
 *
 * A handler may throw anything. An ordinary error is a failure that the step's policy may retry; a StepError is more
 * precise.
 */

export const OUTCOME_UNKNOWN = 'outcome_unknown'
const RETRY_AFTER_MAX_S = 10 * 365 * 86_400

/** Base of every error that Stepwire defines. */
export class StepwireError extends Error {
  constructor(message = '', options = undefined) {
    super(message, options)
    this.name = new.target.name
  }
}

const OWN_FRAME = new RegExp(`^ +at .*${new URL('.', import.meta.url).href}`)

/**
 * A worker or handler cannot be set up as requested. The message names the setting at fault. The stack begins at the
 * program's own line: the sentence says what to do there.
 */
export class ConfigurationError extends StepwireError {
  constructor(message = '', options = undefined) {
    super(message, options)
    const lines = String(this.stack).split('\n')
    this.stack = [`${this.name}: ${message}`, ...lines.slice(1).filter((line) => !OWN_FRAME.test(line))].join('\n')
  }
}

/** The step failed, with a code from the handler. The step's policy decides about a retry, as for any error. */
export class StepError extends StepwireError {
  constructor(message = '', { code = null, category = null, cause = undefined } = {}) {
    super(message, cause === undefined ? undefined : { cause })
    this.code = code
    this.category = category
    this.retryable = true
  }
}

/** The step failed, and a retry cannot help: a declined card, an address that does not exist. */
export class Permanent extends StepError {
  constructor(message = '', options = {}) {
    super(message, options)
    this.retryable = false
  }
}

/** The step failed, and must not be retried before `after` seconds. */
export class Retry extends StepError {
  /**
   * @param {string} message
   * @param {{ after?: number, code?: string, category?: string, cause?: unknown }} options
   */
  constructor(message = '', { after = undefined, ...options } = {}) {
    super(message, options)
    if (!(typeof after === 'number' && after >= 0 && after <= RETRY_AFTER_MAX_S)) {
      throw new ConfigurationError(`Retry with after: ${after}: seconds, 0 or more, at most ten years`)
    }
    this.afterMs = Math.trunc(after * 1000)
  }
}

/**
 * The effect may or may not have happened, and the handler cannot find out.
 *
 * The broker retries an at_least_once step, and holds an at_most_once step for an operator.
 */
export class OutcomeUnknown extends StepError {
  constructor(message = '', { category = null, cause = undefined } = {}) {
    super(message, { code: OUTCOME_UNKNOWN, category, cause })
    this.retryable = null
  }
}
