import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ConfigurationError, OutcomeUnknown, Permanent, Retry, StepError, Worker } from 'stepwire'
import * as testing from 'stepwire/testing'
import { encodeOutput } from '../src/handler.js'

const silent = { debug() {}, info() {}, warn() {}, error() {} }
const run = (handler, input = {}, options = {}) => testing.run(handler, input, { logger: silent, ...options })

test('a returned value is the output, read from its JSON', async () => {
  const outcome = await run((order) => ({ id: order.order_id, at: new Date(0), nothing: undefined }), { order_id: 7 })
  assert.equal(outcome.status, 'completed')
  assert.deepEqual(outcome.output, { id: 7, at: '1970-01-01T00:00:00.000Z' })
})

test('a handler that returns nothing has the output null', async () => {
  assert.equal((await run(() => {})).output, null)
})

test('NaN and the infinities are an error, and not a silent null', async () => {
  for (const value of [NaN, [null, { price: -Infinity }]]) {
    const { error } = await run(() => value)
    assert.equal(error.code, 'bad_output')
    assert.match(error.message, /it holds NaN or Infinity.*return null instead$/)
  }
  assert.deepEqual((await run(() => [null, undefined, 1.5])).output, [null, null, 1.5])
})

const BAD = [
  ['a BigInt', { id: 2n ** 53n + 1n }, /an integer outside .*return it as text/],
  ['an integer above 2^53', { id: 2 ** 53 }, /an integer outside .*return it as text/],
  ['U+0000', { text: 'a\0b' }, /U\+0000/],
  ['half of a surrogate pair', 'x\ud800', /surrogate/],
  ['a Map', new Map([[1, 2]]), /Map.*Object\.fromEntries/],
  ['a Set in a list', [new Set([1])], /Set/],
  ['a Buffer', { data: Buffer.from('x') }, undefined],
  ['typed data', { data: new Uint8Array(2) }, /Uint8Array/],
  ['a function', { run: () => 1 }, /function/],
  ['a symbol', Symbol('x'), /symbol/],
  ['an Error', { error: new Error('x') }, /Error/],
  ['a promise in a list', [Promise.resolve(1)], /Promise.*await/],
  [
    'a generator',
    (function* () {
      yield 1
    })(),
    /generator/,
  ],
  ['30 levels', nested(30), /nested deeper/],
  ['itself', cyclic(), /nested deeper/],
]

for (const [name, value, advice] of BAD.filter((each) => each[2] !== undefined)) {
  test(`an output that holds ${name} is bad_output, with advice`, async () => {
    const outcome = await run(() => value)
    assert.equal(outcome.status, 'error')
    assert.equal(outcome.error.code, 'bad_output')
    assert.equal(outcome.error.retryable, false)
    assert.match(outcome.error.message, advice)
  })
}

test('an at_most_once handler whose output is no JSON has an unknown outcome', async () => {
  const outcome = await run(() => 1n, {}, { deliveryMode: 'at_most_once' })
  assert.equal(outcome.error.code, 'outcome_unknown')
  assert.match(outcome.error.message, /^bad_output: /)
})

test('29 levels of nesting fit into a message', () => {
  assert.equal(typeof encodeOutput(nested(29)), 'string')
})

function nested(levels) {
  return levels === 0 ? 1 : [nested(levels - 1)]
}

function cyclic() {
  const value = {}
  value.self = value
  return value
}

class CardDeclined extends StepError {}

const THROWN = [
  [new TypeError('no'), { status: 'failed', code: 'TypeError', message: 'TypeError: no', retryable: null }],
  [new Permanent('declined', { code: 'card' }), { code: 'card', message: 'declined', retryable: false }],
  [new Permanent('declined'), { code: null, retryable: false }],
  [new Retry('later', { after: 1.5 }), { retry_after_ms: 1500, retryable: true }],
  [new OutcomeUnknown('no answer'), { code: 'outcome_unknown', retryable: null }],
  [new StepError('down', { category: 'unavailable' }), { category: 'unavailable', retryable: true }],
  [new CardDeclined('declined'), { code: 'CardDeclined', message: 'declined' }],
  ['only text', { code: 'string', message: 'string: only text' }],
  [undefined, { code: 'undefined' }],
]

for (const [thrown, expected] of THROWN) {
  test(`a handler that throws ${thrown?.constructor?.name ?? thrown} fails with ${JSON.stringify(expected)}`, async () => {
    const outcome = await run(async () => {
      throw thrown
    })
    const { status = 'failed', ...detail } = expected
    assert.equal(outcome.status, status)
    for (const [member, value] of Object.entries(detail)) assert.equal(outcome.error[member], value, member)
  })
}

test('the backtrace begins at the handler, without frames of the SDK, and has the cause', async () => {
  const outcome = await run(function ship() {
    throw new Error('outer', { cause: new RangeError('inner') })
  })
  const { backtrace } = outcome.error
  assert.equal(backtrace[0], 'Error: outer')
  assert.match(backtrace[1], /at ship .*handler\.test\.js/)
  assert.ok(backtrace.includes('Caused by: RangeError: inner'))
  assert.ok(!backtrace.some((line) => line.includes('/src/')))
})

