/**
 * The handlers of the conformance worker: `protocol/conformance/CONTRACT.md` describes each of them.
 *
 * The program is `bin/conform`; `stepwire handler conform -- bin/conform` starts it and grades the SDK.
 */

import { openSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { OutcomeUnknown, Permanent, Retry, StepError } from './errors.js'

const CRASHED = 70

/** Register the handlers. Returns the worker. */
export function addHandlers(worker) {
  return worker
    .handle('conform.echo', (input) => input)
    .handle('conform.fail', fail)
    .handle('conform.crash', () => process.exit(CRASHED))
    .handle('conform.wait', wait)
    .handle('conform.compute', compute)
    .handle('conform.big', ({ bytes }) => ({ text: 'x'.repeat(bytes) }))
    .handle('conform.bad_output', badOutput)
    .handle('conform.context', (_, ctx) => ({
      step_id: ctx.stepId,
      task_id: ctx.taskId,
      attempt: ctx.attempt,
      delivery: ctx.delivery,
      idempotency_key: ctx.idempotencyKey,
      traceparent: ctx.traceparent,
      tracestate: ctx.tracestate,
      config: ctx.config,
      results: ctx.results,
      handler_class: ctx.handlerClass,
      step_name: ctx.stepName,
      delivery_mode: ctx.deliveryMode,
    }))
    .handle('conform.trace', (_, ctx) => ({ traceparent: ctx.traceparent }))
    .handle('conform.progress', progress)
    .handle('conform.typed', { input: readOrder }, (order) => order)
    .handle('conform.limited', { concurrency: 2 }, wait)
    .handle('conform.short', { timeoutMs: 300 }, wait)
    .handle('conform.book', book)
}

function fail({ kind, text = 'failed on request' }) {
  switch (kind) {
    case 'permanent':
      throw new Permanent(text, { code: 'conform' })
    case 'retry':
      throw new Retry(text, { after: 1.5 })
    case 'unknown':
      throw new OutcomeUnknown(text)
    case 'unavailable':
      throw new StepError(text, { category: 'unavailable' })
  }
  throw new Error(text)
}

/** Wait until the run is asked to stop, or until the time has passed. */
async function wait({ ms = 0, ignore = false }, ctx) {
  await pause(ms, ignore ? undefined : ctx.signal)
  return { stopped: ignore ? null : ctx.cancelReason, ms: Math.round(ctx.elapsedMs) }
}

async function pause(ms, signal) {
  await sleep(ms, undefined, { signal }).catch(() => {}) // asked to stop
}

function compute({ ms }, ctx) {
  const untilMs = ctx.elapsedMs + ms
  while (ctx.elapsedMs < untilMs);
  return { ms }
}

const BAD_OUTPUTS = {
  nan: NaN,
  bigint: 2n ** 53n + 1n,
  nul: { text: 'a\0b' },
  surrogate: { text: '\ud800' },
  object: new Map([['order_id', 7]]),
}

function badOutput({ kind }) {
  return kind === 'nan' ? { value: BAD_OUTPUTS.nan } : BAD_OUTPUTS[kind]
}

async function progress({ ms = 0, note = 'half' }, ctx) {
  ctx.progress(1, 2, note)
  await pause(ms, ctx.signal)
  return {}
}

function readOrder(value) {
  if (!Number.isSafeInteger(value?.order_id)) throw new TypeError('order_id must be a whole number')
  if (value.note !== undefined && typeof value.note !== 'string') throw new TypeError('note must be text')
  return value
}

// -- the book of fault campaigns --------------------------------------------------------------------------------------

let bookFile = null

/** Write each event of the run into a file, before anything is reported. */
async function book(_, ctx) {
  if (!process.env.CONFORM_BOOK) throw new Permanent('CONFORM_BOOK is not set')
  const { work_ms: workMs = 0, failures = 0 } = ctx.config
  const seen = Object.fromEntries(Object.entries(ctx.results).map(([name, output]) => [name, output?.token ?? null]))
  note('started', ctx, { mode: ctx.deliveryMode, key: ctx.idempotencyKey, seen })
  if (workMs > 0) await pause(workMs, ctx.signal)
  if (ctx.cancelled) {
    note('stopped', ctx, { reason: ctx.cancelReason })
    throw new StepError(`stopped: ${ctx.cancelReason}`, { code: 'stopped' })
  }
  note('effect', ctx, { key: ctx.idempotencyKey })
  if (ctx.attempt < failures) {
    note('failed', ctx, {})
    throw new StepError('configured to fail', { code: 'told_to' })
  }
  note('finished', ctx, {})
  return { token: `${ctx.stepId}/${ctx.delivery}/${process.pid}` }
}

function note(event, ctx, facts) {
  const name = process.env.STEPWIRE_NAME || 'worker'
  bookFile ??= openSync(join(process.env.CONFORM_BOOK, `worker-${name}-${process.pid}.jsonl`), 'a')
  const at = Number(process.hrtime.bigint())
  const ids = { step_id: ctx.stepId, task_id: ctx.taskId, step: ctx.stepName, delivery: ctx.delivery }
  const line = { event, at, wall: Date.now() * 1e6, ...ids, attempt: ctx.attempt, pid: process.pid, ...facts }
  writeSync(bookFile, `${JSON.stringify(line)}\n`)
}
