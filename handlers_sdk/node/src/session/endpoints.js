/** The endpoints of brokers: decides which to connect, when to connect again, and which to disconnect. */

import * as limits from '../protocol/limits.js'
import { NEVER } from '../actions.js'

const CHECK_EVERY_MS = 1_000

const keyOf = (link) => `${link.steps}\n${link.results}`

/** The connected links, and the broker at each link if it is known. */
export class BrokerLinks {
  constructor(config, brokers, holdings, out) {
    this.checkAtMs = NEVER
    this.hasCurve = config.curve
    // By link: {link, broker: null if unknown, key: null if configured or not listed, connectedMs, listedMs: when a list last named it, null if configured}
    this.links = new Map(
      config.links.map((link) => [keyOf(link), { link, broker: null, key: null, connectedMs: 0, listedMs: null }]),
    )
    this.lists = new Map() // by peer: the brokers that it listed in its open session
    this.keys = new Map() // by broker: the CURVE keys that it lists for itself, the current one first
    this.moved = new Map() // by broker: {link, serverKey} as listed, if another address is connected
    this.ignored = new Set() // brokers that need CURVE keys, which the worker does not have
    this.brokers = brokers
    this.holdings = holdings
    this.out = out
  }

  start(nowMs) {
    for (const entry of this.links.values()) entry.connectedMs = nowMs
    this.checkAtMs = nowMs + limits.SERVER_KEY_RETRY_MS
  }

  /**
   * Connect to the brokers that this broker lists. A configured endpoint may be the same broker with another address.
   */
  learn(peer, entries, nowMs) {
    this.lists.set(peer, new Set(entries.map((entry) => entry.broker)))
    const listed = entries.filter((entry) => entry.steps !== '' && entry.results !== '')
    const known = new Set()
    for (const { broker } of this.links.values()) if (broker !== null) known.add(broker)
    for (const entry of listed) {
      const there = this.links.get(keyOf(entry))
      if (there !== undefined && there.broker === null) {
        there.broker = entry.broker
        known.add(entry.broker)
      }
    }
    const unnamed = [...this.links.values()].filter((entry) => entry.broker === null)
    if (!known.has(peer.id) && unnamed.length === 1) unnamed.pop().broker = peer.id
    for (const { broker, steps, results, server_key: serverKey } of listed) {
      if (this.brokers.has(broker) || known.has(broker) || unnamed.length > 0) continue
      if (serverKey !== null && !this.hasCurve) {
        this.ignore(broker)
        continue
      }
      const link = { steps, results }
      known.add(broker)
      this.links.set(keyOf(link), { link, broker, key: null, connectedMs: nowMs, listedMs: nowMs })
      this.out.add({ kind: 'connect', link, serverKey })
    }
    this.noteAddresses(listed)
    if (!this.hasCurve) return
    const own = listed.filter((entry) => entry.broker === peer.id && entry.server_key !== null)
    this.followKey(
      peer.id,
      own.map((entry) => entry.server_key),
      nowMs,
    )
  }

  /**
   * Note the addresses of brokers that were learned from a list, if others are connected. The first entry of each broker
   * counts.
   */
  noteAddresses(listed) {
    const noted = new Set()
    for (const { broker, steps, results, server_key: serverKey } of listed) {
      if (noted.has(broker)) continue
      noted.add(broker)
      const connected = [...this.links.values()].find((entry) => entry.broker === broker)
      if (connected === undefined || connected.listedMs === null) continue
      const link = { steps, results }
      if (keyOf(link) === keyOf(connected.link) || (serverKey !== null && !this.hasCurve)) {
        this.moved.delete(broker)
      } else {
        this.moved.set(broker, { link, serverKey })
      }
    }
  }

  /** Connect again with the broker's current key if it has changed. */
  followKey(broker, keys, nowMs) {
    if (keys.length === 0) return
    const before = this.keys.get(broker) ?? keys
    this.keys.set(broker, keys)
    const entry = [...this.links.values()].find((each) => each.broker === broker)
    if (entry !== undefined && before[0] !== keys[0] && entry.key !== keys[0]) {
      this.connectWith(entry, keys[0], nowMs)
      this.out.log('info', 'server_key_changed', { link: entry.link, broker })
    }
  }

  connectWith(entry, key, nowMs) {
    entry.key = key
    entry.connectedMs = nowMs
    this.out.add({ kind: 'disconnect', link: entry.link })
    this.out.add({ kind: 'connect', link: entry.link, serverKey: key })
  }

  /** The link to this broker; null if it is not known. */
  linkOf(broker) {
    for (const entry of this.links.values()) if (entry.broker === broker) return entry.link
    return null
  }

