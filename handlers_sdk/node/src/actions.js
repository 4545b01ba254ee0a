/**
 * The actions that a session returns, as objects with a `kind`. Its caller performs them: a worker with sockets, or the
 * driver of the conformance kit.
 *
 *     send              topic, body            send this frame: the topic, then the body
 *     run               run                    run this step as soon as a slot is free; if `begin` says no, give it back
 *     cancel_run        run, reason            ask a run that has begun to stop; `lease_lost` only informs the handler
 *     connect           link, serverKey        connect to a broker that another broker has listed
 *     disconnect        link                   disconnect from a broker that is no longer listed
 *     rebuild           link                   disconnect this pair of endpoints, and connect it again
 *     quit                                     end the worker, which has drained and holds nothing
 *     result_too_large  step, result           log that no message can carry the output of this run
 *     log               level, event, facts    log this event
 *
 * The session and a runner decide together whether a run begins: the runner begins it, until then the session may take
 * it back. Both may be in different threads, so the decision and the leases are in shared memory (RunMemory).
 */

export const NEVER = Infinity

const CHUNK = 1024 // runs in one piece of shared memory
const LEASES_MAX = 1024
const FIELDS = 4
const STATE = 0
const LEASE = 1
const STOP = 2
const LEASE_LOST = 3

const WAITING = 0
const BEGUN = 1
const TAKEN_BACK = 2
const ENDED = 3 // its outcome is on the way to the session

/** The reasons to stop a run, by their number in shared memory; 0 is none. */
const REASONS = [null, 'not_granted', 'timeout', 'task_cancelled', 'superseded', 'shutdown']

/** Shared memory: for each lease its end, for each run whether it has begun, its start and the request to stop it. */
export class RunMemory {
  /**
   * `leases` are those of the other thread. `onChunk` receives each new piece of memory, before a run is in it.
   * @param {{ leases?: SharedArrayBuffer, onChunk?: (chunk: SharedArrayBuffer) => void }} options
   */
  constructor({ leases, onChunk = () => {} } = {}) {
    this.leases = leases ?? new SharedArrayBuffer(8 * LEASES_MAX)
    this.untilUs = new BigInt64Array(this.leases)
    /** @type {{ buffer: SharedArrayBuffer, fields: Int32Array, started: Float64Array }[]} */
    this.chunks = []
    this.onChunk = onChunk
    this.freeRuns = []
    this.freeLeases = []
    this.leasesUsed = 0
  }

  addChunk(buffer) {
    this.chunks.push({
      buffer,
      fields: new Int32Array(buffer, 0, CHUNK * FIELDS),
      started: new Float64Array(buffer, CHUNK * FIELDS * 4, CHUNK),
    })
  }

  // -- the session's side ---------------------------------------------------------------------------------------------

  newLease() {
    const index = this.freeLeases.pop() ?? this.leasesUsed++
    if (index >= LEASES_MAX) throw new RangeError(`more than ${LEASES_MAX} brokers`)
    Atomics.store(this.untilUs, index, 0n)
    return new Lease(this, index)
  }

  newRun(lease) {
    if (this.freeRuns.length === 0) this.grow()
    const index = this.freeRuns.pop()
    const { fields } = this.chunks[index >> 10]
    const at = (index & (CHUNK - 1)) * FIELDS
    // The runner has not received the run: the last store publishes all of them.
    fields[at + LEASE] = lease.index
    fields[at + STOP] = 0
    fields[at + LEASE_LOST] = 0
    Atomics.store(fields, at + STATE, WAITING)
    return index
  }

  grow() {
    const buffer = new SharedArrayBuffer(CHUNK * (FIELDS * 4 + 8))
    const first = this.chunks.length * CHUNK
    this.addChunk(buffer)
    this.onChunk(buffer)
    for (let i = CHUNK - 1; i >= 0; i--) this.freeRuns.push(first + i)
  }

  // -- the runner's side ----------------------------------------------------------------------------------------------

  /** May the handler of this run be called? Not after the end of the lease, and not if the session took the run back. */
  begin(index, nowMs) {
    if (this.isLeaseOver(index, nowMs)) return false
    const { fields, started } = this.chunks[index >> 10]
    const i = index & (CHUNK - 1)
    started[i] = nowMs // before the decision, so that the session reads it after the decision
    return Atomics.compareExchange(fields, i * FIELDS + STATE, WAITING, BEGUN) === WAITING
  }

