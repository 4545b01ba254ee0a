/**
 * Detects a handler that blocks the event loop of the main thread, on which all handlers of a worker run.
 *
 * The sockets' thread checks while the worker holds steps. A check costs one message in a second.
 */

const CHECK_MS = 1_000
const MISSED_MAX = 2 // checks in a row; a count, because after a sleep of the computer the clock proves nothing

const ANSWERED = 0
const CURRENT = 1
const CLOSED = 2

export const BEAT_BYTES = 12

/**
 * `beat` is shared with the main thread: the number of its last answer, the run that computes there, and whether the
 * sockets are closed.
 */
export class LoopWatch {
  constructor(beat, ping) {
    this.beat = new Int32Array(beat)
    this.ping = ping
    this.checkAtMs = 0
    this.asked = 0
    this.missed = 0
    this.blockedS = (MISSED_MAX * CHECK_MS) / 1000
  }

  /** Tell the main thread, which waits for it, that the sockets are closed. */
  closed() {
    Atomics.store(this.beat, CLOSED, 1)
    Atomics.notify(this.beat, CLOSED)
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

  /** Wait until the sockets are closed. */
  waitForClose(ms) {
    Atomics.wait(this.beat, CLOSED, 0, ms)
  }
}
