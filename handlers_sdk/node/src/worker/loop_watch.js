/**
 * Detects a handler that blocks the event loop of the main thread, on which all handlers of a worker run.
 *
 * The sockets' thread checks while the worker holds steps. A check costs one message in a second.
 */

const CHECK_MS = 1_000
const MISSED_MAX = 2 // checks in a row; a count, because after a sleep of the computer the clock proves nothing

const ANSWERED = 0
const CURRENT = 1
const SOCKETS = 2

// The sockets of the other thread:
const NOT_OPEN = 0
const OPEN = 1
const CLOSED = 2 // also: they will never be opened

export const BEAT_BYTES = 12

/**
 * `beat` is shared with the main thread: the number of its last answer, the run that computes there, and the state of
 * the sockets.
 */
export class LoopWatch {
  constructor(beat, ping = () => {}) {
    this.beat = new Int32Array(beat)
    this.ping = ping
    this.checkAtMs = 0
    this.asked = 0
    this.missed = 0
    this.blockedS = (MISSED_MAX * CHECK_MS) / 1000
  }

  /** False if the process ends already, so that no socket may be opened. */
  mayOpen() {
    return Atomics.compareExchange(this.beat, SOCKETS, NOT_OPEN, OPEN) === NOT_OPEN
  }

  /** Tell the main thread, which may wait for it, that the sockets are closed. */
  closed() {
    Atomics.store(this.beat, SOCKETS, CLOSED)
    Atomics.notify(this.beat, SOCKETS)
  }

  /** Check, if it is time. The run that blocks the loop, once for each time that it is blocked; otherwise null. */
  check(nowMs) {
    if (nowMs < this.checkAtMs) return null
    this.checkAtMs = nowMs + CHECK_MS
    if (Atomics.load(this.beat, ANSWERED) === this.asked) {
      this.asked = (this.asked + 1) | 0
      this.missed = 0
      this.ping()
      return null
    }
    this.missed += 1
    const current = Atomics.load(this.beat, CURRENT)
    return this.missed === MISSED_MAX && current >= 0 ? current : null
  }
}

/** The main thread's side of `beat`. */
export class LoopBeat {
  constructor(beat) {
    this.beat = new Int32Array(beat)
    this.setCurrent(-1)
  }

  answer() {
    Atomics.add(this.beat, ANSWERED, 1)
  }

  setCurrent(index) {
    Atomics.store(this.beat, CURRENT, index)
  }

  /** Forbid the other thread to open its sockets. False if they are open. */
  areClosed() {
    const before = Atomics.compareExchange(this.beat, SOCKETS, NOT_OPEN, CLOSED)
    return before !== OPEN
  }

  /** Wait until the sockets are closed. */
  waitForClose(ms) {
    Atomics.wait(this.beat, SOCKETS, OPEN, ms)
  }
}
