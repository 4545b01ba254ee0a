/** Sealed payloads: the handler works with plaintext, and nothing readable leaves the worker. */

import assert from 'node:assert/strict'
import { chmodSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { inspect } from 'node:util'
import { Worker } from 'stepwire'
import { plainWord } from '../src/protocol/sealed_payloads.js'
import { ENCRYPTION, NONCE, SealKeys, associatedData, derived, readKeys } from '../src/sealing.js'
import { PlayedBroker } from './played_broker.js'
import { read } from './vectors.js'

const LIMIT = { timeout: 30_000 }
const VECTORS = read('sealed.json')
const TASK = { namespace: 'shop', workflow: 'claim', key: 'claim-7' }
const bytes = (text) => Buffer.from(text, 'base64')
const keysFrom = (first) => {
  const ordered = [...VECTORS.keys].sort((a, b) => (a.kid === first ? -1 : b.kid === first ? 1 : 0))
  return new SealKeys(new Map(ordered.map(({ kid, key }) => [kid, bytes(key)])))
}
const taskOf = ({ namespace, workflow, key }) => ({ namespace, workflow, key })

// -- the vectors ------------------------------------------------------------------------------------------------------

for (const vector of VECTORS.keys) {
  test(`two keys are derived from the key ${vector.kid}`, () => {
    assert.equal(derived(bytes(vector.key), ENCRYPTION).toString('hex'), vector.encryption_key)
    assert.equal(derived(bytes(vector.key), NONCE).toString('hex'), vector.nonce_key)
  })
}

for (const vector of VECTORS.sealed) {
  test(`${vector.name} is sealed byte for byte, and unsealed`, () => {
    const { kind, step, plaintext, payload } = vector
    const keys = keysFrom(payload.kid)
    assert.equal(associatedData(kind, payload.kid, taskOf(vector), step).toString('base64'), vector.aad)
    assert.equal(keys.seal(kind, taskOf(vector), step, plaintext), JSON.stringify(payload))
    assert.equal(keys.unseal(kind, taskOf(vector), step, payload), plaintext)
  })
}

for (const vector of VECTORS.refused) {
  test(`${vector.name} is not unsealed`, () => {
    const unseal = () => keysFrom('2026-11').unseal(vector.kind, taskOf(vector), vector.step, vector.payload)
    assert.throws(unseal, { name: 'NotUnsealed', message: vector.sentence })
  })
}

for (const vector of VECTORS.key_files) {
  test(`a file of keys: ${vector.name}`, () => {
    const path = join(mkdtempSync(join(tmpdir(), 'keys-')), 'seal.keys')
    if (vector.text !== null) {
      writeFileSync(path, typeof vector.text === 'number' ? '#'.repeat(vector.text) : vector.text)
      chmodSync(path, Number.parseInt(vector.mode, 8))
    }
    if (vector.sentence === undefined) {
      assert.deepEqual([...readKeys(path).keys()], vector.kids)
      return
    }
    const message = vector.sentence.replaceAll('{path}', path)
    assert.throws(() => new Worker({ sealKeysFile: path }), { name: 'ConfigurationError', message })
  })
}

test('data that is no Base64 is not unsealed', () => {
  const { payload, ...vector } = VECTORS.sealed[3]
  const changed = { ...payload, data: ` ${payload.data}` } // Node itself would ignore the space
  const unseal = () => keysFrom('2026-11').unseal('output', taskOf(vector), vector.step, changed)
  assert.throws(unseal, { name: 'NotUnsealed' })
})

test('a code that is a word stays readable', () => {
  assert.deepEqual(
    [plainWord('card_declined'), plainWord('A. Lovelace'), plainWord(null)],
    ['card_declined', null, null],
  )
})

// -- in a worker ------------------------------------------------------------------------------------------------------

const KEYS = keysFrom('2026-11')
const sealed = (kind, step, value) => JSON.parse(KEYS.seal(kind, TASK, step, JSON.stringify(value)))

function keysFile() {
  const path = join(mkdtempSync(join(tmpdir(), 'keys-')), 'seal.keys')
  writeFileSync(path, VECTORS.keys.map(({ kid, key }) => `${kid}=${key}\n`).join(''), { mode: 0o600 })
  return path
}

async function workerWith(t, options, handlers) {
  const broker = await PlayedBroker.start()
  const lines = []
  const add = (text, facts) => lines.push({ text, ...facts })
  const logger = { debug: add, info: add, warn: add, error: add }
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
  return { broker, lines }
}

const CONTEXT = { patient: 'A. Lovelace', total: 12.5, clear: { region: 'eu' } }

test('a handler works with plaintext, and its output is sealed', LIMIT, async (t) => {
  const seen = []
  const assess = (input, ctx) => {
    seen.push(input, ctx.results)
    return { of: input.patient, clear: { review: true } }
  }
  const { broker } = await workerWith(t, { sealKeysFile: keysFile() }, { assess })
  const members = { previous_results: { before: sealed('output', 'before', { score: 3 }), skipped: null } }
  broker.sendSteps({ id: 1, handlerClass: 'assess', input: sealed('context', null, CONTEXT), members })
  const { status, output } = await broker.result(1)
  assert.equal(status, 'completed')
  assert.deepEqual(Object.keys(output), ['$sealed', 'kid', 'nonce', 'data', 'clear'])
  assert.deepEqual(output.clear, { review: true })
  const plaintext = KEYS.unseal('output', TASK, 'work', output)
  assert.deepEqual(JSON.parse(plaintext), { of: 'A. Lovelace', clear: { review: true } })
  assert.deepEqual(seen, [CONTEXT, { before: { score: 3 }, skipped: null }])
})

test('a secret in a sealed context is resolved, and removed from the sealed output', LIMIT, async (t) => {
  const options = { sealKeysFile: keysFile(), secrets: () => 'sk_live_5eb6' }
  const { broker } = await workerWith(t, options, { assess: (input) => input })
  const context = sealed('context', null, { key: { $secret: 'k' } })
  broker.sendSteps({ id: 1, handlerClass: 'assess', input: context })
  const { output } = await broker.result(1)
  assert.equal(KEYS.unseal('output', TASK, 'work', output), '{"key":"[secret k]"}')
})

test('an error is sealed, and neither log nor progress has its text', LIMIT, async (t) => {
  const fail = async (input, ctx) => {
    ctx.progress(1, 2, input.patient)
    await new Promise((settle) => setTimeout(settle, 300))
    throw Object.assign(new RangeError(`${input.patient} ${'x'.repeat(9_000)}`), { name: input.patient })
  }
  const { broker, lines } = await workerWith(t, { sealKeysFile: keysFile() }, { fail: fail })
  broker.sendSteps({ id: 1, handlerClass: 'fail', input: sealed('context', null, CONTEXT) })
  const progress = await broker.next('progress')
  assert.equal(progress.items[0][4], null)
  const { error } = await broker.result(1)
  assert.equal(error.message, 'the error is sealed: stepwire task show --unseal prints it')
  assert.equal(error.code, undefined) // the name of the error was no word
  assert.equal(error.backtrace.length, 1)
  const plaintext = KEYS.unseal('error', TASK, 'work', JSON.parse(error.backtrace[0]))
  assert.ok(Buffer.byteLength(plaintext) <= 5_000)
  assert.match(JSON.parse(plaintext).message, /^A\. Lovelace: A\. Lovelace xxx/)
  const logged = inspect(lines.filter((line) => line.event === 'run_failed').map(({ text }) => text))
  assert.match(logged, /the text of the error is sealed/)
  assert.ok(!/xxx|Lovelace/.test(inspect(lines, { depth: 9 })))
})

test('a worker without the key does not run the step', LIMIT, async (t) => {
  const called = []
  const { broker } = await workerWith(t, {}, { assess: () => called.push(1) })
  broker.sendSteps({ id: 1, handlerClass: 'assess', input: sealed('context', null, CONTEXT) })
  const { status, error } = await broker.result(1)
  assert.deepEqual([status, error.code, error.retryable], ['error', 'not_unsealed', true])
  assert.equal(error.message, 'the step is sealed, and this worker has no keys: set STEPWIRE_SEAL_KEYS_FILE')
  assert.deepEqual(called, [])
})

test('a sealed context without its task, or with long integers, is not unsealed', LIMIT, async (t) => {
  const { broker } = await workerWith(t, { sealKeysFile: keysFile() }, { assess: (input) => input })
  const { task: _, ...context } = sealed('context', null, CONTEXT)
  const rounded = JSON.parse(KEYS.seal('context', TASK, null, '{"n":9007199254740993}'))
  broker.sendSteps({ id: 1, handlerClass: 'assess', input: context })
  assert.equal((await broker.result(1)).error.message, 'the context is sealed, and does not name its task')
  broker.sendSteps({ id: 2, handlerClass: 'assess', input: rounded })
  assert.match((await broker.result(2)).error.message, /its content is not JSON as messages have it: integer_out_of/)
})
