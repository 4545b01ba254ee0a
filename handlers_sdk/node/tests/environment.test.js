import assert from 'node:assert/strict'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import * as environment from '../src/environment.js'

const KEY = 'a'.repeat(40)

test('without variables, the worker connects to the broker of this directory', () => {
  const { steps, results, slots, labels, curve } = environment.read({})
  assert.deepEqual([steps, results], [['ipc://.stepwire/steps.sock'], ['ipc://.stepwire/results.sock']])
  assert.deepEqual([slots, labels, curve], [10, {}, null])
})

test('the variables may be lists, and labels', () => {
  const read = environment.read({
    STEPWIRE_STEPS: 'tcp://a:1, tcp://b:1',
    STEPWIRE_RESULTS: 'tcp://a:2,tcp://b:2',
    STEPWIRE_SLOTS: '3',
    STEPWIRE_LABELS: 'region=eu, gpu=true',
    STEPWIRE_NAME: 'shop-1',
    STEPWIRE_HANDLER_VERSION: '7.1',
  })
  assert.deepEqual(environment.links(read.steps, read.results)[1], { steps: 'tcp://b:1', results: 'tcp://b:2' })
  assert.deepEqual(read.labels, { region: 'eu', gpu: 'true' })
  assert.deepEqual([read.slots, read.name, read.handlerVersion], [3, 'shop-1', '7.1'])
})

const links = (steps, results = 'tcp://h:1') => environment.links([steps], [results])
const FAULTS = [
  [() => environment.links(['tcp://a:1'], []), /1 endpoints for steps and 0 for results/],
  [() => links('127.0.0.1:7411'), /needs a form like tcp:\/\/127\.0\.0\.1:7411/],
  [() => links('tcp://127.0.0.1'), /has no port/],
  [() => links('tcp://127.0.0.1:x'), /the port 'x' needs to be 1 to 65535/],
  [() => links('tcp://*:7411'), /names no host/],
  [() => links('http://h:1'), /http:\/\/ is not supported/],
  [() => links('inproc://x'), /inproc:\/\/ is not supported/],
  [() => links(`ipc://${'x'.repeat(108)}`), /the path has 108 bytes/],
  [() => environment.read({ STEPWIRE_SLOTS: 'ten' }), /STEPWIRE_SLOTS is 'ten'/],
  [() => environment.read({ STEPWIRE_SLOTS: '0' }), /slots is 0/],
  [() => environment.read({ STEPWIRE_LABELS: 'eu' }), /STEPWIRE_LABELS has 'eu'/],
  [() => environment.checkName('a b'), /worker name 'a b'/],
  [() => environment.checkHandlerVersion('x'.repeat(65)), /handlerVersion has 65 characters/],
  [() => environment.read({ STEPWIRE_CURVE_SERVER_KEY: KEY }), /STEPWIRE_CURVE_PUBLIC_KEY is missing/],
  [() => environment.read(keys({ STEPWIRE_CURVE_SECRET_KEY: 'short' })), /STEPWIRE_CURVE_SECRET_KEY is not a key/],
  [() => environment.read({ STEPWIRE_CURVE_FILE: '/nowhere' }), /\/nowhere cannot be read/],
]

for (const [fault, sentence] of FAULTS) {
  test(`a wrong setting ends in one sentence: ${sentence.source}`, () => {
    assert.throws(fault, { name: 'ConfigurationError', message: sentence })
  })
}

function keys(changes = {}) {
  const all = { STEPWIRE_CURVE_SERVER_KEY: KEY, STEPWIRE_CURVE_PUBLIC_KEY: KEY, STEPWIRE_CURVE_SECRET_KEY: KEY }
  return { ...all, ...changes }
}

test('the keys come from a file that only its owner can read, and variables win over it', () => {
  const path = join(mkdtempSync(join(tmpdir(), 'stepwire-')), 'keys')
  const lines = Object.entries(keys()).map(([name, value]) => `${name}='${value}'`)
  writeFileSync(path, `# keys\n${lines.join('\n')}\n`, { mode: 0o600 })
  const other = 'b'.repeat(40)
  const { curve } = environment.read({ STEPWIRE_CURVE_FILE: path, STEPWIRE_CURVE_PUBLIC_KEY: other })
  assert.deepEqual(curve, { serverKey: KEY, publicKey: other, secretKey: KEY })
  const open = `${path}-open`
  writeFileSync(open, lines.join('\n'), { mode: 0o644 })
  assert.throws(() => environment.read({ STEPWIRE_CURVE_FILE: open }), /can be read by other users: run chmod 600/)
})
