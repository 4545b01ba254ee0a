/**
 * The CURVE keys of a worker: from options, environment variables or a file, all three or none.
 *
 * No error names a key: it could be the secret one.
 */

import { createPrivateKey, createPublicKey } from 'node:crypto'
import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs'
import * as topics from './protocol/topics.js'
import { ConfigurationError } from './errors.js'
import { reasonOf } from './system_errors.js'

const SERVER_KEY = 'STEPWIRE_CURVE_SERVER_KEY'
const PUBLIC_KEY = 'STEPWIRE_CURVE_PUBLIC_KEY'
const SECRET_KEY = 'STEPWIRE_CURVE_SECRET_KEY'
const FILE = 'STEPWIRE_CURVE_FILE'
const NAMES = [SERVER_KEY, PUBLIC_KEY, SECRET_KEY]

const LINE = /^(?:export\s+)?(\w+)\s*=\s*(?:'([^']*)'|"([^"]*)"|(\S*))$/

/** The keys from the environment, and from the file that STEPWIRE_CURVE_FILE names. A variable wins over the file. */
export function read(environ) {
  const inFile = environ[FILE] ? ofFile(environ[FILE]) : new Map()
  const [curveServerKey, curvePublicKey, curveSecretKey] = NAMES.map(
    (name) => environ[name] || inFile.get(name) || null,
  )
  return { curveServerKey, curvePublicKey, curveSecretKey }
}

/** The keys {server, public, secret}, checked; null if there are none. Refused if only some of them are there. */
export function check({ curveServerKey, curvePublicKey, curveSecretKey }) {
  const given = [curveServerKey, curvePublicKey, curveSecretKey]
  if (given.every((key) => !key)) return null
  given.forEach((key, i) => {
    if (!key) {
      throw new ConfigurationError(
        `${NAMES[i]} is missing: CURVE needs ${SERVER_KEY}, ${PUBLIC_KEY} and ${SECRET_KEY}, ` +
          `as variables or in the file that ${FILE} names`,
      )
    }
    if (!topics.CURVE_KEY_PATTERN.test(key)) {
      throw new ConfigurationError(
        `${NAMES[i]} is no key: it needs 40 characters of Z85, and has ${String(key).length} characters`,
      )
    }
  })
  if (!publicKeyOf(curveSecretKey).equals(fromZ85(curvePublicKey))) {
    throw new ConfigurationError(`${PUBLIC_KEY} does not belong to ${SECRET_KEY}: take both from one key pair`)
  }
  return { server: curveServerKey, public: curvePublicKey, secret: curveSecretKey }
}

/** The lines NAME='value' of a key file. Other lines are ignored. */
function ofFile(path) {
  let text
  try {
    const file = openSync(path, 'r')
    try {
      const stat = fstatSync(file)
      if (stat.isFile() && (stat.mode & 0o077) !== 0) {
        throw new ConfigurationError(
          `${FILE} is '${path}': its group or others may use this file, and it holds a secret key: chmod 600 ${path}`,
        )
      }
      text = readFileSync(file, 'utf8')
    } finally {
      closeSync(file)
    }
  } catch (error) {
    if (error instanceof ConfigurationError) throw error
    throw new ConfigurationError(`${FILE} is '${path}': it cannot be read: ${reasonOf(error)}`)
  }
  const values = new Map()
  for (const line of text.split('\n')) {
    const found = LINE.exec(line.trim())
    if (found !== null) values.set(found[1], found[2] || found[3] || found[4] || '')
  }
  return values
}

// -- the pair ---------------------------------------------------------------------------------------------------------

const Z85 = '0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#'
const PKCS8 = Buffer.from('302e020100300506032b656e04220420', 'hex') // the head of a private X25519 key
const KEY_BYTES = 32

/** CURVE's keys are X25519: the public key follows from the secret one. */
function publicKeyOf(secretKey) {
  const der = Buffer.concat([PKCS8, fromZ85(secretKey)])
  const secret = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' })
  return createPublicKey(secret).export({ format: 'der', type: 'spki' }).subarray(-KEY_BYTES)
}

/** Five characters are four bytes. */
function fromZ85(text) {
  const bytes = Buffer.alloc((text.length / 5) * 4)
  for (let i = 0; i < text.length; i += 5) {
    let value = 0
    for (const character of text.slice(i, i + 5)) value = value * 85 + Z85.indexOf(character)
    bytes.writeUInt32BE(value % 2 ** 32, (i / 5) * 4)
  }
  return bytes
}
