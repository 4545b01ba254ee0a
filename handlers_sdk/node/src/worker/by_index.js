/** Runs or their calls by `index`, their place in shared memory: small numbers, which are used again. */
export class ByIndex {
  constructor() {
    this.size = 0
    this.entries = []
  }

  add(entry) {
    this.entries[entry.index] = entry
    this.size += 1
  }

  /** null if there is none at this place. */
  get(index) {
    return this.entries[index] ?? null
  }

  /** Remove the entry, and return it. */
  take(index) {
    const entry = this.entries[index]
    this.entries[index] = null
    this.size -= 1
    return entry
  }
}
