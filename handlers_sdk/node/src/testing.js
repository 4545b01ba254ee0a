/**
 * Run a handler without a broker, in a unit test.
 *
 *     import * as testing from 'stepwire/testing'
 *
 *     const outcome = await testing.run(ship, { order_id: 7 }, { results: { pay: { transaction: 't1' } } })
 *     assert.equal(outcome.output.tracking, 'T7')
 */

import { randomBytes } from 'node:crypto'
import * as limits from './protocol/limits.js'
import { NEVER, Run, RunMemory } from './actions.js'
import { Edge } from './edge.js'
import { ConfigurationError } from './errors.js'
import { makeHandler } from './handler.js'
import { Clock } from './identity.js'
import { GIVE_BACK, HandlerCall } from './runners/calls.js'
import { findOffer } from './session/config.js'
import { Worker } from './worker/worker.js'

const OPTIONS = new Set([
  'handlerClass',
  'results',
  'config',
  'attempt',
  'deliveryMode',
  'timeoutMs',
  'idempotencyKey',
  'traceparent',
  'tracestate',
  'secrets',
  'logger',
  'signal',
])

/**
 * Run a handler once, with the decoding, encoding and mapping of errors of a worker. `handler` is the function, or a
 * Worker together with a `handlerClass`. An aborted `signal` asks the run to stop, as the cancelling of its task would.
 * `secrets` has the values of the secrets to which the input and the configuration refer.
 */
export async function run(handler, input = {}, options = {}) {
  for (const option of Object.keys(options)) {
    if (!OPTIONS.has(option)) {
      throw new ConfigurationError(`testing.run has no option ${option}; it has ${[...OPTIONS].join(', ')}`)
    }
  }
  const registered = find(handler, options.handlerClass)
  const timeoutMs = options.timeoutMs ?? limits.TIMEOUT_DEFAULT_MS
  const clock = new Clock()
  const nowMs = () => clock.nowMs()
  const memory = new RunMemory()
  const lease = memory.newLease()
  lease.untilMs = nowMs() + 2 * timeoutMs + 60_000
  const step = stepOf(registered, input, { ...options, timeoutMs })
  const run = new Run(memory, [step.step_id, step.delivery], step, 0, lease, timeoutMs || NEVER, NEVER)
  const progress = []
  const call = new HandlerCall({
    memory,
    index: run.index,
    step,
    offer: 0,
    handler: registered,
    timeoutMs: timeoutMs || NEVER,
    deadlineMs: NEVER,
    runner: {
      clock: nowMs,
      logger: options.logger ?? null,
      report: (_, done, total, note) => progress.push({ done, total, note }),
    },
    edge: new Edge(resolverOf(options.secrets)),
  })
  const stop = (reason) => {
    run.requestStop(reason)
    call.stop()
  }
  const onAbort = () => stop('task_cancelled')
  options.signal?.addEventListener('abort', onAbort)
  if (options.signal?.aborted) onAbort()
  const timer = timeoutMs > 0 ? setTimeout(() => stop('timeout'), timeoutMs) : undefined
  call.begin(nowMs())
  try {
    const outcome = await call.run()
    if (outcome === GIVE_BACK) throw new Error('only a run that a shutdown stops gives its step back')
    if (typeof outcome === 'string') return { status: 'completed', output: JSON.parse(outcome), error: null, progress }
    return { status: outcome.status, output: null, error: errorOf(outcome.error), progress }
  } finally {
    call.end()
    clearTimeout(timer)
    options.signal?.removeEventListener('abort', onAbort)
  }
}

function resolverOf(secrets) {
  if (secrets === undefined || secrets === null) return null
  return (name) => (Object.hasOwn(secrets, name) ? secrets[name] : null)
}

function find(handler, handlerClass) {
  if (!(handler instanceof Worker)) {
    return makeHandler(handlerClass ?? 'tested', {}, handler)
  }
  if (handlerClass === undefined) {
    throw new ConfigurationError('testing.run(worker, …) needs handlerClass, the handler to run')
  }
  const { handlers } = handler
  const offer = findOffer(
    handlers.map((each) => each.offer),
    handlerClass,
  )
  if (offer === null) {
    const offered = handlers.map((each) => each.name).join(', ') || 'nothing'
    throw new ConfigurationError(`the worker does not offer '${handlerClass}'; it offers ${offered}`)
  }
  return handlers[offer]
}

/** The step as a broker would send it: everything is read from its JSON. */
function stepOf(handler, input, options) {
  return JSON.parse(
    JSON.stringify({
      step_id: 2,
      task_id: 1,
      step_name: 'step',
      handler_class: options.handlerClass ?? handler.name,
      handler_config: options.config ?? {},
      task_context: input,
      previous_results: options.results ?? {},
      delivery: 1,
      delivery_mode: options.deliveryMode ?? 'at_least_once',
      metadata: {
        attempt: options.attempt ?? 0,
        retry_limit: 3,
        timeout_ms: options.timeoutMs,
        idempotency_key: options.idempotencyKey ?? `${randomBytes(16).toString('hex')}/step`,
        traceparent: options.traceparent ?? null,
        tracestate: options.tracestate ?? null,
        shadow: false,
      },
    }),
  )
}

/** The error as a broker would receive it, with every member. */
function errorOf(error) {
  const { message = '', code = null, category = null, retryable = null } = error
  return {
    message,
    code,
    category,
    retryable,
    retry_after_ms: error.retry_after_ms ?? null,
    backtrace: error.backtrace ?? null,
  }
}
