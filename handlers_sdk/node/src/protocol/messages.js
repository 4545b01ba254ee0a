/**
 * The messages of a broker, checked member by member: each reader returns an object with the members of
 * protocol/SPEC.md section 6, every absent one at its default, and without unknown members. Throws InvalidMessage.
 */

import * as limits from './limits.js'
import * as topics from './topics.js'
import { InvalidMessage } from './errors.js'

const DELIVERY_MODES = new Set(['at_least_once', 'at_most_once'])
const CANCEL_REASONS = new Set(['not_granted', 'timeout', 'task_cancelled', 'superseded'])
const RESET_CODES = new Set(['unknown_session', 'expired', 'version', 'unauthorized', 'shutdown'])

/** Reads the members of one message. `floats`: see strict_json.js. */
class Reader {
  constructor(floats) {
    this.floats = floats
  }

  fail(key, what) {
    throw new InvalidMessage('bad_field', `'${key}' ${what}`)
  }

  text(from, key) {
    const value = from[key]
    if (typeof value !== 'string') this.fail(key, value === undefined ? 'is missing' : 'must be text')
    return value
  }

  textOrNull(from, key, longest = Infinity) {
    const value = from[key]
    if (value === undefined || value === null) return null
    if (typeof value !== 'string') this.fail(key, 'must be text or null')
    if (value.length > longest) this.fail(key, `must have at most ${longest} characters`)
    return value
  }

  matching(from, key, pattern) {
    const value = this.text(from, key)
    if (!pattern.test(value)) this.fail(key, `must match the pattern ${pattern.source}`)
    return value
  }

  oneOf(from, key, values) {
    const value = this.text(from, key)
    if (!values.has(value)) this.fail(key, `must be one of ${[...values].join(', ')}`)
    return value
  }

  flag(from, key) {
    const value = from[key]
    if (value === undefined) return false
    if (typeof value !== 'boolean') this.fail(key, 'must be true or false')
    return value
  }

  count(from, key, least = 0) {
    const value = from[key]
    if (value === undefined) this.fail(key, 'is missing')
    if (!Number.isSafeInteger(value) || value < least || this.isFloat(from, key)) {
      this.fail(key, `must be a whole number of at least ${least}`)
    }
    return value
  }

  id(from, key) {
    return this.count(from, key, 1)
  }

  countOrNull(from, key) {
    const value = from[key]
    return value === undefined || value === null ? null : this.count(from, key)
  }

  /** An integer is written without fraction or exponent: 8127.0 is a float. */
  isFloat(from, key) {
    return this.floats.size > 0 && this.floats.get(from)?.has(key) === true
  }

