/**
 * Readable log lines on stderr, for programs that pass no logger of their own.
 *
 *     2026-11-19 10:03:15 INFO    task 9 step 12 pay: charged 12.50 EUR
 *
 * A logger is an object with the methods debug, info, warn and error, each called with a text and an object of facts:
 * `console` is one.
 */

import { writeSync } from 'node:fs'
import { isatty } from 'node:tty'
import { ConfigurationError } from './errors.js'
import { redactedFacts } from './redaction.js'
import { clean } from './texts.js'

const STDERR = 2
const WRITE_ATTEMPTS_MAX = 40 // a full pipe is tried again every 5 ms; after that, the line is dropped
const METHODS = { debug: 'debug', info: 'info', warning: 'warn', error: 'error' }
const COLOURS = { warning: '\u001b[33m', error: '\u001b[31m' }
const waiting = new Int32Array(new SharedArrayBuffer(4))

/** Write one record: with the program's logger, otherwise to stderr from `info` on. */
export function write(logger, level, text, facts, prefix = '') {
  if (logger !== null) {
    logger[METHODS[level]](text, redactedFacts(facts))
  } else if (level !== 'debug') {
    writeLine(format(level, prefix + text))
  }
}

/** The logger of a program, checked. */
export function checkLogger(logger) {
  if (logger === null || logger === undefined) return null
  for (const method of Object.values(METHODS)) {
    if (typeof logger[method] !== 'function') {
      throw new ConfigurationError(`the logger has no method ${method}: it needs debug, info, warn and error`)
    }
  }
  return logger
}

/** The ids of a step, for the facts of its log records. */
export function stepIds(step) {
  return {
    task_id: step.task_id,
    step_id: step.step_id,
    step_name: step.step_name,
    attempt: step.metadata.attempt,
    delivery: step.delivery,
  }
}

/** `task 9 step 12 pay: ` for a line of `ctx.log`. */
export function stepPrefix(step) {
  const attempt = step.metadata.attempt > 0 ? ` attempt ${step.metadata.attempt + 1}` : '' // people count from 1
  return `task ${step.task_id} step ${step.step_id} ${step.step_name}${attempt}: `
}

/** `ctx.log`: every record has the ids of the step. */
export class StepLogger {
  constructor(logger, step) {
    this.logger = logger
    this.step = step
  }

  debug(text, facts = undefined) {
    this.write('debug', text, facts)
  }

  info(text, facts = undefined) {
    this.write('info', text, facts)
  }

  warn(text, facts = undefined) {
    this.write('warning', text, facts)
  }

  error(text, facts = undefined) {
    this.write('error', text, facts)
  }

  write(level, text, facts) {
    const shown = clean(text, 8192)
    facts = redactedFacts(facts)
    if (this.logger !== null) write(this.logger, level, shown, { ...facts, ...stepIds(this.step) })
    else write(null, level, shown + asText(facts), {}, stepPrefix(this.step))
  }
}

/** Facts behind the text of a readable line: ` amount=12.5 currency=EUR`. */
function asText(facts) {
  if (facts === undefined || facts === null) return ''
  try {
    return Object.entries(facts)
      .map(([name, value]) => ` ${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
      .join('')
  } catch {
    return ''
  }
}

function format(level, text) {
  const isTerminal = isatty(STDERR)
  const now = new Date()
  const date = [now.getFullYear(), now.getMonth() + 1, now.getDate()].map((part) => String(part).padStart(2, '0'))
  const time = [now.getHours(), now.getMinutes(), now.getSeconds()].map((part) => String(part).padStart(2, '0'))
  let name = level.toUpperCase().padEnd(7)
  if (isTerminal && COLOURS[level] && !process.env.NO_COLOR) name = `${COLOURS[level]}${name}\u001b[0m`
  return `${isTerminal ? '' : `${date.join('-')} `}${time.join(':')} ${name} ${text}\n`
}

/** Write synchronously: a line of the sockets' thread must not wait for a handler that computes on the main thread. */
function writeLine(line) {
  let bytes = Buffer.from(line)
  for (let attempt = 0; bytes.length > 0 && attempt < WRITE_ATTEMPTS_MAX; attempt++) {
    try {
      bytes = bytes.subarray(writeSync(STDERR, bytes))
    } catch (error) {
      if (error.code !== 'EAGAIN') return // stderr is closed
      Atomics.wait(waiting, 0, 0, 5)
    }
  }
}
