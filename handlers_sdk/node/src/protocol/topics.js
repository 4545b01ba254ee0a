/**
 * Topics. A frame is a topic, one space, JSON. The constants and subscriptions of topics include that space.
 *
 * Without the space, a subscription of `results@b1` would also receive the messages to `results@b10`.
 */

export const BROKERS = 'brokers '
export const RESULTS = 'results '
export const WORKERS = 'workers '

export const WORKER_PATTERN = /^[A-Za-z0-9._-]{1,48}:[0-9a-f]{16}$/
export const BROKER_PATTERN = /^[a-z0-9-]{1,32}$/
export const SESSION_PATTERN = /^[0-9]{1,16}\.[0-9]{1,16}$/
export const CURVE_KEY_PATTERN = /^[0-9A-Za-z.\-:+=^!/*?&<>()[\]{}@%$#]{40}$/ // Z85

/** The topic of this worker. No other worker subscribes to it. */
export const toWorker = (worker) => `@${worker} `

/** The topic of this broker. No other broker subscribes to it. */
export const resultsTo = (broker) => `results@${broker} `

/** [epoch, k] of a session id. The codec has checked its form. */
export function sessionParts(session) {
  const dot = session.indexOf('.')
  return [Number(session.slice(0, dot)), Number(session.slice(dot + 1))]
}
