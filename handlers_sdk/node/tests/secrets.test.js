/** References to secrets: resolved before the handler, and absent from all that leaves the worker. */

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { chmodSync, chownSync, mkdirSync, mkdtempSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { inspect } from 'node:util'
import { Worker } from 'stepwire'
import * as testing from 'stepwire/testing'
import { isName, places } from '../src/protocol/secret_references.js'
import { Redactor, VALUES_MAX } from '../src/redaction.js'
import { readSecret, valueOf } from '../src/secret_files.js'
import * as secretValues from '../src/secret_values.js'
import { PlayedBroker } from './played_broker.js'
import { read } from './vectors.js'

const LIMIT = { timeout: 30_000 }
const KEY = 'sk_live_5eb63bbbe01eeed0'
const CARD = '4929-7654-0001'
const CONFIG = { key: { $secret: 'stripe/live' } }
const CONTEXT = { card: { $secret: 'card' }, n: 1 }
const VECTORS = read('secrets.json')

const records = () => {
  const lines = []
  const add = (level) => (text, facts) => lines.push({ level, text, ...facts })
  return { lines, debug: add('debug'), info: add('info'), warn: add('warn'), error: add('error') }
}

function directoryOf(values) {
  const directory = mkdtempSync(join(tmpdir(), 'secrets-'))
  mkdirSync(join(directory, 'stripe'), { mode: 0o700 })
  for (const [name, value] of Object.entries(values)) writeFileSync(join(directory, name), value, { mode: 0o600 })
  return directory
}

async function workerWith(t, options, handlers, given = {}) {
  const broker = await PlayedBroker.start(given)
  const logger = records()
  const worker = new Worker({ steps: broker.steps, results: broker.results, name: 'shop', logger, ...options })
  for (const [name, handler] of Object.entries(handlers)) worker.handle(name, handler)
  worker.start()
  t.after(async () => {
    worker.drain(0)
    await broker.next('bye')
    await worker.wait()
    await broker.close()
  })
  await broker.next('heartbeat')
  return { broker, logger }
}

// -- the vectors ------------------------------------------------------------------------------------------------------

for (const { name, valid } of VECTORS.names) {
  test(`${JSON.stringify(name.slice(0, 20))} is ${valid ? 'the' : 'no'} name of a secret`, () => {
    assert.equal(isName(name), valid)
  })
}

for (const { content, value } of VECTORS.contents) {
  test(`the content ${JSON.stringify(content)} of a file is the value ${JSON.stringify(value)}`, () => {
    if (value === null) assert.throws(() => valueOf('card', Buffer.from(content)), { name: 'SecretUnavailable' })
    else assert.equal(valueOf('card', Buffer.from(content)), value)
  })
}

const isRoot = process.geteuid() === 0

for (const vector of VECTORS.files) {
  test(`a file of secrets: ${vector.name}`, { skip: vector.needs_root && !isRoot }, () => {
    const directory = made(vector)
    if (vector.sentence !== undefined) {
      const message = vector.sentence.replaceAll('{directory}', directory)
      assert.throws(() => readSecret(directory, 'card'), { name: 'SecretUnavailable', message, category: null })
    } else if (vector.value !== undefined) {
      assert.equal(readSecret(directory, 'card'), vector.value)
    } else {
      assert.equal(readSecret(directory, 'card').length, vector.value_bytes)
    }
  })
}

/** The directory of secrets that a vector describes. */
function made({ directory: mode = '0700', directory_owner: directoryOwner, file }) {
  const directory = join(mkdtempSync(join(tmpdir(), 'secrets-')), 'secrets')
  if (mode === 'file') {
    writeFileSync(directory, '')
  } else if (mode !== 'none') {
    mkdirSync(directory)
    chmodSync(directory, Number.parseInt(mode, 8))
    if (directoryOwner !== undefined) chownSync(directory, directoryOwner, directoryOwner)
  }
  if (file === null) return directory
  const path = join(directory, file.link ?? 'card')
  if (file.link !== undefined) symlinkSync(file.link, join(directory, 'card'))
  if (file.folder) mkdirSync(path, { mode: 0o700 })
  else if (file.pipe) execFileSync('mkfifo', ['-m', '600', path])
  else {
    const content = 'content' in file ? Buffer.from(file.content) : Buffer.from(file.base64 ?? '', 'base64')
    writeFileSync(path, content.length > 0 ? content : 'x'.repeat(file.bytes ?? 0))
    chmodSync(path, Number.parseInt(file.mode, 8))
    if (file.owner !== undefined) chownSync(path, file.owner, file.owner)
  }
  return directory
}

for (const vector of VECTORS.resolve) {
  test(`references: ${vector.name}`, () => {
    const step = { handler_config: JSON.parse(JSON.stringify(vector.value)), task_context: {} }
    const resolver = (name) => vector.secrets[name] ?? null
    if (vector.sentence === undefined) {
      secretValues.resolve(step, resolver)
      assert.deepEqual(step.handler_config, vector.resolved)
    } else {
      assert.throws(() => secretValues.resolve(step, resolver), { name: 'SecretUnavailable', message: vector.sentence })
    }
  })
}

for (const vector of VECTORS.resolver) {
  const sentence = vector.sentence.replace('{error}', 'TypeError').replace('{argument}', 'new Worker({ secrets })')
  const expected = { name: 'SecretUnavailable', message: sentence, category: vector.category }
  const answer = () => {
    if (vector.raises !== undefined) throw new TypeError(vector.raises)
    return vector.returns
  }
  const source = vector.source === false ? null : answer
  test(`a resolver: ${vector.name}`, () => {
    assert.throws(() => secretValues.valueOf('card', secretValues.resolverOf(source)), expected)
  })
  if (source !== null) {
    test(`an asynchronous resolver: ${vector.name}`, async () => {
      await assert.rejects(
        secretValues.valueOf('card', async (name) => source(name)),
        expected,
      )
    })
  }
}

for (const vector of VECTORS.redact) {
  test(`a text loses ${vector.name}`, () => {
    const redactor = new Redactor()
    for (const [name, value] of Object.entries(vector.secrets)) redactor.add(name, value)
    assert.equal(redactor.redact(vector.text), vector.redacted)
  })
}

for (const vector of VECTORS.output) {
  test(`an output: ${vector.name}`, () => {
    const output = secretValues.withoutValues(JSON.stringify(vector.output), new Map(Object.entries(vector.secrets)))
    assert.deepEqual(JSON.parse(output), vector.redacted)
  })
}

test('a redactor keeps the latest values and is bounded', () => {
  const redactor = new Redactor()
  for (let n = 0; n <= VALUES_MAX; n++) redactor.add(`n${n}`, `value-${String(n).padStart(6, '0')}`)
  assert.equal(redactor.redact('value-000000 value-000001'), 'value-000000 [secret n1]')
})

test('a member named __proto__ keeps its value', () => {
  const step = JSON.parse('{"handler_config":{"__proto__":{"$secret":"card"}},"task_context":{}}')
  secretValues.resolve(step, () => CARD)
  assert.equal(JSON.stringify(step.handler_config), `{"__proto__":"${CARD}"}`)
  assert.deepEqual(
    places(step, 'handler_config', () => {}),
    [],
  )
})

// -- in a worker ------------------------------------------------------------------------------------------------------

test('a handler receives the values in the place of references, also of a key with escapes', LIMIT, async (t) => {
  const seen = []
  const secrets = directoryOf({ 'stripe/live': `${KEY}\n`, card: CARD })
  const pay = (input, ctx) => {
    seen.push([ctx.config, input, ctx.results])
    return 'paid'
  }
  const { broker } = await workerWith(t, { secrets }, { pay })
  const members = { handler_config: CONFIG, previous_results: { a: CONTEXT } }
  broker.sendSteps({ id: 1, handlerClass: 'pay', input: CONTEXT, members })
  assert.equal((await broker.result(1)).output, 'paid')
  assert.deepEqual(seen.pop(), [{ key: KEY }, { card: CARD, n: 1 }, { a: CONTEXT }])
  broker.escape = (text) => text.replaceAll('$secret', '\\u0024secret')
  broker.sendSteps({ id: 2, handlerClass: 'pay', input: {}, members: { input: CONTEXT } })
  await broker.result(2)
  assert.deepEqual(seen.pop()[1], { card: CARD, n: 1 })
})

test('a rotated secret is used for the next step', LIMIT, async (t) => {
  const secrets = directoryOf({ 'stripe/live': KEY })
  const { broker } = await workerWith(t, { secrets }, { length: (_, ctx) => ctx.config.key.length })
  broker.sendSteps({ id: 1, handlerClass: 'length', members: { handler_config: CONFIG } })
  assert.equal((await broker.result(1)).output, KEY.length)
  writeFileSync(join(secrets, 'stripe/live'), 'rotated')
  broker.sendSteps({ id: 2, handlerClass: 'length', members: { handler_config: CONFIG } })
  assert.equal((await broker.result(2)).output, 7)
})

test('a step whose secret is missing fails with its name, and its handler is not called', LIMIT, async (t) => {
  const called = []
  const { broker, logger } = await workerWith(t, { secrets: async () => null }, { pay: () => called.push(1) })
  broker.sendSteps({ id: 1, handlerClass: 'pay', members: { handler_config: CONFIG } })
  const { status, error } = await broker.result(1)
  assert.deepEqual([status, error.code, error.retryable], ['error', 'secret_unavailable', true])
  assert.equal(error.message, "secret 'stripe/live': the resolver of this worker does not know it")
  assert.equal(error.category, undefined)
  assert.deepEqual(called, [])
  assert.match(logger.lines.at(-1).text, /failed: secret_unavailable: secret 'stripe\/live'/)
})

test('a lease that ends while a secret is read gives the step back', LIMIT, async (t) => {
  const called = []
  let answer
  const secrets = () => new Promise((settle) => (answer = settle))
  const { broker } = await workerWith(t, { secrets }, { pay: () => called.push(1) }, { leaseMs: 1_000 })
  broker.sendSteps({ id: 1, handlerClass: 'pay', members: { handler_config: CONFIG } })
  await broker.next('heartbeat', (message) => message.holding?.some(([, , state]) => state === 'running'))
  broker.isSilent = true // its lease ends after 1 s, and the worker must not begin the handler
  await broker.next('heartbeat', (message) => message.sessions?.b1 === undefined)
  answer('value')
  broker.isSilent = false
  await broker.next('heartbeat', (message) => !message.holding?.length)
  assert.deepEqual(called, [])
})

test('a lease that ended while a secret was read gives the step back, also in a new session', LIMIT, async (t) => {
  const called = []
  let answer
  const secrets = () => new Promise((settle) => (answer = settle))
  const { broker } = await workerWith(t, { secrets }, { pay: () => called.push(1) }, { leaseMs: 1_000 })
  broker.sendSteps({ id: 1, handlerClass: 'pay', members: { handler_config: CONFIG } })
  await broker.next('heartbeat', (message) => message.holding?.some(([, , state]) => state === 'running'))
  const { session } = broker
  broker.isSilent = true
  broker.leaseMs = 60_000 // of the next session: before it, the broker may have given the step to another worker
  await broker.next('heartbeat', (message) => message.sessions?.b1 === undefined)
  broker.isSilent = false
  await broker.next('heartbeat', ({ sessions }) => sessions?.b1 !== undefined && sessions.b1 !== session)
  answer('value')
  assert.deepEqual((await broker.next('refuse')).items, [[1, 1]])
  assert.deepEqual(called, [])
})

test('errors, stacks, progress, logs and outputs hold no value of a secret', LIMIT, async (t) => {
  const secrets = directoryOf({ 'stripe/live': `${KEY}\n`, card: CARD })
  const tell = async (input, ctx) => {
    ctx.progress(1, 2, `using ${ctx.config.key}`)
    ctx.log.info(`card ${input.card}`, { list: [input.card], deep: { error: new Error(ctx.config.key) } })
    await new Promise((settle) => setTimeout(settle, 300))
    const error = new Error(`refused: ${input.card}\nand ${ctx.config.key}`, { cause: new TypeError(input.card) })
    throw Object.assign(error, { request: { headers: { authorization: ctx.config.key } } })
  }
  const { broker, logger } = await workerWith(t, { secrets }, { tell, leak: (input) => ({ [input.card]: input.card }) })
  broker.sendSteps({ id: 1, handlerClass: 'tell', input: CONTEXT, members: { handler_config: CONFIG } })
  const progress = await broker.next('progress')
  assert.equal(progress.items[0][4], 'using [secret stripe/live]')
  const { error } = await broker.result(1)
  assert.equal(error.message, 'Error: refused: [secret card]\nand [secret stripe/live]')
  broker.sendSteps({ id: 2, handlerClass: 'leak', input: CONTEXT })
  const { output } = await broker.result(2)
  assert.deepEqual(output, { '[secret card]': '[secret card]' })
  const everything = inspect([error, progress, output, logger.lines, broker.received], { depth: 20 })
  assert.ok(!everything.includes(KEY) && !everything.includes(CARD), everything)
  assert.ok(logger.lines.some((line) => line.text === 'card [secret card]'))
})

test('a tested handler receives the values of secrets that the test passes', async () => {
  const leak = (_, ctx) => ({ authorization: `Bearer ${ctx.config.key}`, [ctx.config.key]: [ctx.config.pin] })
  const config = { key: { $secret: 'stripe/live' }, pin: { $secret: 'pin' } }
  const outcome = await testing.run(leak, {}, { config, secrets: { 'stripe/live': KEY, pin: 'eu' } })
  assert.deepEqual(outcome.output, { authorization: 'Bearer [secret stripe/live]', '[secret stripe/live]': ['eu'] })
})

test('an input that does not fit is refused without the value', async () => {
  const worker = new Worker().handle('pay', { input: ({ card }) => assert.fail(`no card: ${card}`) }, () => null)
  const options = { handlerClass: 'pay', secrets: { card: CARD } }
  const { error } = await testing.run(worker, { card: { $secret: 'card' } }, options)
  assert.equal(error.code, 'bad_input')
  assert.match(error.message, /no card: \[secret card\]$/)
})
