/** The `Worker` class for programs: configuration, handlers, signals, start and stop. */

import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import * as limits from '../protocol/limits.js'
import * as curve from '../curve.js'
import { Edge } from '../edge.js'
import * as environment from '../environment.js'
import { ConfigurationError } from '../errors.js'
import { makeHandler } from '../handler.js'
import * as identity from '../identity.js'
import * as logs from '../logs.js'
import { HandlerSide } from './handler_side.js'

const DRAIN_MS = 25_000
const ACCEPT_DELAY_MS = 5
const INTERRUPTED = 130
const OPTIONS = new Set([
  'steps',
  'results',
  'name',
  'slots',
  'prefetch',
  'labels',
  'handlerVersion',
  'heartbeatMs',
  'curveServerKey',
  'curvePublicKey',
  'curveSecretKey',
  'secrets',
  'sealKeysFile',
  'logger',
])

/**
 * Offers handlers to the brokers at the given endpoints.
 *
 * `slots` is the number of steps that run at a time. Further steps wait in the worker: as many as it is observed to
 * finish in 40 ms, at least `prefetch`. With `prefetch: 0`, no step waits here.
 *
 * `secrets` resolves references like `{"$secret": "stripe/live"}` in a step's configuration and input: a directory of
 * files, or a function from the name to the value, which may be async. `sealKeysFile` has the keys of sealed payloads.
 *
 * For several brokers, `steps` and `results` are lists, with one pair for each broker. The worker gets its id and
 * connects in `run` or `start`, not before.
 */
export class Worker {
  #links
  #name
  #slots
  #prefetch
  #labels
  #handlerVersion
  #heartbeatMs
  #curve
  #edge
  #logger
  #handlers = []
  #side = null
  #id = null
  #hasEnded = false

