/** The configuration of a session: identity, capacity, and the handlers that the worker offers. */

import * as limits from '../protocol/limits.js'
import * as patterns from '../protocol/patterns.js'

const CLASSES_MAX = 10_000 // handler classes whose offer is remembered

/** A handler of this worker, by name or pattern. */
export class Offer {
  constructor(pattern, { concurrency = null, timeoutMs = null, shadowSafe = false } = {}) {
    this.pattern = pattern
    this.concurrency = concurrency // maximum number of runs at a time; null: the number of slots
    this.timeoutMs = timeoutMs // shortens the timeout of the step
    this.shadowSafe = shadowSafe
  }
}

/** The worker's identity and capacity: the content of its `hello`. */
export class Config {
  constructor(members) {
    this.worker = members.worker
    this.offers = members.offers
    this.slots = members.slots
    this.prefetch = members.prefetch ?? null // the least room for steps that wait; null: only the observed pace
    this.labels = members.labels ?? {}
    this.links = members.links ?? []
    this.curve = members.curve ?? false // the sockets have CURVE keys
    this.heartbeatMs = members.heartbeatMs ?? limits.HEARTBEAT_MS
    this.acceptDelayMs = members.acceptDelayMs ?? 0 // an accept waits this long for results that replace it
    this.maxMessageBytes = members.maxMessageBytes ?? limits.MESSAGE_BYTES_MAX
    this.lang = members.lang ?? 'node'
    this.sdk = members.sdk ?? ''
    this.handlerVersion = members.handlerVersion ?? '' // the release of the handlers
    this.host = members.host ?? ''
    this.pid = members.pid ?? 0
    this.pidStarted = members.pidStarted ?? 0
    this.proof = members.proof ?? false
  }

  /** The number of steps that may wait for a slot before any has ended: the member `prefetch` of hello. */
  get queueMax() {
    return this.prefetch ?? Math.max(this.slots, limits.PREFETCH_MIN)
  }
}

/** The worker's offers by number, and the offer for each handler_class. */
export class Offers {
  constructor(offers) {
    this.byNumber = offers
    this.numberOf = new Map()
    this.last = { handlerClass: null, number: null } // most steps of a message have the same class
  }

  /** The number of the offer for this handler_class; null if no offer matches. */
  find(handlerClass) {
    if (handlerClass === this.last.handlerClass) return this.last.number
    let number = this.numberOf.get(handlerClass)
    if (number === undefined) {
      if (this.numberOf.size >= CLASSES_MAX) this.numberOf.clear()
      number = findOffer(this.byNumber, handlerClass)
      this.numberOf.set(handlerClass, number)
    }
    this.last = { handlerClass, number }
    return number
  }
}

/** The number of the offer with this exact name, otherwise of the first pattern that matches; null if there is none. */
export function findOffer(offers, handlerClass) {
  const exact = offers.findIndex((offer) => offer.pattern === handlerClass)
  if (exact >= 0) return exact
  const first = offers.findIndex(
    (offer) => patterns.isPattern(offer.pattern) && patterns.matches(offer.pattern, handlerClass),
  )
  return first >= 0 ? first : null
}
