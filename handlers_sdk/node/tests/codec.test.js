import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as codec from '../src/protocol/codec.js'
import * as patterns from '../src/protocol/patterns.js'
import * as strictJson from '../src/protocol/strict_json.js'
import { read } from './vectors.js'

const bytesOf = (part) => ('base64' in part ? Buffer.from(part.base64, 'base64') : Buffer.from(part.text))
const bodyOf = (vector) =>
  'parts' in vector
    ? Buffer.concat(vector.parts.flatMap((part) => Array(part.times ?? 1).fill(bytesOf(part))))
    : bytesOf(vector)

/** The message as the vectors have it: without the place at which the codec read a step. */
function plain(message) {
  const { steps, ...members } = JSON.parse(JSON.stringify(message)) // -0 is 0 in JSON
  if (steps === undefined) return members
  return { ...members, steps: steps.map(({ source: _, position: __, ...step }) => step) }
}

const refusal = (run) => {
  try {
    run()
  } catch (error) {
    return error.code
  }
  return undefined
}

for (const vector of read('accepted.json').messages) {
  if (vector.level === 1 && vector.sender === 'broker') {
    test(`the codec accepts the broker's message: ${vector.name}`, () => {
      assert.deepEqual(plain(codec.decodeBroker(bodyOf(vector))), vector.value)
    })
  }
  if (vector.level === 1 && vector.sender === 'worker' && vector.exact) {
    test(`the codec writes the worker's message as the Python codec does: ${vector.name}`, () => {
      const { type, v: _, worker, results, protocol_version: __, ...members } = vector.value
      const text =
        type === 'results'
          ? codec.encodeResults(worker, members, results.map(asResult).map(codec.encodeResult))
          : codec.encode(type, worker, members)
      assert.equal(text, vector.text)
    })
  }
}

const asResult = (result) => ({ ...result, output: JSON.stringify(result.output) })

for (const vector of read('refused.json').messages.filter(({ to }) => to === 'worker')) {
  test(`the codec refuses the broker's message: ${vector.name}`, () => {
    const code = refusal(() => codec.decodeBroker(bodyOf(vector)))
    // An id above 2^53 breaks the rules of JSON before those of its member: a worker may name either.
    assert.ok(code === vector.code || code === 'integer_out_of_range', `${code}, not ${vector.code}`)
  })
}

// The rules of JSON are the same in both directions, so the messages that a broker refuses are refused here as well.
const JSON_CODES = new Set([
  'not_utf8',
  'not_json',
  'not_a_number',
  'number_out_of_range',
  'integer_out_of_range',
  'duplicate_key',
  'nul_character',
  'lone_surrogate',
  'too_deep',
])
for (const vector of read('refused.json').messages.filter(
  (each) => each.to === 'broker' && JSON_CODES.has(each.code),
)) {
  test(`the codec refuses JSON that a worker must not send either: ${vector.name}`, () => {
    const code = refusal(() => codec.decodeBroker(bodyOf(vector)))
    assert.ok(JSON_CODES.has(code), `${code}, not ${vector.code}`) // of several faults, a receiver may name another
  })
}

for (const vector of read('accepted.json').ignored.filter(({ sender }) => sender === 'broker')) {
  test(`the codec reports an unknown type as such: ${vector.name}`, () => {
    assert.equal(
      refusal(() => codec.decodeBroker(bodyOf(vector))),
      'unknown_type',
    )
  })
}

for (const { pattern, path, matches } of read('patterns.json').patterns) {
  test(`the pattern ${pattern} ${matches ? 'matches' : 'does not match'} ${path}`, () => {
    assert.equal(patterns.matches(pattern, path), matches)
  })
}

test('an integer that is written as a float is refused where an integer is required', () => {
  const ack = (rid) => Buffer.from(`{"type":"ack","v":"2.0","broker":"b1","epoch":7,"rids":[${rid}]}`)
  assert.equal(
    refusal(() => codec.decodeBroker(ack('1.0'))),
    'bad_field',
  )
  assert.equal(
    refusal(() => codec.decodeBroker(ack('1e0'))),
    'bad_field',
  )
  assert.deepEqual(codec.decodeBroker(ack('1')).rids, [1])
})

test('a float is known as such however it is written, and a price costs no second parser', () => {
  for (const number of ['1.0', '1.00', '1e0', '10E-1', '0.99999999999999999', '1.00000000000000001']) {
    for (const text of [`{"a":${number}}`, `{"b":1.5,"a" : ${number} }`]) {
      const { value, floats } = strictJson.parse(text)
      assert.equal(value.a, 1)
      assert.ok(floats.get(value).has('a'), text)
    }
  }
  assert.equal(strictJson.parse('{"price":12.50,"weight":-0.25}').floats.size, 0)
})

test('the strict parser reads what JSON.parse reads', () => {
  const texts = [
    '{"a":[1,-2.5e3,true,null,"\\u00e4\\n\\"x\\"",{}],"b":{"c":[]}}',
    ' [ 0.1 , "\\ud83d\\ude00" , "a.5" ] ',
    '{"text":"{\\"a\\":1}","v":1.5,"__proto__":{"x":1.0}}',
    '"only text 1.5"',
  ]
  for (const text of texts) assert.deepEqual(strictJson.parse(text).value, JSON.parse(text))
})

test('half of a surrogate pair, U+0000, a key twice and 33 levels are refused wherever they are', () => {
  const deep = (levels) => '['.repeat(levels) + ']'.repeat(levels)
  const refused = {
    '{"a":"\\ud800"}': 'lone_surrogate',
    '{"a":{"b\\u0000":1}}': 'nul_character',
    '{"a":{"b":1,"\\u0062":2}}': 'duplicate_key',
    '{"a":1,"a":1}': 'duplicate_key',
    '{"a" :1,"a":1}': 'duplicate_key',
    '{"a":{"b"\n :{"c":1},"b":{}}}': 'duplicate_key',
    '{"a":9007199254740992}': 'integer_out_of_range',
    '{"a":1e999}': 'number_out_of_range',
    [deep(33)]: 'too_deep',
  }
  for (const [text, code] of Object.entries(refused)) {
    assert.equal(
      refusal(() => strictJson.parse(text)),
      code,
      text,
    )
  }
  assert.doesNotThrow(() => strictJson.parse(deep(32)))
  assert.doesNotThrow(() => strictJson.parse('{"a":"\\\\u0000"}'))
})

test('a text of four mebibytes with one float is read in less than two seconds', () => {
  const text = `{"a":1.5,"b":"${'x'.repeat(4 * 1024 * 1024)}"}`
  const before = performance.now()
  assert.equal(strictJson.parse(text).value.b.length, 4 * 1024 * 1024)
  assert.ok(performance.now() - before < 2_000)
})