  /** @param {any} options */
  constructor(options = {}) {
    for (const option of Object.keys(options)) {
      if (!OPTIONS.has(option)) {
        throw new ConfigurationError(`Worker has no option ${option}; it has ${[...OPTIONS].join(', ')}`)
      }
    }
    const { prefetch = null, heartbeatMs = limits.HEARTBEAT_MS } = options
    if (prefetch !== null && !(Number.isInteger(prefetch) && prefetch >= 0)) {
      throw new ConfigurationError(`prefetch is ${prefetch}: it needs to be 0 or more`)
    }
    if (!(Number.isInteger(heartbeatMs) && heartbeatMs >= 50 && heartbeatMs <= limits.LEASE_MS / 2)) {
      throw new ConfigurationError(`heartbeatMs is ${heartbeatMs}: it needs to be 50 to ${limits.LEASE_MS / 2}`)
    }
    this.#links = environment.links(
      [options.steps ?? environment.STEPS_DEFAULT].flat(),
      [options.results ?? environment.RESULTS_DEFAULT].flat(),
    )
    this.#name = environment.checkName(options.name ?? defaultName())
    this.#slots = environment.checkSlots(options.slots ?? environment.SLOTS_DEFAULT)
    this.#prefetch = prefetch
    this.#labels = { ...options.labels }
    this.#handlerVersion = environment.checkHandlerVersion(options.handlerVersion ?? '')
    this.#heartbeatMs = heartbeatMs
    this.#curve = curve.check(options)
    this.#edge = new Edge(environment.checkSecrets(options.secrets), options.sealKeysFile)
    this.#logger = logs.checkLogger(options.logger)
  }

  /**
   * A worker configured by STEPWIRE_STEPS, STEPWIRE_RESULTS, STEPWIRE_NAME, STEPWIRE_SLOTS, STEPWIRE_LABELS,
   * STEPWIRE_HANDLER_VERSION, STEPWIRE_CURVE_*, STEPWIRE_SECRETS_DIR and STEPWIRE_SEAL_KEYS_FILE. `changes` are options
   * of `Worker`, and override the environment.
   */
  static fromEnv(changes = {}) {
    return new Worker({ ...environment.read(), ...changes })
  }

  /**
   * Register a function for a handler_class, or for a pattern (`Billing::**`). It is called with the input and the
   * context, and may be async. `concurrency` is the maximum number of runs of this handler at a time; `timeoutMs`
   * shortens the step's timeout; `input` checks the input.
   */
  handle(name, ...rest) {
    const [options, run] = rest.length > 1 ? rest : [{}, rest[0]]
    const handler = makeHandler(name, options ?? {}, run)
    if (this.#side !== null) {
      throw new ConfigurationError(
        `handler '${name}' is registered too late: register handlers before the worker starts`,
      )
    }
    if (this.#handlers.some((known) => known.name === name)) {
      throw new ConfigurationError(`handler '${name}' is registered twice in this worker`)
    }
    if (this.#handlers.length >= limits.HANDLERS_MAX) {
      throw new ConfigurationError(`more than ${limits.HANDLERS_MAX} handlers: register a pattern instead`)
    }
    this.#handlers.push(handler)
    return this
  }

  /** The registered handlers. */
  get handlers() {
    return [...this.#handlers]
  }

  /** The worker id of this process; null before the start. */
  get id() {
    return this.#id
  }

  // -- life -----------------------------------------------------------------------------------------------------------

  /**
   * Run until a signal ends the worker. TERM and INT drain; a second INT exits at once. After TSTP the worker accepts no
   * new steps.
   */
  async run() {
    let interrupts = 0
    const listeners = {
      SIGTERM: () => this.drain(),
      SIGTSTP: () => this.quiet(),
      SIGINT: () => {
        interrupts += 1
        if (interrupts > 1) process.exit(INTERRUPTED)
        this.drain()
      },
    }
    for (const [signal, listener] of Object.entries(listeners)) process.on(signal, listener)
    let abandoned
    try {
      this.start()
      abandoned = await this.#end()
    } finally {
      for (const [signal, listener] of Object.entries(listeners)) process.off(signal, listener)
    }
    // Runs that did not stop in time would keep the process: their steps belong to other workers by now.
    if (abandoned > 0) process.exit()
  }

  /** Connect, and run in the background. */
  start() {
    if (this.#handlers.length === 0) {
      throw new ConfigurationError('the worker has no handlers: register some with worker.handle(...)')
    }
    if (this.#side !== null && !this.#hasEnded) throw new ConfigurationError('the worker has started already')
    const process = identity.thisProcess()
    this.#hasEnded = false
    this.#id = identity.newWorkerId(this.#name)
    const config = {
      worker: this.#id,
      offers: this.#handlers.map((handler) => handler.offer),
      slots: this.#slots,
      prefetch: this.#prefetch,
      labels: this.#labels,
      links: this.#links,
      curve: this.#curve !== null,
      heartbeatMs: this.#heartbeatMs,
      acceptDelayMs: ACCEPT_DELAY_MS,
      lang: 'node',
      sdk: `stepwire-node/${version()}`,
      handlerVersion: this.#handlerVersion,
      host: process.host,
      pid: process.pid,
      pidStarted: process.pidStarted,
      proof: process.isProvable,
    }
    const side = new HandlerSide({
      config,
      handlers: this.#handlers,
      curve: this.#curve,
      logger: this.#logger,
      edge: this.#edge,
    })
    side.ended.then(() => (this.#hasEnded = true))
    this.#side = side
  }

  /** Accept no new steps, finish the steps that are held, and stay connected. */
  quiet() {
    this.#side?.quiet()
  }

  /** Begin to stop: return steps that have not started, let runs finish for at most `drainMs`, then end. */
  drain(drainMs = DRAIN_MS) {
    this.#side?.drain(drainMs)
  }

  /** Drain, and wait for the end. */
  async stop(drainMs = DRAIN_MS) {
    this.drain(drainMs)
    await this.wait()
  }

  /** Wait for the end of the worker. Rejects if a fault of the SDK ended it. */
  async wait() {
    await this.#end()
  }

  /** The number of runs that had not ended. */
  async #end() {
    if (this.#side === null) return 0
    const { abandoned, fault } = await this.#side.ended
    if (fault !== undefined) throw new Error(`the worker's socket thread has failed: ${fault}`)
    return abandoned
  }
}

/** The program's name, so that logs and lists of workers show which program runs. */
function defaultName() {
  const stem = basename(process.argv[1] ?? 'worker').replace(/\.[cm]?[jt]s$/, '')
  return (
    stem
      .replace(/[^A-Za-z0-9._-]/g, '-')
      .slice(0, 48)
      .replace(/^-+|-+$/g, '') || 'worker'
  )
}

/** The version of this package. */
export function version() {
  return JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version
}
