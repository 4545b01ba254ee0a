/** The rate at which steps really end, observed with decay. Credit and run-ahead follow it. */

import * as limits from '../protocol/limits.js'

const FADE_MS = 100 // the weight of an observation falls to 1/e in this time

/**
 * Counts ends of steps, and the time for which there was a step to run. Both fade, and their ratio is the rate.
 *
 * Time without a step does not count: an idle worker is not slow. While steps run and none ends, the rate falls, so a
 * change from short to long steps shows before the first long step ends.
 */
export class Pace {
  /** `expected`: the number of steps that may wait before any has ended. */
  constructor(expected) {
    this.ended = expected
    this.busyMs = limits.PREFETCH_MS
    this.atMs = 0
    this.isBusy = false
  }

  /** There is a step to run again. */
  resume(nowMs) {
    if (!this.isBusy) {
      this.isBusy = true
      this.atMs = nowMs
    }
  }

  /** No step is left. */
  pause(nowMs) {
    this.fade(nowMs)
    this.isBusy = false
  }

  countEnd(nowMs) {
    if (nowMs > this.atMs) this.fade(nowMs)
    this.ended += 1
  }

  /** The number of steps that are expected to end in this time. */
  stepsIn(ms, nowMs) {
    this.fade(nowMs)
    return (this.ended / this.busyMs) * ms
  }

  fade(nowMs) {
    const passedMs = nowMs - this.atMs
    if (!this.isBusy || passedMs <= 0) return
    this.atMs = nowMs
    const kept = Math.exp(-passedMs / FADE_MS)
    this.ended *= kept
    this.busyMs = this.busyMs * kept + FADE_MS * (1 - kept)
  }
}
