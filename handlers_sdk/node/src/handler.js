/** A registered handler, and the results that are made of its return values and errors. */

import * as limits from './protocol/limits.js'
import * as strictJson from './protocol/strict_json.js'
import { InvalidMessage } from './protocol/errors.js'
import * as errors from './errors.js'
import { ConfigurationError, OUTCOME_UNKNOWN, Retry, StepError } from './errors.js'
import { Offer } from './session/config.js'
import { clean } from './texts.js'
import { backtrace, summary, textOf, typeOf } from './tracebacks.js'

const CODE_CHARS_MAX = 128
const NAME = /^[A-Za-z0-9_.:*-]{1,128}$/
const OPTIONS = new Set(['concurrency', 'timeoutMs', 'shadowSafe', 'version', 'input'])
/** @type {Set<unknown>} */
const OWN_ERRORS = new Set(Object.values(errors))
const OUTPUT_DEPTH_MAX = limits.DEPTH_MAX - 3 // message, list of results, result

/** A function with its settings. */
export class Handler {
  constructor(name, options, run) {
    this.run = run
    this.offer = new Offer(name, options)
    this.version = options.version ?? null
    this.versionJson = JSON.stringify(this.version)
    this.read = readerOf(name, options.input)
  }

  get name() {
    return this.offer.pattern
  }
}

/** Make a handler of a function. Throws ConfigurationError for faults that would otherwise only show at run time. */
export function makeHandler(name, options, run) {
  const subject = `handler '${name}'`
  if (typeof name !== 'string' || !NAME.test(name)) {
    throw new ConfigurationError(
      `handler name '${name}': it needs 1 to 128 letters, digits, _ . : - and, for patterns, *`,
    )
  }
  if (typeof run !== 'function') {
    throw new ConfigurationError(`${subject}: write worker.handle('${name}', async (input, ctx) => …)`)
  }
  for (const option of Object.keys(options)) {
    if (!OPTIONS.has(option)) {
      throw new ConfigurationError(`${subject} has no option ${option}; it has ${[...OPTIONS].join(', ')}`)
    }
  }
  for (const option of ['concurrency', 'timeoutMs']) {
    const value = options[option]
    if (value !== undefined && value !== null && !(Number.isInteger(value) && value >= 1)) {
      throw new ConfigurationError(`${subject}: ${option} is ${value}: it needs to be at least 1`)
    }
  }
  return new Handler(name, options, run)
}

/** The function that checks an input: the option is a function, or a schema with `parse` or of "Standard Schema". */
function readerOf(name, input) {
  if (input === undefined || input === null) return null
  if (typeof input === 'function') return input
  if (typeof input.parse === 'function') return (value) => input.parse(value)
  if (typeof input['~standard']?.validate === 'function') return (value) => readStandard(input['~standard'], value)
  throw new ConfigurationError(
    `handler '${name}': input needs to be a function, or a schema with a method parse or with '~standard'`,
  )
}

function readStandard(schema, value) {
  const read = schema.validate(value)
  if (read instanceof Promise) throw new TypeError('the schema is asynchronous, and only a synchronous one works here')
  if (read.issues !== undefined) throw new TypeError(read.issues.map((issue) => issue.message).join('; '))
  return read.value
}

/** The input as the handler receives it. Throws what the option `input` throws. */
export function readInput(handler, step) {
  const value = 'input' in step ? step.input : step.task_context
  return handler.read === null ? value : handler.read(value)
}

/** The result of a handler that was not called, because its option `input` refuses the input. */
export function badInput(handler, step, fault) {
  const text = `the input of '${step.step_name}' does not fit handler '${handler.name}': ${textOf(fault)}`
  return result('error', { message: clean(text), code: 'bad_input', retryable: false }, {})
}

/** The result of a handler that was not called, because this worker cannot open the step. A retry may succeed. */
export function notOpened(code, text, category) {
  return result('error', { message: clean(text), code, category, retryable: true }, {})
}

/** The result of a handler that threw. */
export function failed(handler, error, tookMs) {
  return result('failed', detailOf(error), metadataOf(handler, tookMs))
}

/**
 * The message of an unexpected error begins with its type: `nope` alone would not explain a TypeError. A StepError's
 * message is the handler's own sentence, and a subclass of the handler's own names its code.
 */
function detailOf(error) {
  if (!(error instanceof StepError)) {
    return { message: clean(summary(error)), code: clean(typeOf(error), CODE_CHARS_MAX), backtrace: backtrace(error) }
  }
  const ownName = OWN_ERRORS.has(error.constructor) ? null : error.constructor.name
  const code = error.code ?? ownName
  return {
    message: clean(textOf(error) || typeOf(error)),
    code: code ? clean(code, CODE_CHARS_MAX) : null,
    category: error.category ? clean(error.category, CODE_CHARS_MAX) : null,
    retryable: error.retryable,
    retry_after_ms: error instanceof Retry ? error.afterMs : null,
  }
}

