/**
 * Seals and unseals payloads: AES-256-GCM with a nonce that follows from the content, so a repeated submission has the
 * same bytes and its idempotency key holds.
 *
 * protocol/SPEC.md section 21 has the format, and protocol/vectors/sealed.json examples.
 */

import { createCipheriv, createDecipheriv, createHmac } from 'node:crypto'
import { closeSync, constants, fstatSync, openSync, readFileSync } from 'node:fs'
import { MEMBER, NONCE_BYTES, TAG_BYTES, VERSION, decoded } from './protocol/sealed_payloads.js'
import { ConfigurationError, StepwireError } from './errors.js'
import { isOwn } from './secret_files.js'
import { reasonOf } from './system_errors.js'
import { quoted } from './texts.js'

export const FILE = 'STEPWIRE_SEAL_KEYS_FILE'
export const ENCRYPTION = 'stepwire sealed v1 encryption'
export const NONCE = 'stepwire sealed v1 nonce'
const CIPHER = 'aes-256-gcm'
const FILE_BYTES_MAX = 64 * 1024
const KEYS_MAX = 100
const KID_SHOWN_MAX = 64

const LINE = /^([A-Za-z0-9._-]{1,64})=([A-Za-z0-9+/]{43}=)$/
const fatal = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** The payload cannot be unsealed: its key is missing, or it was changed or belongs to another task or step. */
export class NotUnsealed extends StepwireError {}

/** Keys by their `kid`, as a Map of 32 bytes each. The first seals, all of them unseal. */
export class SealKeys {
  constructor(keys) {
    this.pairs = new Map()
    for (const [kid, key] of keys) {
      this.pairs.set(kid, { encryption: derived(key, ENCRYPTION), nonce: derived(key, NONCE) })
    }
    this.kid = keys.keys().next().value
  }

  /** The keys of a file with lines `KID=BASE64`. Throws ConfigurationError. */
  static ofFile(path) {
    return new SealKeys(readKeys(path))
  }

  /** The sealed payload as JSON. Its `clear` is the member `clear` of the plaintext, if that is an object. */
  seal(kind, task, step, plaintext) {
    const { encryption, nonce: nonceKey } = this.pairs.get(this.kid)
    const aad = associatedData(kind, this.kid, task, step)
    const plain = Buffer.from(plaintext)
    const nonce = createHmac('sha256', nonceKey).update(aad).update(plain).digest().subarray(0, NONCE_BYTES)
    const cipher = createCipheriv(CIPHER, encryption, nonce).setAAD(aad)
    const data = Buffer.concat([cipher.update(plain), cipher.final(), cipher.getAuthTag()])
    return JSON.stringify({
      [MEMBER]: VERSION,
      kid: this.kid,
      ...(kind === 'context' && { task }),
      nonce: nonce.toString('base64'),
      data: data.toString('base64'),
      clear: kind === 'error' ? {} : clearPart(plaintext),
    })
  }

  /** The plaintext of a decoded payload. Throws NotUnsealed, whose text holds nothing of the payload. */
  unseal(kind, task, step, payload) {
    const { kid, nonce, data } = payload
    if (payload[MEMBER] !== VERSION) {
      throw new NotUnsealed(`the ${kind} is sealed in a version that this program does not know`)
    }
    const pair = this.pairs.get(kid)
    if (pair === undefined) {
      const shown = quoted([...String(kid)].slice(0, KID_SHOWN_MAX).join(''))
      throw new NotUnsealed(`the ${kind} is sealed with the key ${shown}, which is not in the file of keys`)
    }
    try {
      const sealed = decoded(data)
      const cipher = createDecipheriv(CIPHER, pair.encryption, decoded(nonce), { authTagLength: TAG_BYTES })
      cipher.setAAD(associatedData(kind, kid, task, step)).setAuthTag(sealed.subarray(-TAG_BYTES))
      return fatal.decode(Buffer.concat([cipher.update(sealed.subarray(0, -TAG_BYTES)), cipher.final()]))
    } catch {
      const where = step === null ? 'another task' : 'another task or step'
      throw new NotUnsealed(`the ${kind} was changed after it was sealed, or it belongs to ${where}`)
    }
  }
}

function clearPart(plaintext) {
  const value = plaintext.includes('"clear"') || plaintext.includes('\\u00') ? JSON.parse(plaintext) : null
  const clear = value?.clear
  return typeof clear === 'object' && clear !== null && !Array.isArray(clear) ? clear : {}
}

/** The bytes to which a payload is bound. Each part follows its length, so no two lists give the same bytes. */
export function associatedData(kind, kid, { namespace, workflow, key }, step) {
  const parts = ['stepwire sealed v1', kind, kid, namespace, workflow, key]
  if (step !== null) parts.push(step)
  return Buffer.from(parts.map((part) => `${Buffer.byteLength(part)}:${part}`).join(''))
}

/** A key for one purpose: HKDF-SHA-256 (RFC 5869) without salt, 32 bytes. */
export function derived(key, purpose) {
  const pseudorandom = createHmac('sha256', Buffer.alloc(32)).update(key).digest()
  return createHmac('sha256', pseudorandom).update(purpose).update('\u0001').digest()
}

/** The keys of a file, by `kid`, in its order. Throws ConfigurationError, which names no key. */
export function readKeys(path) {
  const subject = `${FILE} is ${quoted(path)}`
  let content
  try {
    const file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
    try {
      checkFile(subject, path, fstatSync(file))
      content = readFileSync(file)
    } finally {
      closeSync(file)
    }
  } catch (error) {
    if (error instanceof ConfigurationError) throw error
    throw new ConfigurationError(`${subject}: it cannot be read: ${reasonOf(error)}`)
  }
  let text
  try {
    text = fatal.decode(content)
  } catch {
    throw new ConfigurationError(`${subject}: it cannot be read: it is no text`)
  }
  const keys = new Map()
  for (const [at, line] of text.split(/\r\n|\n|\r/).entries()) {
    if (line.trim() === '' || line.startsWith('#')) continue
    const found = LINE.exec(line.trim())
    if (found === null) {
      throw new ConfigurationError(
        `${FILE}: line ${at + 1} of ${quoted(path)} is not KID=KEY, with a key of 32 random bytes in Base64, as ` +
          'made by: openssl rand -base64 32',
      )
    }
    if (keys.has(found[1])) {
      throw new ConfigurationError(`${FILE}: ${quoted(path)} has two keys with the name ${quoted(found[1])}`)
    }
    keys.set(found[1], Buffer.from(found[2], 'base64'))
  }
  if (keys.size === 0 || keys.size > KEYS_MAX) {
    throw new ConfigurationError(`${subject}: it needs 1 to ${KEYS_MAX} keys, and has ${keys.size}`)
  }
  return keys
}

function checkFile(subject, path, stat) {
  if (stat.isDirectory()) throw new ConfigurationError(`${subject}: it cannot be read: Is a directory`)
  if (!stat.isFile()) throw new ConfigurationError(`${subject}: it is no regular file`)
  if (!isOwn(stat)) throw new ConfigurationError(`${subject}: it belongs to another user`)
  if ((stat.mode & 0o077) !== 0) {
    throw new ConfigurationError(`${subject}: its group or others may use it: chmod 600 ${path}`)
  }
  if (stat.size > FILE_BYTES_MAX) throw new ConfigurationError(`${subject}: it has more than ${FILE_BYTES_MAX} bytes`)
}
