/** The worker's events as log lines: one sentence each. The facts of the record hold the same for programs. */

import * as logs from '../logs.js'
import { clean } from '../texts.js'

const LISTED_MAX = 5 // handlers that a line names

const DROPPED = {
  lease_over: 'lost broker {broker}: it has not answered for a whole lease',
  unknown_session: 'broker {broker} has ended the session: it no longer knows this worker',
  expired: 'broker {broker} has ended the session: it did not receive heartbeats of this worker in time',
  version:
    'broker {broker} refuses this worker: they have no protocol version in common; ' +
    'use a broker and an SDK of the same release',
  unauthorized: 'broker {broker} refuses this worker: unauthorized',
  shutdown: 'broker {broker} shuts down',
  deployment_replaced: 'the session with broker {broker} has ended, because its database is another one',
}

/** Logs the events of one worker. `write` is called with the level, the text and the facts. */
export class WorkerEvents {
  /** `publicKey`: the CURVE key that the worker connects with, for its lines about refusals; null without keys. */
  constructor(workerId, linkOf, logger, publicKey = null) {
    this.workerId = workerId
    this.publicKey = publicKey
    this.linkOf = linkOf
    this.logger = logger
    this.epochs = new Map() // of each broker's last session
  }

  /** @param {any} facts */
  log(level, event, facts = {}) {
    const sentence = event === 'session_opened' ? this.opened(facts) : SENTENCES[event](facts)
    const isRefused = facts.why === 'unauthorized' || facts.code === 'unauthorized'
    const text = isRefused ? `${sentence}; ${keyOf(this.publicKey)}` : sentence
    logs.write(this.logger, level, clean(text), { event, worker: this.workerId, ...facts })
  }

  opened({ broker, session }) {
    const link = this.linkOf(broker)
    const epoch = session.split('.')[0]
    const before = this.epochs.get(broker)
    this.epochs.set(broker, epoch)
    const at = link === null ? '' : ` at ${link.steps}`
    const again = before === undefined ? '' : before === epoch ? ' again' : ' again, after its restart'
    return `connected to broker ${broker}${at}${again}`
  }
}

/** How a refused worker names its key, and what to do. */
export function keyOf(publicKey) {
  const key = publicKey === null ? 'this worker has no key' : `this worker's public key is ${publicKey}`
  return `${key}; on the broker's host see \`stepwire keys list\` and \`stepwire keys allow\``
}

function started({ name, pid, slots, handlers }) {
  const more = handlers.length > LISTED_MAX ? ` and ${handlers.length - LISTED_MAX} more` : ''
  const shown = handlers.slice(0, LISTED_MAX).join(', ')
  return `started as ${name}, process ${pid}, ${slots === 1 ? '1 slot' : `${slots} slots`}; offers ${shown}${more}`
}

function dropped({ broker, why, not_started: notStarted }) {
  const text = (DROPPED[why] ?? `the session with broker {broker} has ended (${why})`).replace('{broker}', broker)
  return notStarted > 0 ? `${text}; ${steps(notStarted)} that had not started will run elsewhere` : text
}

function ended({ unacknowledged }) {
  if (unacknowledged === 0) return 'the worker has ended'
  return `the worker has ended, and no broker has acknowledged ${steps(unacknowledged)}: they may run again`
}

function replaced({ broker, deployment, results_discarded: lost }) {
  const messages = lost === 1 ? '1 message' : `${lost} messages`
  return (
    `broker ${broker} has another database (${deployment}): ` + `${messages} with results for the earlier one discarded`
  )
}

const steps = (number) => (number === 1 ? '1 step' : `${number} steps`)

const SENTENCES = {
  worker_started: started,
  worker_drains: ({ running }) => `stopping: ${running ? `${steps(running)} may still finish` : 'no step is running'}`,
  worker_ended: ended,
  worker_failed: ({ error }) => `the worker ends, because its socket thread has failed: ${error}`,
  session_dropped: dropped,
  deployment_replaced: replaced,
  steps_refused: (facts) => `returned ${steps(facts.steps)} to broker ${facts.broker}: ${facts.code}`,
  message_unreadable: ({ code, why }) => `a message of a broker cannot be read: ${code}: ${why}`,
  message_refused: ({ broker, refused, code, message }) =>
    `broker ${broker} refused a message of this worker (${refused ?? 'None'}): ${code}: ${message}`,
  link_rebuilt: ({ link }) => `connecting to ${link.steps} again, because it is silent`,
  link_moved: ({ broker, link }) => `connecting to broker ${broker} at its new address ${link.steps}`,
  link_removed: ({ broker }) => `disconnected from broker ${broker}, because no list names it`,
  server_key_changed: ({ broker }) => `connecting to broker ${broker} again, because it has a new CURVE key`,
  broker_ignored: ({ broker }) =>
    `broker ${broker} is not connected, because it requires CURVE keys: set STEPWIRE_CURVE_FILE`,
  connect_failed: ({ endpoint, error }) => `cannot connect to ${endpoint}: ${error}`,
  no_broker: ({ seconds, endpoint, reason }) => `no broker for ${seconds} s: ${endpoint}: ${reason}`,
}
