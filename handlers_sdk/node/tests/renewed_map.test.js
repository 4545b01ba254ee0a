import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as v8 from 'node:v8'
import { runInNewContext } from 'node:vm'
import { RenewedMap } from '../src/session/renewed_map.js'

test('a renewed map keeps the order of its entries', () => {
  const map = new RenewedMap()
  for (let i = 0; i < 20_000; i++) {
    map.set(i, `${i}`)
    if (i >= 3) map.delete(i - 3)
  }
  assert.equal(map.size, 3)
  assert.deepEqual(
    [...map],
    [19_997, 19_998, 19_999].map((key) => [key, `${key}`]),
  )
  assert.deepEqual([map.get(19_998), map.get(5), map.has(5), map.has(19_999)], ['19998', undefined, false, true])
})

test('entries that were removed from a renewed map do not fill the old generation of the heap', () => {
  v8.setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc')
  const oldBytes = () => v8.getHeapSpaceStatistics().find((space) => space.space_name === 'old_space').space_used_size
  const map = new RenewedMap()
  let key = 0
  const work = (rounds) => {
    for (let round = 0; round < rounds; round++) {
      for (let i = 0; i < 2_000; i++) {
        map.set(key, new Array(50).fill(key))
        map.delete(key - 100)
        key += 1
      }
      gc({ type: 'minor' })
    }
  }
  work(10)
  gc() // moves the table to the old generation
  const before = oldBytes()
  work(100)
  assert.ok(oldBytes() - before < 2 ** 20, `${oldBytes() - before} bytes of 80 MB`)
})
