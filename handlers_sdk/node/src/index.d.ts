/** Stepwire for Node: a worker that runs steps of workflows. The README describes it. */

/** A JSON value, as it is stored with a step. */
export type Json = string | number | boolean | null | Json[] | { [name: string]: Json }

/** One delivery of a step, for its handler. */
export interface Context<Results = any, Config = any> {
  readonly taskId: number
  readonly stepId: number
  readonly stepName: string
  readonly handlerClass: string
  /** The number of failed attempts before this one. */
  readonly attempt: number
  readonly retryLimit: number
  /** Only increases: a store that keeps the highest value can refuse writes of an earlier run. */
  readonly delivery: number
  readonly deliveryMode: 'at_least_once' | 'at_most_once'
  /** The same for every attempt and delivery: pass it to every service that must not act twice. */
  readonly idempotencyKey: string
  /** The W3C trace context. Pass both on to the services that the handler calls. */
  readonly traceparent: string | null
  readonly tracestate: string | null
  /** True in a shadow run. The result is only compared, so the run must have no effects. */
  readonly isShadow: boolean
  /** The step's `handler_config`. */
  readonly config: Config
  /** The outputs of the steps that this step depends on, by step name. */
  readonly results: Results

  /** Milliseconds until the timeout; Infinity without a timeout. */
  readonly remainingMs: number
  /** The time of the timeout on the worker's own clock. */
  readonly deadlineMs: number
  /** Milliseconds since the start of the run. */
  readonly elapsedMs: number

  /** True when the run should stop. Also correct in a loop that never returns to the event loop. */
  readonly cancelled: boolean
  /** Why the run should stop; null while it may go on. */
  readonly cancelReason: CancelReason | null
  /** The same as `cancelled`, as a signal: pass it to `fetch`, timers and other calls. */
  readonly signal: AbortSignal
  /** True if the broker may now run the step on another worker. For information: it stops nothing. */
  readonly leaseLost: boolean

  /** Report progress to people: `done` of `total`, and a note of at most 200 characters. Calls are cheap. */
  progress(done: number, total?: number | null, note?: string | null): void
  /** A logger whose records carry the step's ids. */
  readonly log: StepLogger
  readonly logger: StepLogger
}

export type CancelReason = 'timeout' | 'task_cancelled' | 'not_granted' | 'superseded' | 'shutdown'

export interface StepLogger {
  debug(text: string, facts?: object): void
  info(text: string, facts?: object): void
  warn(text: string, facts?: object): void
  error(text: string, facts?: object): void
}

/** What a program passes as `logger`, for example `console`. */
export interface Logger {
  debug(text: string, facts: object): void
  info(text: string, facts: object): void
  warn(text: string, facts: object): void
  error(text: string, facts: object): void
}

/**
 * Runs a step: receives its input and the context, and returns the output, which must be JSON. It may be async.
 * `undefined` is `null`.
 */
export type HandlerFunction<Input = any, Output = unknown> = (input: Input, ctx: Context) => Output | Promise<Output>

/** Checks an input: a function that returns it or throws, a schema with `parse`, or a "Standard Schema". */
export type InputSchema<Input> =
  | ((value: unknown) => Input)
  | { parse(value: unknown): Input }
  | {
      readonly '~standard': {
        validate(value: unknown): any
        readonly types?: { readonly input: unknown; readonly output: Input } | undefined
      }
    }

export interface HandlerOptions {
  /** The maximum number of runs of this handler at a time. By default, the slots of the worker. */
  concurrency?: number | null
  /** Shortens the timeout of the step. */
  timeoutMs?: number | null
  /** The handler may receive shadow steps. */
  shadowSafe?: boolean
  /** The version of this handler, shown with its results. */
  version?: string | null
}

export interface Handler {
  readonly name: string
}

export interface WorkerOptions {
  /** One endpoint, or one for each broker. */
  steps?: string | string[]
  results?: string | string[]
  name?: string
  /** The number of steps that run at a time: 10 by default. */
  slots?: number
  /** The least number of steps that may wait in the worker. 0: none waits. */
  prefetch?: number | null
  labels?: Record<string, string>
  /** The release of the program's handlers, at most 64 characters. */
  handlerVersion?: string
  heartbeatMs?: number
  /** The brokers' public key, and the key pair of this worker: all three, or none. */
  curveServerKey?: string | null
  curvePublicKey?: string | null
  curveSecretKey?: string | null
  /** Resolves references like `{"$secret": "stripe/live"}`: a directory of files, or a function. */
  secrets?: string | SecretResolver | null
  /** The file with the keys of sealed payloads. */
  sealKeysFile?: string | null
  logger?: Logger | null
}

/** The value of the secret with this name; null or undefined if there is none. */
export type SecretResolver = (name: string) => string | null | undefined | Promise<string | null | undefined>

/** Offers handlers to brokers, and runs their steps. */
export class Worker {
  constructor(options?: WorkerOptions)
  /** Configured by STEPWIRE_*. `changes` override the environment. */
  static fromEnv(changes?: WorkerOptions): Worker

  /** Register a function for a handler_class, or for a pattern (`Billing::**`). */
  handle<Input = any, Output = unknown>(name: string, run: HandlerFunction<Input, Output>): this
  handle<Input, Output = unknown>(
    name: string,
    options: HandlerOptions & { input: InputSchema<Input> },
    run: HandlerFunction<Input, Output>,
  ): this
  handle<Input = any, Output = unknown>(
    name: string,
    options: HandlerOptions,
    run: HandlerFunction<Input, Output>,
  ): this

  readonly handlers: Handler[]
  /** The worker id of this process; null before the start. */
  readonly id: string | null

  /** Run until a signal ends the worker. TERM and INT drain; a second INT exits at once; TSTP: accept no new steps. */
  run(): Promise<void>
  /** Connect, and run in the background. */
  start(): void
  /** Accept no new steps, finish the steps that are held, and stay connected. */
  quiet(): void
  /** Begin to stop: return steps that have not started, let runs finish for at most `drainMs` (25,000), then end. */
  drain(drainMs?: number): void
  /** Drain, and wait for the end. */
  stop(drainMs?: number): Promise<void>
  /** Wait for the end of the worker. Rejects if a fault of the SDK ended it. */
  wait(): Promise<void>
}

/** Base of every error that Stepwire defines. */
export class StepwireError extends Error {}

/** A worker or handler cannot be set up as requested. */
export class ConfigurationError extends StepwireError {}

/** What `ctx.signal` throws in calls that use it, after the run was asked to stop. */
export class RunStopped extends StepwireError {
  readonly name: 'AbortError'
  readonly reason: CancelReason
}

export interface StepErrorOptions {
  code?: string | null
  /** `unavailable`: a resource that the handler needs cannot be reached. */
  category?: string | null
  cause?: unknown
}

/** The step failed, with a code from the handler. The step's policy decides about a retry. */
export class StepError extends StepwireError {
  constructor(message?: string, options?: StepErrorOptions)
  readonly code: string | null
  readonly category: string | null
  readonly retryable: boolean | null
}

/** The step failed, and a retry cannot help. */
export class Permanent extends StepError {}

/** The step failed, and must not be retried before `after` seconds. */
export class Retry extends StepError {
  constructor(message: string, options: StepErrorOptions & { after: number })
  readonly afterMs: number
}

/** The effect may or may not have happened. An at_least_once step is retried, an at_most_once step is held. */
export class OutcomeUnknown extends StepError {
  constructor(message?: string, options?: Omit<StepErrorOptions, 'code'>)
}
