/** Texts of handlers in a form that every broker accepts, without the values of secrets. */

import { redact } from './redaction.js'

const MESSAGE_CHARS_MAX = 2000
const LONE_SURROGATES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g

/** The text without values of secrets, U+0000 and lone surrogates, cut to `charsMax` characters. */
export function clean(text, charsMax = MESSAGE_CHARS_MAX) {
  return redact(String(text)).slice(0, charsMax).replace(LONE_SURROGATES, '?').replaceAll('\0', '\ufffd')
}

/** The same, but a text that was cut ends with `…`. */
export function shortened(text, charsMax) {
  text = redact(text) // before the cut, which could leave a part of a value
  return clean(text.length <= charsMax ? text : `${text.slice(0, charsMax - 1)}…`, charsMax)
}

/** The text in quotation marks, as error sentences of all SDKs have it. Characters that no terminal shows are escaped. */
export function quoted(text) {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'"
  return mark + text.replace(/[\\'\p{Cc}]/gu, (character) => escaped(character, mark)) + mark
}

function escaped(character, mark) {
  if (character === "'") return mark === "'" ? "\\'" : character
  if (Object.hasOwn(ESCAPES, character)) return ESCAPES[character]
  return `\\x${character.charCodeAt(0).toString(16).padStart(2, '0')}`
}

const ESCAPES = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' }