  object(from, key) {
    const value = from[key]
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      this.fail(key, value === undefined ? 'is missing' : 'must be an object')
    }
    return value
  }

  list(from, key, read, longest = Infinity) {
    const value = from[key]
    if (!Array.isArray(value)) this.fail(key, value === undefined ? 'is missing' : 'must be a list')
    if (value.length > longest) this.fail(key, `must have at most ${longest} items`)
    return value.map((_, i) => read(value, i))
  }

  items(from) {
    return this.list(
      from,
      'items',
      (list, i) => {
        const item = list[i]
        if (!Array.isArray(item) || item.length !== 2) this.fail('items', 'must be a list of [step_id, delivery]')
        return [this.id(item, 0), this.id(item, 1)]
      },
      limits.BATCH_ITEMS_MAX,
    )
  }

  endpoints(list, i) {
    const entry = this.object(list, i)
    return {
      broker: this.text(entry, 'broker'),
      steps: this.text(entry, 'steps'),
      results: this.text(entry, 'results'),
      server_key:
        entry.server_key === undefined || entry.server_key === null
          ? null
          : this.matching(entry, 'server_key', topics.CURVE_KEY_PATTERN),
    }
  }

  /** By plain names first: a check that reads members by variable names takes several times as long. */
  step(list, i) {
    const step = this.object(list, i)
    if (this.floats.size > 0 || !isStep(step)) this.checkStep(step)
    const { metadata } = step
    const read = {
      step_id: step.step_id,
      task_id: step.task_id,
      step_name: step.step_name,
      handler_class: step.handler_class,
      handler_config: step.handler_config === undefined ? {} : step.handler_config,
      task_context: step.task_context === undefined ? {} : step.task_context,
      previous_results: step.previous_results === undefined ? {} : step.previous_results,
      delivery: step.delivery,
      delivery_mode: step.delivery_mode ?? 'at_least_once',
      metadata: {
        attempt: metadata.attempt,
        retry_limit: metadata.retry_limit,
        timeout_ms: metadata.timeout_ms,
        idempotency_key: metadata.idempotency_key,
        traceparent: metadata.traceparent ?? null,
        tracestate: metadata.tracestate ?? null,
        deadline_ms: metadata.deadline_ms ?? null,
        shadow: metadata.shadow ?? false,
      },
      source: null, // see codec.js
      position: 0,
    }
    if (step.input !== undefined) read.input = step.input
    return read
  }

  /** The same rules as `isStep`. Throws InvalidMessage with the member that breaks one. */
  checkStep(step) {
    const metadata = this.object(step, 'metadata')
    for (const key of ['step_id', 'task_id', 'delivery']) this.id(step, key)
    for (const key of ['step_name', 'handler_class']) this.text(step, key)
    if ('delivery_mode' in step) this.oneOf(step, 'delivery_mode', DELIVERY_MODES)
    for (const key of ['attempt', 'retry_limit', 'timeout_ms']) this.count(metadata, key)
    this.text(metadata, 'idempotency_key')
    this.textOrNull(metadata, 'traceparent')
    this.textOrNull(metadata, 'tracestate', limits.TRACESTATE_MAX)
    this.countOrNull(metadata, 'deadline_ms')
    this.flag(metadata, 'shadow')
  }
}

/** True if the members of this step certainly have their types. Without floats, a whole number is an integer. */
function isStep(step) {
  const { metadata } = step
  return (
    isId(step.step_id) &&
    isId(step.task_id) &&
    isId(step.delivery) &&
    typeof step.step_name === 'string' &&
    typeof step.handler_class === 'string' &&
    (step.delivery_mode === undefined || DELIVERY_MODES.has(step.delivery_mode)) &&
    typeof metadata === 'object' &&
    metadata !== null &&
    isCount(metadata.attempt) &&
    isCount(metadata.retry_limit) &&
    isCount(metadata.timeout_ms) &&
    typeof metadata.idempotency_key === 'string' &&
    isTextOrNull(metadata.traceparent) &&
    isTextOrNull(metadata.tracestate) &&
    (metadata.tracestate ?? '').length <= limits.TRACESTATE_MAX &&
    (metadata.deadline_ms === undefined || metadata.deadline_ms === null || isCount(metadata.deadline_ms)) &&
    (metadata.shadow === undefined || typeof metadata.shadow === 'boolean')
  )
}

const isId = (value) => Number.isSafeInteger(value) && value >= 1
const isTextOrNull = (value) => value === undefined || value === null || typeof value === 'string'
const isCount = (value) => Number.isSafeInteger(value) && value >= 0

const texts = (reader, from, key) => reader.list(from, key, (list, i) => reader.text(list, i))
const session = (reader, from) => reader.matching(from, 'session', topics.SESSION_PATTERN)

function batchId(reader, from) {
  const value = reader.text(from, 'batch_id')
  if (value.length < 1 || value.length > 128) reader.fail('batch_id', 'must have 1 to 128 characters')
  return value
}

