/**
 * Removes the values of secrets from texts that leave this process: errors, stacks, progress and log records.
 *
 * The values of all secrets that this process has resolved count, whichever run a text comes from.
 */

export const VALUES_MAX = 1_000 // the latest resolved values; earlier ones are forgotten
const LINE_CHARS_MIN = 4 // of one line of a value with several lines
export const OUTPUT_CHARS_MIN = 8 // of a value that is removed from an output: a shorter one may be part of any data

const LINE_ENDS = /\r\n|[\n\r\v\f\u001c-\u001e\u0085\u2028\u2029]/ // eslint-disable-line no-control-regex
const FACTS_DEPTH_MAX = 8
const ESCAPES = { '\\': '\\\\', '"': '\\"', '\n': '\\n', '\r': '\\r', '\t': '\\t' }

/** The number of characters, as other languages count them. */
export const lengthOf = (text) => [...text].length

/** The texts in which a value occurs: itself, its lines, and both as a JSON string has them. */
export function formsOf(value) {
  const lines = value.split(LINE_ENDS).map((line) => line.trim())
  if (lines.at(-1) === '') lines.pop()
  const plain = new Set([value, value.trim()])
  if (lines.length > 1) for (const line of lines) if (lengthOf(line) >= LINE_CHARS_MIN) plain.add(line)
  const forms = new Set()
  for (const text of plain) if (text !== '') forms.add(text).add(escaped(text))
  return forms
}

const escaped = (text) => text.replace(/[\\"\n\r\t]/g, (character) => ESCAPES[character])

/** The values to remove, and what replaces each: `[secret stripe/live]`. */
export class Redactor {
  constructor() {
    this.names = new Map() // by value, the latest last
    this.ofForm = new Map()
    this.pattern = null
  }

  get isActive() {
    return this.pattern !== null
  }

  /** Remove this value from now on. A value that was added again counts as the latest. */
  add(name, value) {
    if (value === '' || this.names.get(value) === name) return
    this.names.delete(value)
    this.names.set(value, name)
    while (this.names.size > VALUES_MAX) this.names.delete(this.names.keys().next().value)
    this.ofForm = new Map()
    for (const [known, of] of this.names) for (const form of formsOf(known)) this.ofForm.set(form, of)
    const longestFirst = [...this.ofForm.keys()].sort((a, b) => b.length - a.length)
    this.pattern = new RegExp(longestFirst.map(literally).join('|'), 'g')
  }

  /** The text with the names of secrets in the place of their values. */
  redact(text) {
    return this.pattern === null ? text : text.replace(this.pattern, (form) => `[secret ${this.ofForm.get(form)}]`)
  }

  /** A copy of a decoded JSON value without the secrets' values in its strings and keys. */
  redacted(value) {
    if (typeof value === 'string') return this.redact(value)
    if (typeof value !== 'object' || value === null) return value
    if (Array.isArray(value)) return value.map((inner) => this.redacted(inner))
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [this.redact(key), this.redacted(inner)]))
  }
}

const literally = (text) => text.replace(/[.*+?^${}()|[\]\\/-]/g, '\\$&')

const ofProcess = new Redactor() // everything that this process has resolved

/** The text without the values of all secrets that this process has resolved. */
export const redact = (text) => ofProcess.redact(text)

/** Remove these values, by the names of their secrets, from all texts of this process from now on. */
export function remember(values) {
  for (const [name, value] of values) ofProcess.add(name, value)
}

/** The facts of a log record without values of secrets: strings, also in lists, plain objects and errors. */
export function redactedFacts(facts) {
  return ofProcess.isActive ? withoutValues(facts, 0) : facts
}

function withoutValues(value, depth) {
  if (typeof value === 'string') return redact(value)
  if (typeof value !== 'object' || value === null) return value
  if (value instanceof Error) return redactedError(value)
  if (depth >= FACTS_DEPTH_MAX) return '…'
  if (Array.isArray(value)) return value.map((inner) => withoutValues(inner, depth + 1))
  const prototype = Object.getPrototypeOf(value)
  if (prototype !== Object.prototype && prototype !== null) return withoutValues(plain(value), depth + 1)
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [redact(key), withoutValues(inner, depth + 1)]))
}

/** An object of a class as a logger would print it: its own text could hold a value anywhere. */
function plain(value) {
  try {
    return JSON.parse(JSON.stringify(value)) ?? String(value)
  } catch {
    return '…'
  }
}

/** An error with the same name, message and stack, and nothing else: a logger would print every member of it. */
function redactedError(error) {
  const copy = new Error(redact(String(error.message)))
  copy.name = error.name
  copy.stack = redact(String(error.stack ?? ''))
  return copy
}
