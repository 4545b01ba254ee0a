/** Stacks of handlers: they begin at the handler's own code, and leave out the frames of the SDK and of Node. */

import { fileURLToPath } from 'node:url'
import { redact } from './redaction.js'
import { clean } from './texts.js'

const BACKTRACE_BYTES_MAX = 8192
const LINE_CHARS_MAX = 1000
const MESSAGE_LINES_MAX = 20 // lines of the error's own text; the frames need the rest
const CAUSES_MAX = 5

const SDK = fileURLToPath(new URL('.', import.meta.url))
const FRAME = /^\s+at /

/** The type of a thrown value: the name of its class. */
export function typeOf(error) {
  try {
    if (!(error instanceof Error)) return typeof error === 'object' && error !== null ? className(error) : typeof error
    return error.name && error.name !== 'Error' ? String(error.name) : className(error)
  } catch {
    return 'Error'
  }
}

const className = (value) => value.constructor?.name || 'Object'

/** The text of a thrown value; empty if its own method throws. */
export function textOf(error) {
  try {
    return error instanceof Error ? String(error.message) : String(error)
  } catch {
    return ''
  }
}

/** The type and the text of a thrown value: `TypeError: x is not a function`. */
export function summary(error) {
  const text = textOf(error)
  return text === '' ? typeOf(error) : `${typeOf(error)}: ${text}`
}

/** The lines of the stack. At most 8 KiB: the first lines, because Node writes the innermost frames first. */
export function backtrace(error) {
  const lines = []
  for (let each = error, n = 0; each instanceof Error && n < CAUSES_MAX; each = each.cause, n++) {
    const message = redact(summary(each)).split('\n')
    if (n > 0) message[0] = `Caused by: ${message[0]}`
    lines.push(...message.slice(0, MESSAGE_LINES_MAX))
    if (message.length > MESSAGE_LINES_MAX) lines.push(`… (${message.length - MESSAGE_LINES_MAX} more lines)`)
    lines.push(...framesOf(each))
  }
  return first(lines.map((line) => clean(line, LINE_CHARS_MAX)))
}

function framesOf(error) {
  let stack
  try {
    stack = redact(String(error.stack ?? ''))
  } catch {
    return []
  }
  return stack
    .split('\n')
    .filter((line) => FRAME.test(line))
    .filter((line) => !line.includes(SDK) && !line.includes('(node:') && !line.includes('at node:'))
    .map((line) => line.replace('file://', ''))
}

/** The first lines that fit into the limit, above a line with the number of the others. */
function first(lines) {
  let left = BACKTRACE_BYTES_MAX - 64 // for that line
  let kept = 0
  for (const line of lines) {
    left -= Buffer.byteLength(line) + 1
    if (left < 0) break
    kept += 1
  }
  return kept === lines.length ? lines : [...lines.slice(0, kept), `… (${lines.length - kept} more lines)`]
}
