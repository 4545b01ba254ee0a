import assert from 'node:assert/strict'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { curveKeyPair } from 'zeromq'
import * as curve from '../src/curve.js'
import * as environment from '../src/environment.js'

const PAIR = curveKeyPair()
const SERVER = curveKeyPair().publicKey

test('without variables, the worker connects to the broker of this directory', () => {
  const { steps, results, slots, labels, ...read } = environment.read({})
  assert.deepEqual([steps, results], [['ipc://.stepwire/steps.sock'], ['ipc://.stepwire/results.sock']])
  assert.deepEqual([slots, labels, curve.check(read)], [10, {}, null])
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
  [() => environment.checkHandlerVersion('x'.repeat(65)), /handler_version has 65 characters/],
  [() => checked({ STEPWIRE_CURVE_PUBLIC_KEY: '' }), /^STEPWIRE_CURVE_PUBLIC_KEY is missing: CURVE needs STEPWIRE/],
  [
    () => checked({ STEPWIRE_CURVE_SECRET_KEY: 'short' }),
    /^STEPWIRE_CURVE_SECRET_KEY is no key: it needs 40 characters of Z85, and has 5 characters$/,
  ],
  [
    () => checked({ STEPWIRE_CURVE_PUBLIC_KEY: curveKeyPair().publicKey }),
    /^STEPWIRE_CURVE_PUBLIC_KEY does not belong to STEPWIRE_CURVE_SECRET_KEY: take both from one key pair$/,
  ],
  [
    () => environment.read({ STEPWIRE_CURVE_FILE: '/nowhere' }),
    /^STEPWIRE_CURVE_FILE is '\/nowhere': it cannot be read: No such file or directory$/,
  ],
]

for (const [fault, sentence] of FAULTS) {
  test(`a wrong setting ends in one sentence: ${sentence.source}`, () => {
    assert.throws(fault, { name: 'ConfigurationError', message: sentence })
  })
}

function keys(changes = {}) {
  return {
    STEPWIRE_CURVE_SERVER_KEY: SERVER,
    STEPWIRE_CURVE_PUBLIC_KEY: PAIR.publicKey,
    STEPWIRE_CURVE_SECRET_KEY: PAIR.secretKey,
    ...changes,
  }
}

function checked(changes) {
  return curve.check(environment.read(keys(changes)))
}

test('the keys come from a file that only its owner can read, and variables win over it', () => {
  const path = join(mkdtempSync(join(tmpdir(), 'stepwire-')), 'keys')
  const lines = Object.entries(keys()).map(([name, value]) => `export ${name}='${value}'`)
  writeFileSync(path, `# keys\n${lines.join('\n')}\n`, { mode: 0o600 })
  const read = curve.check(environment.read({ STEPWIRE_CURVE_FILE: path }))
  assert.deepEqual(read, { server: SERVER, public: PAIR.publicKey, secret: PAIR.secretKey })
  const other = environment.read({ STEPWIRE_CURVE_FILE: path, STEPWIRE_CURVE_SERVER_KEY: PAIR.publicKey })
  assert.equal(curve.check(other).server, PAIR.publicKey)
  const open = `${path}-open`
  writeFileSync(open, lines.join('\n'), { mode: 0o644 })
  assert.throws(
    () => environment.read({ STEPWIRE_CURVE_FILE: open }),
    /its group or others may use this file, and it holds a secret key: chmod 600 /,
  )
})