  /** The links to brokers that no session is open with. */
  withoutSession() {
    const entries = [...this.links.values()]
    const named = new Set(entries.map((entry) => entry.broker))
    const strangers = [...this.brokers].filter((peer) => peer.session !== null && !named.has(peer.id)).length
    const unnamed = entries.filter((entry) => entry.broker === null)
    const closed = entries.filter(({ broker }) => broker !== null && !this.brokers.get(broker)?.session)
    return [...closed, ...(strangers < unnamed.length ? unnamed : [])].map((entry) => entry.link)
  }

  /** Disconnect brokers that are no longer listed, and connect silent ones again. */
  check(nowMs) {
    this.disconnectUnlisted(nowMs)
    this.rebuildSilent(nowMs)
    this.checkAtMs = nowMs + CHECK_EVERY_MS
  }

  /** Disconnect brokers that were learned from a list, are absent from every list for long, and own nothing. */
  disconnectUnlisted(nowMs) {
    const listed = new Set()
    for (const [peer, brokers] of this.lists) {
      if (peer.session !== null) for (const broker of brokers) listed.add(broker)
    }
    for (const [key, entry] of this.links) {
      if (entry.listedMs === null) continue
      const { broker, link } = entry
      const peer = this.brokers.get(broker)
      if (listed.has(broker)) {
        entry.listedMs = nowMs
      } else if (nowMs - entry.listedMs >= limits.UNLISTED_MS && (peer === null || this.isUnused(peer))) {
        this.links.delete(key)
        this.keys.delete(broker)
        this.moved.delete(broker)
        if (peer !== null) {
          this.lists.delete(peer)
          this.brokers.forget(peer)
        }
        this.out.add({ kind: 'disconnect', link })
        this.out.log('info', 'link_removed', { link, broker })
      }
    }
  }

  isUnused(peer) {
    return peer.session === null && this.holdings.ofBroker(peer).length === 0
  }

  /** Connect silent links again. A refused or dead connection reports no error, and never recovers by itself. */
  rebuildSilent(nowMs) {
    const entries = [...this.links.values()]
    const named = new Set(entries.map((entry) => entry.broker))
    const unnamed = entries.filter((entry) => entry.broker === null).length
    const sinceMs = nowMs - limits.SOCKET_REBUILD_MS
    let strangers = 0
    for (const peer of this.brokers) {
      if (peer.session !== null && !named.has(peer.id) && peer.answeredMs > sinceMs) strangers += 1
    }
    for (const entry of entries) {
      const { broker, link } = entry
      const peer = broker === null ? null : this.brokers.get(broker)
      if (broker === null && strangers >= unnamed) continue
      const answeredMs = peer === null ? -NEVER : peer.answeredMs
      const keys = this.keys.get(broker) ?? []
      const silentMs = keys.length > 1 ? limits.SERVER_KEY_RETRY_MS : limits.SOCKET_REBUILD_MS
      if (Math.max(answeredMs, entry.connectedMs) <= nowMs - silentMs) {
        const moved = this.moved.get(broker)
        this.moved.delete(broker)
        if (moved !== undefined && !this.links.has(keyOf(moved.link))) {
          this.move(entry, moved, nowMs)
          continue
        }
        if (keys.length > 0) {
          this.connectWith(entry, nextKey(entry.key, keys), nowMs)
        } else {
          entry.connectedMs = nowMs
          this.out.add({ kind: 'rebuild', link })
        }
        this.out.log('debug', 'link_rebuilt', { link, broker })
      }
    }
  }

  /** Connect a broker at the address that a list named last, instead of this one. */
  move({ link: old, broker, listedMs }, { link, serverKey }, nowMs) {
    this.links.delete(keyOf(old))
    this.links.set(keyOf(link), { link, broker, key: serverKey, connectedMs: nowMs, listedMs })
    this.out.add({ kind: 'disconnect', link: old })
    this.out.add({ kind: 'connect', link, serverKey })
    this.out.log('info', 'link_moved', { link, broker })
  }

  /** Do not connect to a broker that requires CURVE keys. Logged once for each broker. */
  ignore(broker) {
    if (this.ignored.has(broker)) return
    this.ignored.add(broker)
    this.out.log('warning', 'broker_ignored', { broker })
  }
}

/** The key for the next attempt. A broker that has listed several keys may have changed its key meanwhile. */
function nextKey(used, keys) {
  const at = keys.indexOf(used ?? (keys.length > 1 ? keys[0] : ''))
  return keys[(at + 1) % keys.length]
}
