/**
 * The source of a worker's secrets, and the replacement of references in a step.
 *
 * A reference counts in `handler_config`, and in the input of the handler: `input` if the workflow defines one, otherwise
 * the task's context. Outputs of other steps are data: a reference in `previous_results` stays a reference.
 */

import { places } from './protocol/secret_references.js'
import { OUTPUT_CHARS_MIN, Redactor, lengthOf, remember } from './redaction.js'
import { SecretUnavailable, readSecret } from './secret_files.js'
import { quoted } from './texts.js'
import { typeOf } from './tracebacks.js'

/** The resolver for a directory, for a function, or for a worker without secrets. */
export function resolverOf(source) {
  if (typeof source === 'function') return source
  if (source) return (name) => readSecret(source, name)
  return (name) => {
    throw new SecretUnavailable(
      `secret ${quoted(name)}: this worker reads no secrets: set STEPWIRE_SECRETS_DIR to a directory of files, or pass ` +
        'new Worker({ secrets })',
    )
  }
}

/**
 * Write the value into the step in the place of each reference. Returns the values by their names, or a promise of them
 * if the resolver is asynchronous. Throws SecretUnavailable.
 *
 * Each secret is read once for a step, so its values agree with each other, and again for the next step, so a rotated
 * secret is used at once.
 */
export function resolve(step, resolver) {
  const found = []
  for (const member of ['handler_config', 'input' in step ? 'input' : 'task_context']) {
    places(step, member, refuse, found)
  }
  const names = [...new Set(found.map((place) => place.name))]
  const values = names.map((name) => valueOf(name, resolver))
  return values.some((value) => value instanceof Promise)
    ? Promise.all(values).then((settled) => written(found, names, settled))
    : written(found, names, values)
}

/** The broker checks references, but not the outputs of which it makes an `input`. */
function refuse(fault) {
  throw new SecretUnavailable(fault)
}

function written(found, names, texts) {
  const values = new Map(names.map((name, i) => [name, texts[i]]))
  for (const { container, key, name } of found) container[key] = values.get(name)
  remember(values)
  return values
}

/** The value of one secret, or a promise of it. */
export function valueOf(name, resolver) {
  let value
  try {
    value = resolver(name)
  } catch (error) {
    throw failure(name, error)
  }
  if (typeof value?.then !== 'function') return checked(name, value)
  return Promise.resolve(value).then(
    (settled) => checked(name, settled),
    (error) => {
      throw failure(name, error)
    },
  )
}

/** The text of the resolver's own error may hold anything. */
function failure(name, error) {
  if (error instanceof SecretUnavailable) return error
  const text = `secret ${quoted(name)}: the resolver of this worker failed with ${typeOf(error)}`
  return new SecretUnavailable(text, { isServiceAtFault: true })
}

function checked(name, value) {
  if (value === null || value === undefined) {
    throw new SecretUnavailable(`secret ${quoted(name)}: the resolver of this worker does not know it`)
  }
  if (typeof value !== 'string' || value === '') {
    throw new SecretUnavailable(`secret ${quoted(name)}: the resolver of this worker returned no text`)
  }
  return value
}

/** The output, as JSON, with the names of secrets in the place of these values, if they are long enough. */
export function withoutValues(output, values) {
  const redactor = new Redactor()
  for (const [name, value] of values) if (lengthOf(value) >= OUTPUT_CHARS_MIN) redactor.add(name, value)
  return redactor.isActive ? JSON.stringify(redactor.redacted(JSON.parse(output))) : output
}
