/**
 * The worker's two sockets: SUB receives from brokers, PUB sends to brokers. The worker connects, brokers bind.
 *
 * `protocol/SDK_GUIDE.md` section 13 explains each option.
 */

import { Context, Publisher, Subscriber } from 'zeromq'
import * as limits from '../protocol/limits.js'
import * as topics from '../protocol/topics.js'
import { Queue } from '../session/queue.js'

const LINGER_MS = 2_000

const OPTIONS = {
  linger: 0,
  immediate: false,
  tcpKeepalive: 1,
  tcpKeepaliveIdle: 15,
  tcpKeepaliveInterval: 5,
  tcpKeepaliveCount: 3,
  reconnectInterval: 100,
  reconnectMaxInterval: 1000,
  handshakeInterval: 5000,
  ipv6: true,
}

/** Both sockets. One thread must create, use and close them. */
export class WorkerSockets {
  /** `receive` is called with each frame, `failed` with the fault that ends the receiving. */
  constructor({ workerId, links, curve, events, receive, failed }) {
    this.events = events
    this.curve = curve
    this.serverKeys = new Map() // by endpoint, where it is not the configured one
    this.context = new Context()
    const keys =
      curve === null ? {} : { curveServerKey: curve.server, curvePublicKey: curve.public, curveSecretKey: curve.secret }
    // Credit limits the number of messages, and a finite mark at the SUB can abort the process.
    const sub = { ...OPTIONS, ...keys, context: this.context, receiveHighWaterMark: 0 }
    this.sub = new Subscriber({ ...sub, maxMessageSize: limits.FRAME_BYTES_MAX })
    const pub = { ...OPTIONS, ...keys, context: this.context, sendHighWaterMark: 10_000, sendTimeout: -1 }
    this.pub = new Publisher({ ...pub, maxMessageSize: 64 * 1024, tcpMaxRetransmitTimeout: 20_000 })
    this.unsent = new Queue()
    this.sending = Promise.resolve()
    this.isSending = false
    this.isClosed = false
    this.sub.subscribe(topics.toWorker(workerId), topics.BROKERS)
    for (const link of links) this.connect(link)
    this.receiving = this.receiveAll(receive).catch(failed)
    this.failed = failed
  }

  async receiveAll(receive) {
    while (!this.isClosed) {
      let parts
      try {
        parts = await this.sub.receive()
      } catch (fault) {
        if (this.isClosed) return
        throw fault
      }
      if (parts.length === 1) receive(parts[0])
    }
  }

  /** Send a frame. The frames are sent one after the other: a socket has one send in flight. */
  send(frame) {
    this.unsent.push(frame)
    if (!this.isSending) {
      this.isSending = true
      this.sending = this.sendAll().catch(this.failed)
    }
  }

  async sendAll() {
    try {
      while (this.unsent.size > 0) await this.pub.send(this.unsent.shift())
    } catch (fault) {
      if (!this.isClosed) throw fault
    }
    this.isSending = false
  }

  connect(link, serverKey = null) {
    for (const [socket, endpoint] of this.pairs(link)) {
      if (serverKey !== null) this.serverKeys.set(endpoint, serverKey)
      try {
        if (this.curve !== null) socket.curveServerKey = this.serverKeys.get(endpoint) ?? this.curve.server
        socket.connect(endpoint)
      } catch (error) {
        this.events.log('error', 'connect_failed', { endpoint, error: error.message })
      }
    }
  }

  rebuild(link) {
    this.disconnect(link)
    this.connect(link, this.serverKeys.get(link.steps) ?? null)
  }

  disconnect(link) {
    for (const [socket, endpoint] of this.pairs(link)) {
      try {
        socket.disconnect(endpoint)
      } catch {
        // libzmq has dropped the connection already.
      }
    }
  }

  pairs(link) {
    return [
      [this.sub, link.steps],
      [this.pub, link.results],
    ]
  }

  /** Close both sockets, and drop what is unsent. */
  closeAtOnce() {
    this.isClosed = true
    while (this.unsent.size > 0) this.unsent.shift()
    if (!this.sub.closed) this.sub.close()
    if (!this.pub.closed) this.pub.close()
  }

  /** Close both sockets. The last messages have LINGER_MS to leave the process. */
  async close() {
    await this.sending
    this.isClosed = true
    this.sub.close()
    this.pub.linger = LINGER_MS
    this.pub.close()
    await this.receiving
  }
}
