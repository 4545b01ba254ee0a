/**
 * The credit of each broker: how many steps the worker has room for, and how the room is divided.
 *
 * A worker has its slots, and room for steps that wait: as many as it really finishes in PREFETCH_MS. Short steps then
 * never run out between two messages, and long steps stay at the broker, where another worker can take them. A declared
 * prefetch is the least room; a declared prefetch of 0 means that no step waits here. If steps become longer, the room
 * shrinks, and the worker returns the steps that no longer fit.
 *
 * Brokers do not know of each other, so the worker divides its capacity among them. Each broker has an equal share,
 * rounded down. The remainder rotates, so that every broker has its turn even if there are more brokers than capacity.
 * An idle broker keeps one place of its share, and lends the rest to the others. Each place is promised to one broker at
 * a time: it is offered to another one only when its former holder has acknowledged a smaller number (`promises.js`).
 */

import * as limits from '../protocol/limits.js'
import { NEVER } from '../actions.js'

const OUTBOX_BYTES_MAX = 64 * 1024 * 1024 // above this, no credit: brokers that send no acks may send no steps
const WAITING_MAX = 2_000 // steps for which the observed pace makes room
const WAITING_BYTES_MAX = 16 * 1024 * 1024 // the same in bytes
const RETURN_EVERY_MS = 20 // interval of the search for steps that no longer fit
const IDLE_KEEPS = 1 // places that an idle broker does not lend, so that its next step need not wait
const RETURN_FACTOR = 2 // steps are returned when this many times the room is in use, so the pace may vary

/** The credit of each broker, and the reasons to offer none. */
export class Credit {
  constructor(config, brokers, holdings, outbox) {
    this.returnAtMs = NEVER
    this.isQuiet = false // set by the program: accept no new steps
    this.isFull = false // the runner accepts no steps at the moment
    this.isDraining = false
    this.slots = config.slots
    this.prefetch = config.prefetch
    this.largest = config.slots + config.queueMax // the largest capacity that was offered
    this.stepBytes = 0 // of a recent step
    this.idleAfterMs = 2 * config.heartbeatMs
    this.brokers = brokers
    this.holdings = holdings
    this.outbox = outbox
    this.rotation = 0
  }

  /** Give the remainder of the split to the next broker. */
  rotate() {
    this.rotation += 1
  }

  /** The number of steps that are expected to end in PREFETCH_MS, and that may wait, here or in the runner. */
  ahead(nowMs) {
    if (this.prefetch === 0) return 0
    const stepsMax = this.stepBytes > 0 ? Math.min(WAITING_MAX, WAITING_BYTES_MAX / this.stepBytes) : WAITING_MAX
    return Math.trunc(Math.min(this.holdings.pace.stepsIn(limits.PREFETCH_MS, nowMs), stepsMax) + 0.5)
  }

  /** The number of steps that may wait for a slot. */
  room(nowMs) {
    return Math.max(this.prefetch ?? 0, this.ahead(nowMs))
  }

  /** The number of further steps that are not refused: the total credit can be twice the capacity. */
  places() {
    return 2 * this.largest - this.holdings.load
  }

  /** Note the size of the steps in a message. */
  noteSize(stepBytes) {
    this.stepBytes += (stepBytes - this.stepBytes) / 4
  }

  /** The members `free` and `slots_free` of the hello or heartbeat with this number, which promise this credit. */
  offerAll(n, nowMs) {
    const free = {}
    const slotsFree = {}
    for (const peer of this.brokers) {
      const places = this.place(peer, nowMs)
      peer.promises.announce(n, places.free)
      free[peer.id] = places.free
      slotsFree[peer.id] = places.slotsFree
    }
    return { free, slotsFree }
  }

  /** The members `free` and `slotsFree` of another message to this broker, which promises this credit. */
  offer(peer, nowMs) {
    const places = this.place(peer, nowMs)
    peer.promises.name(places.free)
    return places
  }

  /** True if another broker was held back by promises, and may get places that this one no longer has. */
  moves(peer) {
    for (const other of this.brokers) if (other !== peer && other.isHeldBack && other.session !== null) return true
    return false
  }

  /** True if this broker was idle until now, and its share was lent to another one. */
  isWaking(peer, nowMs) {
    for (const other of this.brokers) if (other !== peer && other.session !== null) return this.isIdle(peer, nowMs)
    return false
  }