  /** True after the end of the lease: another worker may run the step. */
  isLeaseOver(index, nowMs) {
    const lease = Atomics.load(this.chunks[index >> 10].fields, (index & (CHUNK - 1)) * FIELDS + LEASE)
    return nowMs * 1000 >= Number(Atomics.load(this.untilUs, lease))
  }

  /** The handler has returned: from now on, its slot belongs to another run. */
  end(index) {
    const i = index & (CHUNK - 1)
    Atomics.compareExchange(this.chunks[index >> 10].fields, i * FIELDS + STATE, BEGUN, ENDED)
  }

  /** Why the run was asked to stop; null if it was not. Also works while the runner's thread computes. */
  stopReason(index) {
    return REASONS[Atomics.load(this.chunks[index >> 10].fields, (index & (CHUNK - 1)) * FIELDS + STOP)]
  }

  isLeaseLost(index) {
    return Atomics.load(this.chunks[index >> 10].fields, (index & (CHUNK - 1)) * FIELDS + LEASE_LOST) === 1
  }
}

/** The time until which steps of one broker may start. The session sets it; runners read it before each start. */
export class Lease {
  constructor(memory, index) {
    this.memory = memory
    this.index = index
    this.ms = 0
  }

  get untilMs() {
    return this.ms
  }

  set untilMs(ms) {
    this.ms = ms
    Atomics.store(this.memory.untilUs, this.index, BigInt(Math.floor(ms * 1000)))
  }

  release() {
    this.untilMs = 0
    this.memory.freeLeases.push(this.index)
  }
}

/** One run, on the session's side. */
export class Run {
  constructor(memory, item, step, offer, lease, timeoutMs, deadlineMs) {
    this.memory = memory
    this.index = memory.newRun(lease)
    this.item = item
    this.step = step
    this.offer = offer // the number of the offer that handles the step
    this.timeoutMs = timeoutMs
    this.deadlineMs = deadlineMs // the time at which the run must end, whenever it begins
    this.endedMs = undefined // after its end: when it began, or null if it never did
  }

  /** @returns {Int32Array} */
  get fields() {
    return this.memory.chunks[this.index >> 10].fields
  }

  get at() {
    return (this.index & (CHUNK - 1)) * FIELDS
  }

  /** The time at which the run began; null before. */
  get startedMs() {
    if (this.endedMs !== undefined) return this.endedMs
    const state = Atomics.load(this.fields, this.at + STATE)
    if (state !== BEGUN && state !== ENDED) return null
    return this.memory.chunks[this.index >> 10].started[this.index & (CHUNK - 1)]
  }

  /** True if its handler has returned, so it has no slot any more. */
  get hasEnded() {
    return this.endedMs !== undefined || Atomics.load(this.fields, this.at + STATE) === ENDED
  }

  /** The time at which a run that has begun exceeds its timeout: the earlier of timeout and deadline. */
  get timeoutAtMs() {
    const started = this.startedMs
    return started === null ? NEVER : Math.min(started + this.timeoutMs, this.deadlineMs)
  }

  /** Called by the session: true if the run has not begun, and therefore never will. */
  takeBack() {
    if (this.endedMs !== undefined) return this.endedMs === null
    const before = Atomics.compareExchange(this.fields, this.at + STATE, WAITING, TAKEN_BACK)
    return before === WAITING || before === TAKEN_BACK
  }

  /** A run that has not begun now needs the lease of another broker. */
  setLease(lease) {
    if (this.endedMs === undefined) Atomics.store(this.fields, this.at + LEASE, lease.index)
  }

  /** Write the request to stop where a computing handler can read it. The first reason counts. */
  requestStop(reason) {
    if (this.endedMs !== undefined) return
    if (reason === 'lease_lost') Atomics.store(this.fields, this.at + LEASE_LOST, 1)
    else Atomics.compareExchange(this.fields, this.at + STOP, 0, REASONS.indexOf(reason))
  }

  /** The runner has reported the outcome, and does not touch the memory of this run any more. */
  release() {
    this.endedMs = this.startedMs
    this.memory.freeRuns.push(this.index)
  }
}
