/**
 * Sealed payloads: the form of a context, output or error that only workers and clients can read.
 *
 *     {"$sealed":"v1","kid":"2026-11","task":{"namespace":…,"workflow":…,"key":…},"nonce":"…","data":"…","clear":{}}
 *
 * `task` is present in contexts only: the task for which the context was sealed. `clear` is what the broker may read.
 */

export const MEMBER = '$sealed'
export const VERSION = 'v1'
export const NONCE_BYTES = 12
export const TAG_BYTES = 16
export const ERROR_MESSAGE = 'the error is sealed: stepwire task show --unseal prints it'

const CODE = /^[A-Za-z0-9_.:-]{1,64}$/
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/

/** False if this JSON certainly holds no reference and no sealed payload. A key may also be written with escapes. */
export const mayNeedOpening = (text) => text.includes('$se') || text.includes('\\u00')

/** True if the value is meant as a sealed payload, whether its form is right or not. */
export const isSealed = (value) =>
  typeof value === 'object' && value !== null && !Array.isArray(value) && Object.hasOwn(value, MEMBER)

/** A code or a category that is a word; null for any other text, which could hold data. */
export const plainWord = (text) => (typeof text === 'string' && CODE.test(text) ? text : null)

/** The bytes of standard Base64 with padding. Throws TypeError: Node itself would ignore wrong characters. */
export function decoded(text) {
  if (typeof text !== 'string' || !BASE64.test(text)) throw new TypeError('no Base64')
  return Buffer.from(text, 'base64')
}
