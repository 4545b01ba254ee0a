/**
 * The edge between the wire and the handlers of a worker: opens a step before its handler, and closes its result after.
 *
 * A step is opened by unsealing its context and the outputs before it, and by replacing its references to secrets. The
 * result is closed by removing the values of secrets, and by sealing it.
 */

import { notOpened } from './handler.js'
import { SecretUnavailable } from './secret_files.js'
import * as sealedSteps from './sealed_steps.js'
import * as secretValues from './secret_values.js'
import { FILE, NotUnsealed, SealKeys } from './sealing.js'

const SECRET_UNAVAILABLE = 'secret_unavailable'
const NOT_UNSEALED = 'not_unsealed'

/** The secrets and the seal keys of a worker. */
export class Edge {
  #resolver
  #keys

  /** `secrets`: a directory, or a function; `sealKeysFile`: a path. Both may be null. Throws ConfigurationError. */
  constructor(secrets = null, sealKeysFile = null) {
    this.#resolver = secretValues.resolverOf(secrets)
    this.#keys = sealKeysFile ? SealKeys.ofFile(sealKeysFile) : null
  }

  /**
   * Write plaintext and the values of secrets into the step. Returns {values, task, refusal}, or a promise of it.
   * `refusal` is the result of a step that cannot be opened: its handler is not called; otherwise null.
   */
  open(step) {
    let task = null
    const refused = (error) => this.#refusal(step, task, error)
    try {
      task = sealedSteps.taskOf(step)
      if (task !== null) sealedSteps.unseal(step, task, this.#neededKeys())
      const values = secretValues.resolve(step, this.#resolver)
      if (values instanceof Promise) return values.then((settled) => opened(settled, task), refused)
      return opened(values, task)
    } catch (error) {
      return refused(error)
    }
  }

  #refusal(step, task, error) {
    let refusal
    if (error instanceof NotUnsealed) {
      refusal = notOpened(NOT_UNSEALED, error.message, null) // another worker may have the key
    } else if (error instanceof SecretUnavailable) {
      // The secret may arrive, or another worker may have it, so the step's policy decides about a retry.
      refusal = notOpened(SECRET_UNAVAILABLE, error.message, error.category)
      if (task !== null) refusal = this.#sealed(step, task, refusal)
    } else {
      throw error
    }
    return { values: new Map(), task: null, refusal }
  }

  /** The outcome as it may leave the worker: an output as JSON text, or a result with an error. */
  close(step, { values, task }, outcome) {
    if (typeof outcome !== 'string') return task === null ? outcome : this.#sealed(step, task, outcome)
    const output = values.size > 0 ? secretValues.withoutValues(outcome, values) : outcome
    return task === null ? output : this.#neededKeys().seal('output', task, step.step_name, output)
  }

  #sealed(step, task, result) {
    return { ...result, error: sealedSteps.sealedError(step, task, this.#neededKeys(), result.error) }
  }

  #neededKeys() {
    if (this.#keys === null) throw new NotUnsealed(`the step is sealed, and this worker has no keys: set ${FILE}`)
    return this.#keys
  }
}

const opened = (values, task) => ({ values, task, refusal: null })
