/** A played broker on real sockets, for tests of the worker: it answers hello and heartbeats, and sends steps. */

import { Context, Subscriber, XPublisher } from 'zeromq'

const EPOCH = { v: '2.0', broker: 'b1', epoch: 7 }

export class PlayedBroker {
  static async start({ curve = {}, leaseMs = 10_000, heartbeatMs = 200 } = {}) {
    const broker = new PlayedBroker(leaseMs, heartbeatMs)
    const server = { context: broker.context, linger: 0, ...curve }
    broker.xpub = new XPublisher(server)
    broker.sub = new Subscriber(server)
    broker.sub.subscribe('')
    await broker.xpub.bind('tcp://127.0.0.1:*')
    await broker.sub.bind('tcp://127.0.0.1:*')
    broker.steps = broker.xpub.lastEndpoint
    broker.results = broker.sub.lastEndpoint
    broker.listening = broker.listen()
    broker.discarding = broker.discard()
    return broker
  }

  constructor(leaseMs, heartbeatMs) {
    this.context = new Context()
    this.leaseMs = leaseMs
    this.heartbeatMs = heartbeatMs
    this.received = []
    this.waiting = []
    this.worker = null
    this.session = null // the last one that was opened
    this.sending = Promise.resolve()
    this.batches = 0
    this.isSilent = false // true: heartbeats get no answer, and no session begins
    this.escape = (text) => text // of what is sent
  }

  get env() {
    return { STEPWIRE_STEPS: this.steps, STEPWIRE_RESULTS: this.results }
  }

  /** The next message of this type that was not taken yet. */
  async next(type, matches = () => true) {
    const isIt = (message) => message.type === type && matches(message)
    const at = this.received.findIndex(isIt)
    if (at >= 0) return this.received.splice(at, 1)[0]
    return new Promise((settle) => this.waiting.push({ isIt, settle }))
  }

  /** Send a batch with these steps: {id, handlerClass, input, …, members: others of the step}. */
  sendSteps(...steps) {
    this.batches += 1
    this.send({
      type: 'steps',
      ...EPOCH,
      session: this.session,
      batch_id: `batch_5e1d_${this.batches}`,
      protocol_version: '2.0',
      steps: steps.map(
        ({ id, handlerClass, input = {}, timeoutMs = 30_000, mode = 'at_least_once', members = {} }) => ({
          step_id: id,
          task_id: 1,
          step_name: 'work',
          handler_class: handlerClass,
          task_context: input,
          delivery: 1,
          delivery_mode: mode,
          metadata: { attempt: 0, retry_limit: 0, timeout_ms: timeoutMs, idempotency_key: `k/${id}` },
          ...members,
        }),
      ),
    })
  }

  send(message) {
    const frame = `@${this.worker} ${this.escape(JSON.stringify(message))}`
    this.sending = this.sending.then(() => this.xpub.send(frame)).catch(() => {})
  }

  /** The result of one step, acknowledged. */
  async result(id) {
    const of = (message) => message.results.find((result) => result.step_id === id)
    const message = await this.next('results', of)
    this.send({ type: 'ack', ...EPOCH, rids: [message.rid] })
    return of(message)
  }

  async listen() {
    try {
      for await (const [frame] of this.sub) {
        const text = frame.toString()
        this.receive(JSON.parse(text.slice(text.indexOf(' ') + 1)))
      }
    } catch (error) {
      if (!this.sub.closed) throw error
    }
  }

  /** Subscriptions must be read, or they fill the memory. */
  async discard() {
    try {
      for await (const _ of this.xpub) continue
    } catch (error) {
      if (!this.xpub.closed) throw error
    }
  }

  receive(message) {
    if (message.type === 'hello') {
      this.worker = message.worker
      if (message.next?.b1 === undefined) {
        this.send({ type: 'here', ...EPOCH, deployment: 'd', versions: ['2.0'] })
      } else if (!this.isSilent) {
        const times = { lease_ms: this.leaseMs, heartbeat_ms: this.heartbeatMs, max_message_bytes: 4194304 }
        this.session = `7.${message.next.b1}`
        this.send({ type: 'welcome', ...EPOCH, session: this.session, deployment: 'd', n: message.n, ...times })
      }
    }
    if (message.type === 'heartbeat' && message.sessions?.b1 && !this.isSilent)
      this.send({ type: 'heartbeat_ack', ...EPOCH, session: this.session, n: message.n })
    const at = this.waiting.findIndex(({ isIt }) => isIt(message))
    if (at >= 0) this.waiting.splice(at, 1)[0].settle(message)
    else this.received.push(message)
  }

  async close() {
    await this.sending
    this.sub.close()
    this.xpub.close()
    await Promise.all([this.listening, this.discarding])
  }
}
