/** The identity of this process as a worker, and the clock that measures leases. */

import { randomBytes } from 'node:crypto'
import { readFileSync, readlinkSync, statSync } from 'node:fs'
import { hostname } from 'node:os'

const SLEPT_MS = 100 // a smaller difference of the clocks is no sleep: /proc/uptime has a resolution of 10 ms

/**
 * A clock that counts the sleep of the computer: after an hour of sleep, a laptop's lease is over.
 *
 * Node reads CLOCK_MONOTONIC, which stands still during sleep. The wall clock does not, so a jump between both is
 * looked up in /proc/uptime, which counts sleep. The time slept is in shared memory: both threads have one clock.
 */
export class Clock {
  /** `shared`: the memory of the clock in the other thread. */
  constructor(shared = new SharedArrayBuffer(16)) {
    this.shared = shared
    this.slept = new BigInt64Array(shared) // [milliseconds slept, uptime − monotonic at the start in milliseconds]
    this.sleptMs = Number(Atomics.load(this.slept, 0))
    this.base = Number(process.hrtime.bigint()) / 1e6 - performance.now() // the same zero in all threads
    this.wallMs = Date.now() - performance.now()
    const aheadMs = this.uptimeAhead()
    if (aheadMs !== null) Atomics.compareExchange(this.slept, 1, 0n, BigInt(aheadMs))
  }

  /** Milliseconds since boot, with sleep. */
  nowMs() {
    const monotonicMs = performance.now()
    const wallMs = Date.now() - monotonicMs
    if (Math.abs(wallMs - this.wallMs) > SLEPT_MS) {
      this.wallMs = wallMs
      this.lookForSleep()
    }
    return monotonicMs + this.base + this.sleptMs
  }

  lookForSleep() {
    const aheadMs = this.uptimeAhead()
    const before = Atomics.load(this.slept, 0)
    if (aheadMs !== null) {
      const sleptMs = BigInt(aheadMs) - Atomics.load(this.slept, 1)
      if (sleptMs - before > SLEPT_MS) Atomics.compareExchange(this.slept, 0, before, sleptMs)
    }
    this.sleptMs = Number(Atomics.load(this.slept, 0))
  }

  /** By how many milliseconds the uptime is ahead of the monotonic clock; null if there is no /proc. */
  uptimeAhead() {
    try {
      const uptimeMs = Number(readFileSync('/proc/uptime', 'latin1').split(' ')[0]) * 1000
      return Math.round(uptimeMs - (performance.now() + this.base)) || 1
    } catch {
      return null
    }
  }
}

/**
 * The facts with which a broker on the same host can prove the death of this process: `host` is boot id, pid namespace
 * and time namespace, `pidStarted` is in clock ticks after boot, 0 where there is no /proc.
 */
export function thisProcess() {
  const known = hostIdentity()
  const pidStarted = startedTicks()
  return {
    host: known || `${process.platform}:${hostname()}`,
    pid: process.pid,
    pidStarted,
    isProvable: known !== '' && pidStarted > 0,
  }
}

/** A new id at every call, because a process that restarts is another worker. */
export const newWorkerId = (name) => `${name}:${randomBytes(8).toString('hex')}`

function hostIdentity() {
  try {
    if (readlinkSync('/proc/self') !== String(process.pid)) return '' // this /proc belongs to another pid namespace
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim()
    return `${boot}:${inode('/proc/self/ns/pid')}:${inodeOrZero('/proc/self/ns/time')}`
  } catch {
    return ''
  }
}

function startedTicks() {
  try {
    const stat = readFileSync(`/proc/${process.pid}/stat`, 'latin1')
    return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]) || 0
  } catch {
    return 0
  }
}

const inode = (path) => statSync(path).ino

function inodeOrZero(path) {
  try {
    return inode(path)
  } catch {
    return 0 // a kernel without time namespaces
  }
}
