/**
 * Sealed steps at a worker: the handler works with plaintext, and only sealed outputs and errors leave the worker.
 *
 * A step is sealed if its context is. The broker stores no unsealed output of such a step.
 */

import * as strictJson from './protocol/strict_json.js'
import { ERROR_MESSAGE, isSealed, plainWord } from './protocol/sealed_payloads.js'
import { NotUnsealed } from './sealing.js'

const ERROR_BYTES_MAX = 5_000 // of an error's text as JSON: sealed, it fits into the 8 KiB that a broker stores
const MESSAGE_CHARS_MAX = 1_000

/** The task for which the context of this step was sealed; null if it is not sealed. Throws NotUnsealed. */
export function taskOf(step) {
  if (!isSealed(step.task_context)) return null
  const { namespace, workflow, key } = step.task_context.task ?? {}
  if ([namespace, workflow, key].some((name) => typeof name !== 'string')) {
    throw new NotUnsealed('the context is sealed, and does not name its task')
  }
  return { namespace, workflow, key }
}

/**
 * Write plaintext into the step: its context, and the outputs of the steps that it depends on. An `input` stays as it is,
 * because it is made of clear members. Throws NotUnsealed.
 */
export function unseal(step, task, keys) {
  step.task_context = read('context', keys.unseal('context', task, null, step.task_context))
  const outputs = step.previous_results
  for (const name of Object.keys(outputs)) {
    if (isSealed(outputs[name])) outputs[name] = read('output', keys.unseal('output', task, name, outputs[name]))
  }
}

/** Strictly, as a message is read: JSON.parse would round long integers. */
function read(kind, plaintext) {
  try {
    return strictJson.parse(plaintext).value
  } catch (refusal) {
    throw new NotUnsealed(`the ${kind} is sealed, and its content is not JSON as messages have it: ${refusal.code}`)
  }
}

/** The error of a result, sealed. `code` and `category` stay readable if they are words. */
export function sealedError(step, task, keys, error) {
  let message = [...error.message].slice(0, MESSAGE_CHARS_MAX).join('')
  let backtrace = error.backtrace ?? []
  let plaintext
  for (;;) {
    plaintext = JSON.stringify({ message, backtrace })
    if (Buffer.byteLength(plaintext) <= ERROR_BYTES_MAX) break
    if (backtrace.length === 0) message = [...message].slice(0, Math.floor([...message].length / 2)).join('')
    backtrace = backtrace.slice(0, -1) // the first lines explain most
  }
  return {
    ...error,
    message: ERROR_MESSAGE,
    code: plainWord(error.code),
    category: plainWord(error.category),
    backtrace: [keys.seal('error', task, step.step_name, plaintext)],
  }
}
