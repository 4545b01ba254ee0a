/**
 * References to secrets: `{"$secret": "stripe/live"}` stands for a value that only the worker can read.
 *
 * A reference is an object with this one member. Its name is a relative path of plain file names, so that a directory of
 * files can hold the values.
 */

import { quoted } from '../texts.js'

const MEMBER = '$secret'
const NAME_CHARS_MAX = 200
const SHOWN_CHARS_MAX = 60
const NAME_FORM = 'names of letters, digits, _, - and ., joined by /, at most 200 characters; none begins with . or -'
const NAME = /^[A-Za-z0-9_][A-Za-z0-9_.-]*(?:\/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$/

export const isName = (name) => typeof name === 'string' && name.length <= NAME_CHARS_MAX && NAME.test(name)

/**
 * The references in the member `key` of `container`, as places {container, key, name} to write the values to.
 * `onFault` is called with the fault of each object that has the member `$secret` and is no reference.
 */
export function places(container, key, onFault, found = []) {
  const value = container[key]
  if (typeof value !== 'object' || value === null) return found
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) places(value, i, onFault, found)
    return found
  }
  if (!Object.hasOwn(value, MEMBER)) {
    for (const inner of Object.keys(value)) places(value, inner, onFault, found)
    return found
  }
  const name = value[MEMBER]
  if (Object.keys(value).length > 1) {
    onFault(`a reference to a secret has the one member ${MEMBER}: move the others out of this object`)
  } else if (!isName(name)) {
    onFault(`${shown(name)} is not the name of a secret: ${NAME_FORM}`)
  } else {
    found.push({ container, key, name })
  }
  return found
}

function shown(name) {
  if (typeof name !== 'string') return 'a value that is no string'
  const characters = [...name]
  return quoted(characters.length <= SHOWN_CHARS_MAX ? name : `${characters.slice(0, SHOWN_CHARS_MAX).join('')}…`)
}
