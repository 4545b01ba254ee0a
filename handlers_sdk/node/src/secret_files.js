/**
 * Reads the value of a secret from a file in STEPWIRE_SECRETS_DIR: `stripe/live` is the file `stripe/live` in there.
 *
 * Symbolic links may lead to files inside the directory, as Kubernetes makes them, and nowhere else.
 */

import { closeSync, constants, fstatSync, openSync, readSync, realpathSync, statSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { StepwireError } from './errors.js'
import { reasonOf } from './system_errors.js'
import { quoted } from './texts.js'

const VALUE_BYTES_MAX = 64 * 1024
const ROOT = 0
const FLAGS = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK
const fatal = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/**
 * The secret has no value that may be used. The message never holds the value.
 *
 * `category` is `unavailable` if the service that holds the secrets has failed.
 */
export class SecretUnavailable extends StepwireError {
  constructor(message, { isServiceAtFault = false } = {}) {
    super(message)
    this.category = isServiceAtFault ? 'unavailable' : null
  }
}

/**
 * The value of the secret with this name, which has the form of a reference. Throws SecretUnavailable.
 *
 * One line end at the end of the file is not part of the value.
 */
export function readSecret(directory, name) {
  const secret = `secret ${quoted(name)}`
  const root = checkedDirectory(directory)
  let file
  try {
    const path = realpathSync(join(root, name))
    if (!path.startsWith(root.endsWith('/') ? root : `${root}/`)) {
      throw new SecretUnavailable(`${secret}: its file is a link that leads out of ${directory}`)
    }
    file = openSync(path, FLAGS)
  } catch (error) {
    throw notRead(error, secret, directory)
  }
  try {
    checkFile(`${secret}: its file in ${directory}`, fstatSync(file))
    return valueOf(name, contentOf(file))
  } catch (error) {
    throw notRead(error, secret, directory)
  } finally {
    closeSync(file)
  }
}

function notRead(error, secret, directory) {
  if (error instanceof SecretUnavailable) return error
  if (error.code === 'ENOENT') return new SecretUnavailable(`${secret}: there is no such file in ${directory}`)
  return new SecretUnavailable(`${secret}: its file in ${directory} cannot be read: ${reasonOf(error)}`)
}

/** At most one byte more than a value may have. */
function contentOf(file) {
  const content = Buffer.alloc(VALUE_BYTES_MAX + 1)
  let size = 0
  for (let part = -1; part !== 0 && size < content.length; size += part) {
    part = readSync(file, content, size, content.length - size, null)
  }
  return content.subarray(0, size)
}

/** The value that the content of a file means. Throws SecretUnavailable. */
export function valueOf(name, content) {
  const secret = `secret ${quoted(name)}`
  if (content.length > VALUE_BYTES_MAX) {
    throw new SecretUnavailable(`${secret}: its file has more than ${VALUE_BYTES_MAX} bytes`)
  }
  let text
  try {
    text = fatal.decode(content)
  } catch {
    throw new SecretUnavailable(`${secret}: its file is no UTF-8 text; store binary data as Base64`)
  }
  text = text.replace(/\r?\n$/, '')
  if (text === '') throw new SecretUnavailable(`${secret}: its file is empty`)
  return text
}

/** The directory without links, checked. */
function checkedDirectory(directory) {
  const subject = `the directory of secrets ${quoted(directory)}`
  let root
  let stat
  try {
    root = realpathSync(resolve(directory))
    stat = statSync(root)
  } catch (error) {
    throw new SecretUnavailable(`${subject} cannot be read: ${reasonOf(error)}`)
  }
  if (!stat.isDirectory()) throw new SecretUnavailable(`${subject} is no directory`)
  if (!isOwn(stat)) throw new SecretUnavailable(`${subject} belongs to another user: chown it`)
  const isProtected = (stat.mode & 0o022) === 0 || (stat.mode & 0o1000) !== 0 // sticky: only owners replace files
  if (!isProtected) throw new SecretUnavailable(`other users may write ${subject}: chmod 700 ${directory}`)
  return root
}

function checkFile(where, stat) {
  if (!stat.isFile()) throw new SecretUnavailable(`${where} is no regular file`)
  if (!isOwn(stat)) throw new SecretUnavailable(`${where} belongs to another user: chown it`)
  if ((stat.mode & 0o027) !== 0) {
    const mode = (stat.mode & 0o7777).toString(8).padStart(4, '0')
    throw new SecretUnavailable(`${where} has the mode ${mode}, so other users may use it: chmod 600, or 400`)
  }
}

/** True if this user or root owns the file. */
export const isOwn = (stat) => stat.uid === process.geteuid() || stat.uid === ROOT
