/** The vectors of protocol/vectors. */

import { readFileSync } from 'node:fs'

export const read = (name) =>
  JSON.parse(readFileSync(new URL(`../../../protocol/vectors/${name}`, import.meta.url), 'utf8'))
