/** Why no broker answers at an endpoint: ZeroMQ reports nothing, so this module looks itself. */

import { statSync } from 'node:fs'
import { connect } from 'node:net'
import { isAbsolute, resolve } from 'node:path'

import { keyOf } from './events.js'

const CONNECT_MS = 1_000
const ELSEWHERE = 'set STEPWIRE_STEPS and STEPWIRE_RESULTS to what `stepwire serve` prints'

/** The endpoint with an absolute path. */
export function shown(endpoint) {
  const path = pathOf(endpoint)
  return path === null ? endpoint : `ipc://${resolve(path)}`
}

/** The endpoint at fault, and why no broker answers there. Waits at most CONNECT_MS for each connection. */
export async function diagnosis(link, publicKey = null) {
  for (const endpoint of [link.steps, link.results]) {
    const fault = await faultOf(endpoint)
    if (fault !== null) return { endpoint: shown(endpoint), reason: fault }
  }
  const keys =
    publicKey === null
      ? 'A broker with CURVE needs keys, STEPWIRE_CURVE_FILE'
      : `Check also the three CURVE keys: ${keyOf(publicKey)}, and its log for the code (connection_refused)`
  const reason =
    'a process accepts connections there, but does not answer as a broker. Check that STEPWIRE_STEPS and ' +
    "STEPWIRE_RESULTS name the broker's `bus.steps` and `bus.results`, in this order, and not its HTTP address. " +
    keys
  return { endpoint: shown(link.steps), reason }
}

/** The path of an ipc endpoint; null for other transports and for abstract names. */
function pathOf(endpoint) {
  return endpoint.startsWith('ipc://') && !endpoint.startsWith('ipc://@') ? endpoint.slice(6) : null
}

async function faultOf(endpoint) {
  const path = pathOf(endpoint)
  if (path !== null) return faultOfPath(path)
  if (!endpoint.startsWith('tcp://')) return null
  const at = endpoint.lastIndexOf(':')
  return faultOfAddress(endpoint.slice(6, at).replace(/^\[|\]$/g, ''), Number(endpoint.slice(at + 1)))
}

async function faultOfPath(path) {
  let isSocket
  try {
    isSocket = statSync(path).isSocket()
  } catch (error) {
    if (error.code === 'EACCES') return 'this user may not read the directory'
    if (isAbsolute(path)) return `there is no such socket. Start the broker, or ${ELSEWHERE}`
    return (
      'there is no such socket. The path is relative to this directory: ' +
      `start the worker where the broker runs, or ${ELSEWHERE}`
    )
  }
  if (!isSocket) return `this is not a socket. Remove it, or ${ELSEWHERE}`
  const error = await connectionFault({ path })
  if (error === null) return null
  if (error.code === 'EACCES') {
    return 'this user may not connect to the socket: run worker and broker as the same user'
  }
  return 'the socket exists, but no process listens there. Start the broker'
}

async function faultOfAddress(host, port) {
  const error = await connectionFault({ host, port })
  if (error === null) return null
  const code = error.errors?.[0]?.code ?? error.code // of a name with several addresses: the first fault
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN') {
    return `the host name '${host}' cannot be resolved: check its spelling, and the name service of this machine`
  }
  if (code === 'ETIMEDOUT') return 'no answer: the host is down, or a firewall drops the connection'
  if (code === 'ECONNREFUSED') {
    return `no process listens on port ${port}. Start the broker with this endpoint, or ${ELSEWHERE}`
  }
  return error.message
}

/** Connect and disconnect. null, or the error. */
function connectionFault(address) {
  return new Promise((settle) => {
    const socket = connect(address)
    const end = (error) => {
      clearTimeout(timer)
      socket.destroy()
      settle(error)
    }
    const timer = setTimeout(() => end(Object.assign(new Error('timed out'), { code: 'ETIMEDOUT' })), CONNECT_MS)
    socket.once('connect', () => end(null))
    socket.once('error', end)
  })
}
