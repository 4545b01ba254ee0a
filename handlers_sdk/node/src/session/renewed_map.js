/**
 * A Map of a few entries that come and go quickly.
 *
 * V8 moves the entries of a Map to a new table now and then, and links the old table to the new one. A collection of the
 * whole heap puts the current table into the old generation. From then on it keeps all later tables alive, with all entries
 * that were ever in them, until the next such collection: a fifth of the processor time of a busy worker. A copy of the Map
 * has no such link.
 */

const DELETED_MAX = 1_000 // entries, before the Map is copied

export class RenewedMap {
  constructor() {
    this.map = new Map()
    this.deleted = 0 // since the last copy
  }

  get size() {
    return this.map.size
  }

  has(key) {
    return this.map.has(key)
  }

  get(key) {
    return this.map.get(key)
  }

  set(key, value) {
    this.map.set(key, value)
  }

  delete(key) {
    if (!this.map.delete(key)) return
    this.deleted += 1
    if (this.deleted >= DELETED_MAX && this.deleted >= this.map.size) {
      this.map = new Map(this.map) // in the same order
      this.deleted = 0
    }
  }

  values() {
    return this.map.values()
  }

  [Symbol.iterator]() {
    return this.map.entries()
  }
}