  place(peer, nowMs) {
    const places = this.split(peer, nowMs)
    peer.isHeldBack = places.isHeldBack
    return places
  }

  /** How many further steps, how many of them would start at once, and whether promises to others hold it back. */
  split(peer, nowMs) {
    if (this.isClosed(peer)) return { free: 0, slotsFree: 0, isHeldBack: false }
    const capacity = this.slots + this.room(nowMs)
    if (capacity > this.largest) this.largest = capacity
    const { load } = this.holdings
    if (this.brokers.size === 1) {
      return { free: Math.max(0, capacity - load), slotsFree: Math.max(0, this.slots - load), isHeldBack: false }
    }
    const left = Math.min(this.shareLeft(capacity, peer, nowMs), capacity - load)
    let promised = 0
    for (const other of this.brokers) {
      if (other !== peer && other.session !== null) promised += other.promises.promised
    }
    const free = Math.max(0, Math.min(left, capacity - load - promised))
    const slotsLeft = Math.min(this.shareLeft(this.slots, peer, nowMs), this.slots - load)
    return { free, slotsFree: Math.max(0, Math.min(free, slotsLeft)), isHeldBack: free < left }
  }

  isClosed(peer) {
    const isClosed = this.isDraining || this.isQuiet || this.isFull || peer.isQuiet
    return isClosed || this.outbox.bytes > OUTBOX_BYTES_MAX
  }

  /** The part of this broker's share of the capacity that it does not use yet; negative if it uses more. */
  shareLeft(capacity, peer, nowMs) {
    const live = [...this.brokers].filter((other) => other.session !== null || other === peer)
    const claims = live.map((other) => ({ load: other.load, isIdle: this.isIdle(other, nowMs) }))
    return splitPlaces(capacity, claims, live.indexOf(peer), this.rotation)
  }

  isIdle(peer, nowMs) {
    return peer.load === 0 && peer.stepsMs + this.idleAfterMs <= nowMs
  }

  // -- return ---------------------------------------------------------------------------------------------------------

  /** Look for steps that no longer fit, after a while, if more are held than there are slots. */
  watch(nowMs) {
    if (this.holdings.load > this.slots + (this.prefetch ?? 0)) {
      this.returnAtMs = Math.min(this.returnAtMs, nowMs + RETURN_EVERY_MS)
    }
  }

  /**
   * The number of steps that no longer fit, and the brokers that may get them back. Called at `returnAtMs`.
   *
   * A broker that still has credit would send the steps again at once, so none is returned while some are left. That is
   * also why steps that wait for their handler's concurrency are not returned while they fit into the slots. Of several
   * brokers, those get steps back that use their whole share.
   */
  excess(nowMs) {
    this.returnAtMs = NEVER
    this.watch(nowMs)
    const { load } = this.holdings
    const room = this.room(nowMs)
    const capacity = this.slots + room
    let fitting = capacity
    let tolerated = this.slots + RETURN_FACTOR * room
    if (this.brokers.size > 1) fitting = tolerated = 2 * fitting // credit promised before steps became longer
    if (load <= tolerated) return { count: 0, peers: new Set() }
    const isFull = (peer) => this.isClosed(peer) || this.shareLeft(capacity, peer, nowMs) <= 0
    return { count: load - fitting, peers: new Set([...this.brokers].filter(isFull)) }
  }
}

/** The places of the broker at `index` that it does not use yet; negative if it uses more than its places. */
function splitPlaces(capacity, claims, index, rotation) {
  const mine = claims[index]
  const shares = claims.map((_, i) => share(capacity, claims.length, i, rotation))
  let places = shares[index]
  const borrowers = claims.filter((claim) => !claim.isIdle).length
  if (mine.isIdle && borrowers > 0) {
    places = Math.min(places, IDLE_KEEPS)
  } else if (!mine.isIdle) {
    let lent = 0
    claims.forEach((claim, i) => {
      if (claim.isIdle) lent += Math.max(0, shares[i] - IDLE_KEEPS)
    })
    const rank = claims.slice(0, index).filter((claim) => !claim.isIdle).length
    places += share(lent, borrowers, rank, rotation)
  }
  return places - mine.load
}

function share(capacity, among, index, rotation) {
  const rest = capacity % among
  return (capacity - rest) / among + ((index + rotation) % among < rest ? 1 : 0)
}
