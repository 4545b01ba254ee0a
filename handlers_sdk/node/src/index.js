/** Stepwire for Node: a worker that runs steps of workflows. */

import './node_version.js'

export { Context, RunStopped } from './context.js'
export { ConfigurationError, OutcomeUnknown, Permanent, Retry, StepError, StepwireError } from './errors.js'
export { Worker } from './worker/worker.js'
