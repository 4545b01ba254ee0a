/**
 * The credit that a broker may still use: what the worker has named to it, and has not taken back with certainty.
 *
 * A worker takes credit back by naming less. The broker may send by the earlier number until it has read the later one,
 * and only its ack of that heartbeat proves that. Until then, no other broker is offered the same places.
 */

const ENTRIES_MAX = 128 // unacknowledged hellos and heartbeats that are told apart

/**
 * The credit named to one broker: an entry [n, free] for each hello or heartbeat that the broker may not have read.
 * Messages without an n of a hello or heartbeat count for the latest entry.
 */
export class Promises {
  constructor() {
    this.entries = []
  }

  /** The number of steps that the broker may still send. */
  get promised() {
    let most = 0
    for (const entry of this.entries) if (entry[1] > most) most = entry[1]
    return most
  }

  /** A hello or heartbeat with this number names this credit. */
  announce(n, free) {
    this.entries.push([n, free])
    if (this.entries.length > ENTRIES_MAX) {
      const [, oldestFree] = this.entries.shift()
      this.entries[0][1] = Math.max(this.entries[0][1], oldestFree)
    }
  }

  /** Another message names this credit. */
  name(free) {
    const last = this.entries.at(-1)
    if (last === undefined) this.entries.push([0, free])
    else if (free > last[1]) last[1] = free
  }

  /** The broker has sent this number of steps. */
  use(steps) {
    for (const entry of this.entries) entry[1] = Math.max(0, entry[1] - steps)
  }

  /** The broker has read the hello or heartbeat n, and with it everything before. True if fewer are promised. */
  acknowledge(n) {
    const before = this.promised
    this.entries = this.entries.filter((entry) => entry[0] >= n)
    return this.promised < before
  }
}