/** By the type of the message: the members after `type`, `v`, `broker` and `epoch`. */
const READERS = {
  here: (reader, from) => ({
    deployment: reader.text(from, 'deployment'),
    versions: texts(reader, from, 'versions'),
  }),
  welcome: (reader, from) => ({
    session: session(reader, from),
    deployment: reader.text(from, 'deployment'),
    n: reader.count(from, 'n'),
    lease_ms: reader.id(from, 'lease_ms'),
    heartbeat_ms: reader.count(from, 'heartbeat_ms'),
    max_message_bytes: reader.id(from, 'max_message_bytes'),
    brokers: 'brokers' in from ? reader.list(from, 'brokers', (list, i) => reader.endpoints(list, i)) : [],
  }),
  heartbeat_ack: (reader, from) => ({
    session: session(reader, from),
    n: reader.count(from, 'n'),
    quiet: reader.flag(from, 'quiet'),
    quit: reader.flag(from, 'quit'),
    brokers:
      from.brokers === undefined || from.brokers === null
        ? null
        : reader.list(from, 'brokers', (list, i) => reader.endpoints(list, i)),
  }),
  steps: (reader, from) => ({
    session: session(reader, from),
    batch_id: batchId(reader, from),
    protocol_version: reader.text(from, 'protocol_version'),
    steps: reader.list(from, 'steps', (list, i) => reader.step(list, i)),
  }),
  go: (reader, from) => ({ session: session(reader, from), items: reader.items(from) }),
  cancel: (reader, from) => ({
    session: session(reader, from),
    items: reader.items(from),
    reason: reader.oneOf(from, 'reason', CANCEL_REASONS),
  }),
  ack: (reader, from) => ({ rids: reader.list(from, 'rids', (list, i) => reader.id(list, i)) }),
  adopt: (reader, from) => ({ session: session(reader, from), items: reader.items(from) }),
  reset: (reader, from) => ({
    next: reader.count(from, 'next'),
    code: reader.oneOf(from, 'code', RESET_CODES),
    versions: 'versions' in from ? texts(reader, from, 'versions') : [],
  }),
  refused: (reader, from) => ({
    code: reader.text(from, 'code'),
    message: reader.text(from, 'message'),
    refused: reader.textOrNull(from, 'refused'),
    rid: from.rid === undefined || from.rid === null ? null : reader.count(from, 'rid', -limits.INTEGER_MAX),
  }),
}

/** Read a parsed message. Throws InvalidMessage: the caller ignores `unknown_type`. */
export function readBroker(value, floats) {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new InvalidMessage('not_an_object', 'the JSON is not an object')
  }
  const reader = new Reader(floats)
  const type = reader.text(value, 'type')
  if (!Object.hasOwn(READERS, type)) throw new InvalidMessage('unknown_type', `type '${type.slice(0, 32)}'`)
  return {
    type,
    v: version(value),
    broker: reader.matching(value, 'broker', topics.BROKER_PATTERN),
    epoch: reader.count(value, 'epoch'),
    ...READERS[type](reader, value),
  }
}

const VERSION = new RegExp(`^${limits.PROTOCOL_LEVEL_1.split('.')[0]}\\.[0-9]{1,4}$`)

function version(from) {
  if (from.v === undefined) throw new InvalidMessage('missing_version', 'v is missing')
  if (typeof from.v !== 'string' || !VERSION.test(from.v)) {
    const shown = JSON.stringify(from.v).slice(0, 32)
    throw new InvalidMessage('unknown_version', `v is ${shown}, supported: ${limits.VERSIONS_SUPPORTED.join(', ')}`)
  }
  return from.v
}

/** The members of a `steps` message that a refusal needs, or null if one of them cannot be read. */
export function remainsOf(value, floats) {
  if (typeof value !== 'object' || value === null) return null
  const { type, broker, session: named, batch_id: batch, steps } = value
  if (type !== 'steps' || typeof broker !== 'string' || typeof named !== 'string' || typeof batch !== 'string')
    return null
  if (!Array.isArray(steps)) return null
  const items = []
  for (const step of steps) {
    if (!isItem(step, floats)) return null
    items.push([step.step_id, step.delivery])
  }
  return items.length > 0 ? { broker, session: named, batch_id: batch, items } : null
}

function isItem(step, floats) {
  if (typeof step !== 'object' || step === null) return false
  return ['step_id', 'delivery'].every(
    (key) => Number.isSafeInteger(step[key]) && step[key] >= 1 && !floats.get(step)?.has(key),
  )
}
