/**
 * Strict JSON: the rules of protocol/SPEC.md section 3, which JSON.parse does not check.
 *
 * JSON.parse accepts a key twice, U+0000, half of a surrogate pair and any depth, and it rounds integers above 2^53 and
 * reads 8127.0 as an integer. A text is read by JSON.parse if a few searches prove that it has none of these, which is
 * so for nearly every text. Any other text is read by the parser of this module, character by character.
 */

import { CONTAINERS_MAX, DEPTH_MAX, INTEGER_MAX } from './limits.js'
import { InvalidMessage } from './errors.js'

const NO_FLOATS = new Map()
const QUOTE = 0x22
const SPACE = 0x20
const MINUS = 0x2d
const POINT = 0x2e
const ZERO = 0x30
const NINE = 0x39
const LARGE_E = 0x45
const SMALL_E = 0x65
// The same text inside a string is harmless for both, and costs only time.
const ESCAPED = /\\u(?:0000|[dD][89a-fA-F])/ // U+0000, or half of a surrogate pair
// A float that may have the value of an integer: with an exponent, with only zeros after its point, or so long that it is
// rounded.
const INTEGRAL = /[\d.]{16}|(?:\.0+|\d[eE][+-]?\d+)\s*[,}\]]/
const FLOAT_IN_ARRAY = /[[,]\s*-?\d+[.eE]/

/**
 * Decode one JSON text. Returns `value`, and in `floats` the members of each object or array that are integers by value
 * and floats by their text (8127.0). Throws InvalidMessage.
 */
export function parse(text) {
  if (text.includes('\\') && ESCAPED.test(text)) return new Parser(text).parse()
  let value
  try {
    value = JSON.parse(text)
  } catch (error) {
    throw new InvalidMessage('not_json', error.message)
  }
  const parsed = new Census()
  parsed.member(value, 0)
  const written = new KeyCount(text)
  // A key that occurs twice is one key of the value, but two of the text.
  if (parsed.isSuspect || parsed.containers > CONTAINERS_MAX || parsed.keys !== written.keys) {
    return new Parser(text).parse()
  }
  const mayHaveFloats = written.mayHaveFloats || (parsed.hasNumberInArray && FLOAT_IN_ARRAY.test(text))
  if (mayHaveFloats && INTEGRAL.test(text)) return new Parser(text).parse()
  return { value, floats: NO_FLOATS }
}

/** The same for a text that breaks some of the rules: a refusal still needs the ids in it. Throws if it is no JSON. */
export const parseLeniently = (text) => new Parser(text, true).parse()

/** The number of keys and containers in a value, and whether it is nested too deep or has a number out of range. */
class Census {
  constructor() {
    this.keys = 0
    this.containers = 0
    this.isSuspect = false
    this.hasNumberInArray = false
  }

  /** `depth`: of the container of this member. */
  member(value, depth) {
    if (typeof value === 'number') {
      if (!(value <= INTEGER_MAX && value >= -INTEGER_MAX)) this.isSuspect = true
    } else if (typeof value === 'object' && value !== null) {
      this.container(value, depth + 1)
    }
  }

  container(value, depth) {
    this.containers += 1
    if (depth > DEPTH_MAX) this.isSuspect = true
    else if (Array.isArray(value)) {
      for (let i = 0; i < value.length; i++) {
        if (typeof value[i] === 'number') this.hasNumberInArray = true
        this.member(value[i], depth)
      }
    } else {
      for (const key in value) {
        this.keys += 1
        this.member(value[key], depth)
      }
    }
  }
}

/**
 * The number of colons after a quote: at least the number of keys, and more only for some texts with `":` in a string.
 * And whether a number with a point or an exponent follows one of all colons.
 *
 * Most colons follow a key, so this is faster than a search for both characters, or by regular expressions.
 */
class KeyCount {
  constructor(text) {
    this.keys = 0
    this.mayHaveFloats = false
    for (let at = text.indexOf(':'); at >= 0; at = text.indexOf(':', at + 1)) {
      let before = text.charCodeAt(at - 1)
      for (let i = at - 2; before <= SPACE && i >= 0; i--) before = text.charCodeAt(i)
      if (before === QUOTE) this.keys += 1
      let i = at + 1
      let after = text.charCodeAt(i)
      while (after <= SPACE) after = text.charCodeAt(++i)
      if (after > NINE || after < MINUS) continue // the first character of most values
      do after = text.charCodeAt(++i)
      while (after >= ZERO && after <= NINE)
      if (after === POINT || after === SMALL_E || after === LARGE_E) this.mayHaveFloats = true
    }
  }
}

const LENIENT_DEPTH_MAX = 500 // levels that the parser below can read without an overflow of its stack
const WHITE_SPACE = new Set([0x20, 0x09, 0x0a, 0x0d])
const NUMBER = /-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y
const CONTROL = /[\u0000-\u001f]/ // eslint-disable-line no-control-regex
const LONE_SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/
/** @type {[string, boolean | null][]} */
const LITERALS = [
  ['true', true],
  ['false', false],
  ['null', null],
]

/** True if the text contains half of a surrogate pair. */
export const hasLoneSurrogate = (text) => LONE_SURROGATE.test(text)

class Parser {
  constructor(text, isLenient = false) {
    this.text = text
    this.isLenient = isLenient
    this.at = 0
    this.containers = 0
    this.floats = new Map()
  }

  parse() {
    const value = this.value(1)
    this.skip()
    if (this.at < this.text.length) this.fail('extra text after the JSON')
    return { value, floats: this.floats }
  }

  fail(what) {
    throw new InvalidMessage('not_json', `${what} (character ${this.at})`)
  }

  skip() {
    while (WHITE_SPACE.has(this.text.charCodeAt(this.at))) this.at += 1
  }

  value(depth, container = null, key = null) {
    this.skip()
    switch (this.text[this.at]) {
      case '{':
        return this.object(depth)
      case '[':
        return this.array(depth)
      case '"':
        return this.string()
    }
    for (const [word, value] of LITERALS) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length
        return value
      }
    }
    return this.number(container, key)
  }

  /** A rule beyond those of JSON is broken. */
  refuse(code, reason) {
    if (!this.isLenient) throw new InvalidMessage(code, reason)
  }

  open(depth) {
    if (depth > DEPTH_MAX) this.refuse('too_deep', `the nesting is deeper than ${DEPTH_MAX}`)
    if (depth > LENIENT_DEPTH_MAX) this.fail('the nesting is far too deep')
    this.containers += 1
    if (this.containers > CONTAINERS_MAX) this.refuse('too_large', `more than ${CONTAINERS_MAX} arrays and objects`)
    this.at += 1
    this.skip()
  }

  object(depth) {
    const value = {}
    const seen = new Set()
    this.open(depth)
    if (this.text[this.at] === '}') {
      this.at += 1
      return value
    }
    for (;;) {
      this.skip()
      if (this.text[this.at] !== '"') this.fail('a key is expected')
      const key = this.string()
      if (seen.has(key)) this.refuse('duplicate_key', `the key '${key.slice(0, 64)}' occurs twice in one object`)
      seen.add(key)
      this.skip()
      if (this.text[this.at] !== ':') this.fail('a colon is expected')
      this.at += 1
      const member = this.value(depth + 1, value, key)
      if (key === '__proto__') {
        Object.defineProperty(value, key, { value: member, enumerable: true, writable: true, configurable: true })
      } else value[key] = member
      if (this.ends('}')) return value
    }
  }

  array(depth) {
    const value = []
    this.open(depth)
    if (this.text[this.at] === ']') {
      this.at += 1
      return value
    }
    for (;;) {
      value.push(this.value(depth + 1, value, value.length))
      if (this.ends(']')) return value
    }
  }

  /** True at the end of the container, false at a comma. */
  ends(bracket) {
    this.skip()
    const character = this.text[this.at]
    if (character !== bracket && character !== ',') this.fail(`a comma or ${bracket} is expected`)
    this.at += 1
    return character === bracket
  }

  string() {
    const start = this.at
    let end = start
    do {
      end = this.text.indexOf('"', end + 1)
      if (end < 0) this.fail('a string has no end')
    } while (isEscapedAt(this.text, end))
    this.at = end + 1
    const raw = this.text.slice(start, end + 1)
    if (CONTROL.test(raw)) this.fail('a string holds a control character')
    if (!raw.includes('\\')) return raw.slice(1, -1)
    let value
    try {
      value = JSON.parse(raw)
    } catch {
      this.fail('a string has an unknown escape')
    }
    if (value.includes('\0')) this.refuse('nul_character', 'a string holds U+0000')
    if (hasLoneSurrogate(value)) this.refuse('lone_surrogate', 'a string holds half of a surrogate pair')
    return value
  }

  number(container, key) {
    NUMBER.lastIndex = this.at
    const found = NUMBER.exec(this.text)
    if (found === null) {
      const isNoNumber = /^(?:NaN|-?Infinity)/.test(this.text.slice(this.at, this.at + 9))
      if (isNoNumber) throw new InvalidMessage('not_a_number', 'NaN and Infinity are not JSON')
      this.fail('a value is expected')
    }
    this.at = NUMBER.lastIndex
    const value = Number(found[0])
    if (!Number.isFinite(value)) this.refuse('number_out_of_range', 'a number is too large for a double')
    const isFloat = found[1] !== undefined || found[2] !== undefined
    if (!isFloat && Math.abs(value) > INTEGER_MAX) {
      this.refuse('integer_out_of_range', `${found[0].slice(0, 32)} is outside ±(2^53 - 1)`)
    }
    if (isFloat && Number.isInteger(value) && container !== null) {
      if (!this.floats.has(container)) this.floats.set(container, new Set())
      this.floats.get(container).add(key)
    }
    return value
  }
}

/** True if an odd number of backslashes precedes this character. */
function isEscapedAt(text, at) {
  let backslashes = 0
  while (text.charCodeAt(at - 1 - backslashes) === 0x5c) backslashes += 1
  return backslashes % 2 === 1
}
