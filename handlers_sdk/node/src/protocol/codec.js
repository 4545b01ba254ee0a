/** Decodes frames into messages, and encodes messages into text. No other module handles the bytes. */

import * as buffer from 'node:buffer'
import * as limits from './limits.js'
import * as strictJson from './strict_json.js'
import { InvalidMessage } from './errors.js'
import { readBroker, remainsOf } from './messages.js'

const SPACE = 0x20
const fatal = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** Split a frame into [topic with its space, JSON]; null if it has no space. The JSON starts after the first space. */
export function split(frame) {
  const end = frame.indexOf(SPACE) + 1
  return end === 0 ? null : [frame.toString('latin1', 0, end), frame.subarray(end)]
}

/** Decode a level-1 message of a broker. Throws InvalidMessage. */
export function decodeBroker(body) {
  const text = textOf(body)
  const { value, floats } = strictJson.parse(text)
  const message = readBroker(value, floats)
  if (message.type === 'steps') noteSource(message.steps, text)
  return message
}

/** Note where each step was read: the text is passed on to the handlers' thread, which reads it once more. */
function noteSource(steps, text) {
  const source = { text, steps: steps.length }
  steps.forEach((step, position) => {
    step.source = source
    step.position = position
  })
}

/** What can be read of a `steps` message that decodeBroker refuses: {broker, session, batch_id, items}, or null. */
export function decodeRemains(body) {
  try {
    const { value, floats } = strictJson.parseLeniently(textOf(body))
    return remainsOf(value, floats)
  } catch {
    return null
  }
}

function textOf(body) {
  if (buffer.isUtf8?.(body) ?? false) return body.toString('utf8')
  try {
    return fatal.decode(body)
  } catch {
    throw new InvalidMessage('not_utf8', 'the JSON is not UTF-8')
  }
}

/**
 * The JSON of a worker's message: compact, members in the order of SPEC.md, those at their default omitted. `members`
 * are the members after `type`, `v` and `worker`; the session writes them in this order.
 */
export function encode(type, worker, members) {
  const message = { type, v: limits.PROTOCOL_LEVEL_1, worker }
  const defaults = DEFAULTS[type] ?? {}
  for (const key in members) {
    if (!(key in defaults) || !isDefault(members[key], defaults[key])) message[key] = members[key]
  }
  return JSON.stringify(message)
}

const EMPTY = 'empty'
const DEFAULTS = {
  hello: {
    next: EMPTY,
    sessions: EMPTY,
    shadow_safe: EMPTY,
    labels: EMPTY,
    prefetch: 0,
    free: EMPTY,
    slots_free: EMPTY,
    holding: EMPTY,
    heartbeat_ms: limits.HEARTBEAT_MS,
    lang: '',
    sdk: '',
    handler_version: '',
    host: '',
    pid: 0,
    pid_started: 0,
    proof: false,
    max_message_bytes: limits.MESSAGE_BYTES_MAX,
  },
  heartbeat: { next: EMPTY, sessions: EMPTY, free: EMPTY, slots_free: EMPTY, holding: EMPTY },
  bye: { n: 0, drain: true },
  accept: { slots_free: null },
  refuse: { free: 0, slots_free: null },
}

function isDefault(value, standard) {
  if (standard !== EMPTY) return value === standard
  return Array.isArray(value) ? value.length === 0 : Object.keys(value).length === 0
}

/**
 * The JSON of the result of a completed step. `output` is JSON already, and so is `versionJson`, the version of its
 * handler: 'null' if it has none.
 */
export function encodeCompleted(stepId, delivery, output, tookMs, versionJson) {
  const version = versionJson === 'null' ? '' : `,"handler_version":${versionJson}`
  return (
    `{"step_id":${stepId},"delivery":${delivery},"status":"completed","output":${output},"error":null,` +
    `"metadata":{"execution_time_ms":${Math.round(tookMs * 1000) / 1000}${version}}}`
  )
}

/** The JSON of one result, which may have it already as `text`. `output` is JSON already. */
export function encodeResult(result) {
  if (result.text !== undefined) return result.text
  const error = result.error === null ? 'null' : encodeWithout(result.error, ERROR)
  const metadata = result.metadata === null ? 'null' : encodeWithout(result.metadata, METADATA)
  return (
    `{"step_id":${result.step_id},"delivery":${result.delivery},"status":"${result.status}",` +
    `"output":${result.output},"error":${error},"metadata":${metadata}}`
  )
}

const ERROR = ['message', 'code', 'category', 'retryable', 'retry_after_ms', 'backtrace']
const METADATA = ['execution_time_ms', 'handler_version', 'retryable', 'stderr']

function encodeWithout(from, keys) {
  let members = ''
  for (const key of keys) {
    const value = from[key]
    if (value === undefined || value === null || (key === 'message' && value === '')) continue
    members += `${members === '' ? '' : ','}"${key}":${JSON.stringify(value)}`
  }
  return `{${members}}`
}

/** The JSON of a results message, whose results are JSON already. */
export function encodeResults(worker, head, results) {
  const { session, deployment, batch_id: batch, rid, n, free, slots_free: slotsFree } = head
  const v = limits.PROTOCOL_LEVEL_1
  return (
    `{"type":"results","v":"${v}","worker":"${worker}","session":"${session}","deployment":${JSON.stringify(deployment)},` +
    `"batch_id":${JSON.stringify(batch)},"protocol_version":"${v}","rid":${rid}${n === 0 ? '' : `,"n":${n}`}` +
    `${free === null ? '' : `,"free":${free}`}${slotsFree === null ? '' : `,"slots_free":${slotsFree}`}` +
    `,"results":[${results.join(',')}]}`
  )
}
