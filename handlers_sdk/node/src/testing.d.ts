/** Run a handler without a broker, in a unit test. */

import type { CancelReason, HandlerFunction, Logger, Worker } from './index.js'

export interface RunOptions {
  /** With a worker: the handler to run. */
  handlerClass?: string
  /** The outputs of the steps that this step depends on. */
  results?: Record<string, unknown>
  config?: unknown
  attempt?: number
  deliveryMode?: 'at_least_once' | 'at_most_once'
  timeoutMs?: number
  idempotencyKey?: string
  traceparent?: string | null
  tracestate?: string | null
  /** The values of the secrets to which the input and the configuration refer. */
  secrets?: Record<string, string>
  logger?: Logger | null
  /** Asks the run to stop, as the cancelling of its task would. */
  signal?: AbortSignal
}

/** The failure that a worker would have reported. */
export interface ErrorDetail {
  message: string
  code: string | null
  category: string | null
  retryable: boolean | null
  retry_after_ms: number | null
  backtrace: string[] | null
}

export interface Outcome<Output = any> {
  status: 'completed' | 'failed' | 'error'
  /** Decoded from its JSON, as a dependent step would read it; null if the run has failed. */
  output: Output
  error: ErrorDetail | null
  progress: { done: number; total: number | null; note: string | null }[]
}

/** Run a handler once, with the decoding, encoding and mapping of errors of a worker. */
export function run<Input, Output>(
  handler: HandlerFunction<Input, Output>,
  input?: Input,
  options?: RunOptions,
): Promise<Outcome<Output>>
export function run(worker: Worker, input: unknown, options: RunOptions & { handlerClass: string }): Promise<Outcome>

export type { CancelReason }