/** The result of a run that stopped because of a timeout or a cancel. */
export function stopped(handler, step, reason, tookMs) {
  const isTimeout = reason === 'timeout'
  const message = isTimeout ? 'the run exceeded its timeout' : `the run was cancelled: ${reason}`
  const code = step.delivery_mode === 'at_most_once' ? OUTCOME_UNKNOWN : isTimeout ? 'timeout' : 'cancelled'
  return result('failed', { message, code }, metadataOf(handler, tookMs))
}

/** The result of a handler that returned what is no JSON. */
export function badOutput(handler, step, fault, tookMs) {
  const text = `the output of '${handler.name}' cannot be sent as JSON: ${fault.message}`
  const metadata = metadataOf({ version: null }, tookMs)
  if (step.delivery_mode === 'at_most_once') {
    return result('error', { message: clean(`bad_output: ${text}`), code: OUTCOME_UNKNOWN }, metadata)
  }
  return result('error', { message: clean(text), code: 'bad_output', retryable: false }, metadata)
}

/** The metadata of a result. The time is rounded to microseconds: brokers would check more digits as a long integer. */
export function metadataOf(handler, tookMs) {
  return { execution_time_ms: Math.round(tookMs * 1000) / 1000, handler_version: handler.version }
}

const result = (status, error, metadata) => ({ status, output: 'null', error, metadata })

// -- the output -------------------------------------------------------------------------------------------------------

const SUSPECT = /[:[,]-?\d{16}|^-?\d{16}|\\u(?:0000|d[89a-f])/

/**
 * The output as JSON. Throws TypeError with advice for what JSON, another language or a database cannot represent.
 */
export function encodeOutput(value) {
  if (value === undefined || value === null) return 'null'
  check(value, 1)
  const text = JSON.stringify(value)
  if (text.includes('null')) JSON.stringify(value, refuseNaN) // in whose place JSON.stringify writes null
  if (SUSPECT.test(text)) checkText(text)
  return text
}

function refuseNaN(_key, member) {
  if (typeof member === 'number' && !Number.isFinite(member)) throw new TypeError(OUTPUT_FAULTS.not_a_number)
  return member
}

/** Refuse what JSON.stringify would leave out, write as {}, or refuse in words of its own. */
function check(value, depth) {
  switch (typeof value) {
    case 'bigint':
      throw new TypeError(
        value > Number.MAX_SAFE_INTEGER || value < Number.MIN_SAFE_INTEGER
          ? OUTPUT_FAULTS.integer_out_of_range
          : `it holds a BigInt (${value}n), which has no form in JSON: return Number(id), or String(id)`,
      )
    case 'function':
    case 'symbol':
      throw new TypeError(`it holds a value of the type ${typeof value}, which has no form in JSON: return plain data`)
  }
  if (typeof value !== 'object' || value === null || typeof value.toJSON === 'function') return
  if (depth > OUTPUT_DEPTH_MAX) {
    throw new TypeError(`it is nested deeper than ${OUTPUT_DEPTH_MAX}, or contains itself: return flatter data`)
  }
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++)
      if (value[i] !== null && !isPlain[typeof value[i]]) check(value[i], depth + 1)
    return
  }
  const prototype = Object.getPrototypeOf(value)
  if (prototype !== Object.prototype && prototype !== null) checkClass(value)
  for (const key in value) {
    const member = value[key]
    if (member !== null && !isPlain[typeof member]) check(member, depth + 1)
  }
}

const isPlain = { string: true, number: true, boolean: true, undefined: true }

/** @type {[Function, string][]} */
const ADVICE = [
  [Map, 'return Object.fromEntries(map)'],
  [Set, 'return [...set]'],
  [Promise, 'await it'],
  [WeakMap, 'return plain data'],
  [WeakSet, 'return plain data'],
  [ArrayBuffer, "return text, Buffer.from(data).toString('base64')"],
  [Error, 'throw it, or return its message'],
]

function checkClass(value) {
  let advice = ADVICE.find(([kind]) => value instanceof kind)?.[1]
  if (ArrayBuffer.isView(value)) advice = 'return a list, or text in base64'
  if (advice !== undefined) {
    throw new TypeError(`it holds a value of the type ${value.constructor.name}, which has no form in JSON: ${advice}`)
  }
  if (typeof value.next === 'function' && typeof value[Symbol.iterator] === 'function') {
    throw new TypeError('the handler returns a generator: return a value, for example a list')
  }
}

/** The strict check is slow. It runs only for suspect outputs: long numbers, U+0000, half of a surrogate pair. */
function checkText(text) {
  try {
    strictJson.parse(`[${text}]`)
  } catch (refusal) {
    if (!(refusal instanceof InvalidMessage)) throw refusal
    throw new TypeError(OUTPUT_FAULTS[refusal.code] ?? refusal.message)
  }
}

const OUTPUT_FAULTS = {
  not_a_number: 'it holds NaN or Infinity, which JSON does not have: return null instead',
  integer_out_of_range: 'it holds an integer outside ±(2^53 - 1): return it as text',
  nul_character: 'it holds U+0000, which databases cannot store: remove it, or return the text as Base64',
  lone_surrogate: 'it holds half of a surrogate pair: return well-formed text, or Base64',
}
