/** Texts of handlers in a form that every broker accepts. */

const MESSAGE_CHARS_MAX = 2000
const LONE_SURROGATES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g

/** The text without U+0000 and lone surrogates, cut to `charsMax` characters. */
export function clean(text, charsMax = MESSAGE_CHARS_MAX) {
  return String(text).slice(0, charsMax).replace(LONE_SURROGATES, '?').replaceAll('\0', '\ufffd')
}

/** The same, but a text that was cut ends with `…`. */
export function shortened(text, charsMax) {
  return clean(text.length <= charsMax ? text : `${text.slice(0, charsMax - 1)}…`, charsMax)
}