test('a backtrace has at most 8 KiB', async () => {
  const recurse = (n) => (n === 0 ? fail() : recurse(n - 1))
  const fail = () => {
    const error = new Error('x'.repeat(3000))
    error.stack = `Error: x\n${'    at somewhere (file.js:1:1)\n'.repeat(1000)}`
    throw error
  }
  const { backtrace } = (await run(() => recurse(3))).error
  assert.ok(Buffer.byteLength(backtrace.join('\n')) <= 8192)
  assert.match(backtrace.at(-1), /more lines/)
})

test('the messages of errors lose U+0000 and half surrogate pairs', async () => {
  const { message } = (
    await run(() => {
      throw new Permanent('a\0b\ud800c')
    })
  ).error
  assert.equal(message, 'a\ufffdb?c')
})

test('an input that its schema refuses is bad_input, and the handler is not called', async () => {
  let calls = 0
  const schemas = [
    (value) => {
      if (!Number.isInteger(value.order_id)) throw new TypeError('order_id must be a whole number')
      return value
    },
    { parse: (value) => schemas[0](value) },
    {
      '~standard': { validate: (value) => (value.order_id === 1 ? { value } : { issues: [{ message: 'order_id' }] }) },
    },
  ]
  for (const input of schemas) {
    const worker = new Worker().handle('ship', { input }, () => (calls += 1))
    const outcome = await run(worker, { order_id: 'x' }, { handlerClass: 'ship' })
    assert.equal(outcome.status, 'error')
    assert.equal(outcome.error.code, 'bad_input')
    assert.match(outcome.error.message, /the input of 'step' does not fit handler 'ship': .*order_id/)
    assert.equal((await run(worker, { order_id: 1 }, { handlerClass: 'ship' })).status, 'completed')
  }
  assert.equal(calls, schemas.length)
})

test('a run that exceeds its timeout is asked to stop, and its AbortError is a timeout', async () => {
  const waits = (_, ctx) =>
    new Promise((_, reject) => ctx.signal.addEventListener('abort', () => reject(ctx.signal.reason)))
  const outcome = await run(waits, {}, { timeoutMs: 20 })
  assert.equal(outcome.error.code, 'timeout')
  assert.equal(outcome.error.message, 'the run exceeded its timeout')
  const once = await run(waits, {}, { timeoutMs: 20, deliveryMode: 'at_most_once' })
  assert.equal(once.error.code, 'outcome_unknown')
})

test('a computing handler sees the request to stop without a turn of the event loop', async () => {
  const cancelled = AbortSignal.abort()
  const outcome = await run(
    (_, ctx) => [ctx.cancelled, ctx.cancelReason, ctx.signal.aborted],
    {},
    { signal: cancelled },
  )
  assert.deepEqual(outcome.output, [true, 'task_cancelled', true])
})

test('the context has the facts of the step', async () => {
  const outcome = await run(
    (_, ctx) => [ctx.attempt, ctx.results.pay, ctx.config.a, ctx.idempotencyKey, ctx.deliveryMode, ctx.traceparent],
    {},
    { attempt: 2, results: { pay: { id: 1 } }, config: { a: 1 }, idempotencyKey: 'k', traceparent: '00-1' },
  )
  assert.deepEqual(outcome.output, [2, { id: 1 }, 1, 'k', 'at_least_once', '00-1'])
})

test("lines of a handler's log have the ids of the step", async () => {
  const records = []
  const logger = { ...silent, info: (text, facts) => records.push([text, facts]) }
  await run((_, ctx) => ctx.log.info('charging', { order_id: 7 }), {}, { attempt: 2, logger })
  assert.equal(records.length, 1)
  const [text, facts] = records[0]
  assert.match(text, /charging/)
  const { order_id, task_id, step_id, step_name, attempt } = facts
  assert.deepEqual([order_id, task_id, step_id, step_name, attempt], [7, 1, 2, 'step', 2])
})

test('progress is reported with a note of at most 200 characters', async () => {
  const outcome = await run((_, ctx) => {
    ctx.progress(1, 2, 'x'.repeat(300))
    assert.throws(() => ctx.progress(NaN), ConfigurationError)
  })
  assert.equal(outcome.status, 'completed')
  assert.equal(outcome.progress[0].note.length, 200)
})

test('a null input is null, and an absent one is an empty object', async () => {
  assert.equal((await run((input) => input === null, null)).output, true)
  assert.deepEqual((await testing.run((input) => input)).output, {})
})

test('faults of the registration name the option', () => {
  const worker = new Worker()
  const faults = [
    [() => worker.handle('a b', () => 1), /handler name 'a b'/],
    [() => worker.handle('a', { timeout_ms: 1 }, () => 1), /no option timeout_ms/],
    [() => worker.handle('a', { concurrency: 0 }, () => 1), /concurrency is 0/],
    [() => worker.handle('a', { timeoutMs: 1 }), /write worker\.handle/],
    [() => worker.handle('a', { input: 7 }, () => 1), /input needs to be/],
    [() => worker.handle('b', () => 1).handle('b', () => 1), /registered twice/],
    [() => new Worker({ slot: 1 }), /no option slot/],
    [() => new Worker().start(), /no handlers/],
    [() => new Retry('x', {}), /seconds/],
  ]
  for (const [fault, sentence] of faults) assert.throws(fault, { name: 'ConfigurationError', message: sentence })
})
