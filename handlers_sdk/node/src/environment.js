/** The environment variables STEPWIRE_*, and checks of endpoints, because libzmq reports only an error number. */

import * as limits from './protocol/limits.js'
import * as curve from './curve.js'
import { ConfigurationError } from './errors.js'

export const STEPS_DEFAULT = 'ipc://.stepwire/steps.sock'
export const RESULTS_DEFAULT = 'ipc://.stepwire/results.sock'
export const SLOTS_DEFAULT = 10
const SLOTS_MAX = 10_000
const IPC_PATH_BYTES_MAX = 107

const NAME = /^[A-Za-z0-9._-]{1,48}$/
const LABEL = /^[^=,]{1,128}$/

/** The settings of a worker that the environment can hold. Throws ConfigurationError. */
export function read(environ = process.env) {
  return {
    steps: list(environ.STEPWIRE_STEPS || STEPS_DEFAULT),
    results: list(environ.STEPWIRE_RESULTS || RESULTS_DEFAULT),
    name: environ.STEPWIRE_NAME || undefined,
    slots: readSlots(environ.STEPWIRE_SLOTS || String(SLOTS_DEFAULT)),
    labels: readLabels(environ.STEPWIRE_LABELS || ''),
    handlerVersion: environ.STEPWIRE_HANDLER_VERSION || '',
    ...curve.read(environ),
    secrets: environ.STEPWIRE_SECRETS_DIR || null,
    sealKeysFile: environ.STEPWIRE_SEAL_KEYS_FILE || null,
  }
}

/** The endpoints in pairs, one pair for each broker. Throws ConfigurationError. */
export function links(steps, results) {
  if (steps.length === 0 || steps.length !== results.length) {
    throw new ConfigurationError(
      `${steps.length} endpoints for steps and ${results.length} for results: each broker needs one of each, ` +
        'in the same order (STEPWIRE_STEPS, STEPWIRE_RESULTS; separate several with commas)',
    )
  }
  for (const endpoint of steps) checkEndpoint('steps', endpoint)
  for (const endpoint of results) checkEndpoint('results', endpoint)
  return steps.map((endpoint, i) => ({ steps: endpoint, results: results[i] }))
}

export function checkName(name) {
  if (!NAME.test(name)) {
    throw new ConfigurationError(`worker name '${name}': it needs 1 to 48 of letters, digits, . _ - (STEPWIRE_NAME)`)
  }
  return name
}

export function checkSlots(slots) {
  if (!Number.isInteger(slots) || slots < 1 || slots > SLOTS_MAX) {
    throw new ConfigurationError(`slots is ${slots}: it needs to be 1 to ${SLOTS_MAX} (STEPWIRE_SLOTS)`)
  }
  return slots
}

export function checkHandlerVersion(version) {
  if (typeof version !== 'string' || version.length > limits.HANDLER_VERSION_MAX) {
    throw new ConfigurationError(
      `handler_version has ${String(version).length} characters: it needs at most ${limits.HANDLER_VERSION_MAX}` +
        ' (STEPWIRE_HANDLER_VERSION)',
    )
  }
  return version
}

export function checkSecrets(secrets = null) {
  if (secrets !== null && typeof secrets !== 'string' && typeof secrets !== 'function') {
    throw new ConfigurationError(
      `secrets is of the type ${typeof secrets}: it needs a directory, or a function from a name to the value ` +
        '(STEPWIRE_SECRETS_DIR)',
    )
  }
  return secrets
}

function checkEndpoint(kind, endpoint) {
  const subject = `the ${kind} endpoint '${endpoint}'`
  const at = endpoint.indexOf('://')
  const scheme = endpoint.slice(0, at)
  const rest = endpoint.slice(at + 3)
  if (at < 0 || rest === '') {
    throw new ConfigurationError(`${subject} needs a form like tcp://127.0.0.1:7411 or ipc://.stepwire/${kind}.sock`)
  }
  if (scheme === 'tcp') checkAddress(subject, rest)
  else if (scheme === 'ipc') {
    const size = Buffer.byteLength(rest)
    if (size > IPC_PATH_BYTES_MAX) {
      throw new ConfigurationError(
        `${subject}: the path has ${size} bytes, and the system allows ${IPC_PATH_BYTES_MAX}: use a relative path`,
      )
    }
  } else {
    throw new ConfigurationError(`${subject}: ${scheme}:// is not supported; use tcp:// or ipc://`)
  }
}

function checkAddress(subject, address) {
  const [, host, port] = /^(\[[^\]]*\]|[^:[\]]*)(?::(.*))?$/.exec(address) ?? [null, '', '']
  if (!port || port === '0') {
    throw new ConfigurationError(`${subject} has no port: it needs a form like tcp://127.0.0.1:7411`)
  }
  if (!/^[0-9]{1,5}$/.test(port) || Number(port) > 65535) {
    throw new ConfigurationError(`${subject}: the port '${port}' needs to be 1 to 65535`)
  }
  if (host === '' || host === '*' || host === '[]') {
    throw new ConfigurationError(`${subject} names no host: a worker connects, and only a broker may bind to *`)
  }
}

function list(text) {
  return text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '')
}

function readSlots(text) {
  if (!/^[0-9]{1,6}$/.test(text)) {
    throw new ConfigurationError(`STEPWIRE_SLOTS is '${text}': it needs a whole number, 1 to ${SLOTS_MAX}`)
  }
  return checkSlots(Number(text))
}

function readLabels(text) {
  const labels = {}
  for (const part of list(text)) {
    const at = part.indexOf('=')
    const key = part.slice(0, Math.max(at, 0)).trim()
    if (!LABEL.test(key)) {
      throw new ConfigurationError(`STEPWIRE_LABELS has '${part}': it needs a form like region=eu,gpu=true`)
    }
    labels[key] = part.slice(at + 1).trim()
  }
  return labels
}
