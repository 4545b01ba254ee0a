/** The brokers that this worker knows. */

import * as limits from '../protocol/limits.js'
import * as topics from '../protocol/topics.js'
import { Promises } from './promises.js'

/** The worker's knowledge of one broker: the session, the lease, and the broker's share of the load. */
export class BrokerPeer {
  constructor(id, lease, nowMs, next) {
    this.id = id
    this.topic = topics.resultsTo(id)
    this.next = next // the k of the current or next session; increases when a session is dropped
    this.epoch = -1
    this.session = null
    this.deployment = null
    this.nAfter = -1 // only a welcome that echoes a later n counts
    this.lease = lease
    this.leaseMs = limits.LEASE_MS
    this.heartbeatMs = limits.HEARTBEAT_MS
    this.bytesMax = limits.MESSAGE_BYTES_MAX
    this.floor = -1 // unknown batches of this session up to this number are stale
    this.load = 0 // deliveries of this broker that need a slot or have one
    this.answeredMs = nowMs // the time of the broker's last answer to a hello or heartbeat
    this.stepsMs = -Infinity // the time of the broker's last steps
    this.openedMs = nowMs // the time at which the latest session opened
    this.dropWaitMs = 0 // the pause before the hello after the next drop
    this.promises = new Promises()
    this.isHeldBack = false // its latest credit is smaller than its share, because of promises to other brokers
    this.isQuiet = false // `quiet` of the last heartbeat_ack: the broker sends no new steps
  }
}

/** The known brokers by id, in the order in which the worker learned them. */
export class Brokers {
  constructor(memory) {
    this.memory = memory
    this.peers = new Map()
    this.nextOf = new Map() // of forgotten brokers: no number is used twice
  }

  get size() {
    return this.peers.size
  }

  [Symbol.iterator]() {
    return this.peers.values()
  }

  has(broker) {
    return this.peers.has(broker)
  }

  get(broker) {
    return this.peers.get(broker) ?? null
  }

  getOrAdd(broker, nowMs) {
    let peer = this.peers.get(broker)
    if (peer === undefined) {
      peer = new BrokerPeer(broker, this.memory.newLease(), nowMs, this.nextOf.get(broker) ?? 1)
      this.nextOf.delete(broker)
      this.peers.set(broker, peer)
    }
    return peer
  }

  /** Forget a broker that has no session and owns nothing here. */
  forget(peer) {
    this.peers.delete(peer.id)
    this.nextOf.set(peer.id, peer.next)
    peer.lease.release()
  }

  /** The member `next` of hello and heartbeat. */
  nextNumbers() {
    const numbers = {}
    for (const peer of this) numbers[peer.id] = peer.next
    return numbers
  }

  /** The member `sessions` of hello and heartbeat. */
  sessions() {
    const sessions = {}
    for (const peer of this) if (peer.session !== null) sessions[peer.id] = peer.session
    return sessions
  }
}
