/**
 * This SDK's session and run slots behind stdin and stdout, for the conformance kit.
 *
 * Each line on stdin is one op, and each line on stdout its reply. `protocol/conformance/DRIVER.md` has both. The clock is
 * the time in the ops, and no socket, thread or handler is involved: the kit plays the broker and the handlers.
 */

import { RunMemory } from './actions.js'
import * as codec from './protocol/codec.js'
import { RunSlots } from './runners/run_slots.js'
import { Config, Offer } from './session/config.js'
import { Session } from './session/session.js'
import { keyOf } from './session/deliveries.js'

const LINK = { steps: 'ipc://steps', results: 'ipc://results' } // never connected: the kit carries the frames

/** Passes ops to one session at a time. The op `start` creates it. */
export class Driver {
  constructor() {
    this.session = null
    this.running = new Map()
    this.begun = [] // begun since the last action that was written
  }

  /** Apply one op. Returns the reply. */
  handle(op) {
    const nowMs = op.now_ms
    if (!Object.hasOwn(OPS, op.op)) return { error: `unknown op '${op.op}'` }
    OPS[op.op](this, op, nowMs)
    const actions = this.actions(nowMs)
    const wakeAtMs = this.session.wakeAt()
    return {
      actions,
      wake_at_ms: wakeAtMs === Infinity ? null : Math.max(nowMs, wakeAtMs),
      holding: this.session.holding(nowMs),
    }
  }

  start(op, nowMs) {
    const config = new Config({
      worker: op.worker,
      offers: op.offers.map(
        ({ pattern, concurrency, timeout_ms: timeoutMs, shadow_safe: shadowSafe }) =>
          new Offer(pattern, {
            concurrency: concurrency ?? null,
            timeoutMs: timeoutMs ?? null,
            shadowSafe: shadowSafe ?? false,
          }),
      ),
      slots: op.slots,
      prefetch: op.prefetch,
      labels: op.labels,
      links: op.links ?? [LINK],
      curve: op.curve,
      heartbeatMs: op.heartbeat_ms,
      acceptDelayMs: op.accept_delay_ms,
      maxMessageBytes: op.max_message_bytes,
      lang: op.lang,
      sdk: op.sdk,
      handlerVersion: op.handler_version,
      host: op.host,
      pid: op.pid,
      pidStarted: op.pid_started,
      proof: op.proof,
    })
    this.memory = new RunMemory()
    this.session = new Session(config, () => 0.5, this.memory)
    this.slots = new RunSlots(config.slots, config.offers)
    this.running.clear()
    this.begun = []
    this.session.start(nowMs)
  }

  receive(op, nowMs) {
    const frame = 'frame_base64' in op ? Buffer.from(op.frame_base64, 'base64') : Buffer.from(op.frame)
    const parts = codec.split(frame)
    if (parts !== null) this.session.receive(parts[0], parts[1], nowMs)
  }

  /** End a run, and begin the one that gets its slot. A run that has not begun cannot end. */
  finish(op, nowMs, outcome) {
    const key = keyOf(op.step_id, op.delivery)
    const run = this.running.get(key)
    if (run === undefined) return
    this.running.delete(key)
    const following = this.slots.release(run)
    this.session.finished(run.item, { step_id: op.step_id, delivery: op.delivery, ...outcome }, nowMs)
    run.release()
    if (following !== null) this.begin(following, nowMs)
  }

  progress(op, nowMs) {
    const run = this.running.get(keyOf(op.step_id, op.delivery))
    if (run !== undefined) this.session.progressed(run.item, op.done, op.total ?? null, op.note ?? null, nowMs)
  }

  /** Do as a runner does: begin a run that has a slot, or give its step back and begin the next one. */
  begin(run, nowMs) {
    let following = run
    while (following !== null) {
      if (this.memory.begin(following.index, nowMs)) {
        this.running.set(keyOf(following.item[0], following.item[1]), following)
        this.begun.push(following)
        return
      }
      const ended = following
      following = this.slots.release(ended)
      this.session.giveBack(ended.item, nowMs)
      ended.release()
    }
  }

  /** The due actions. A run is written when it begins, which may be long after its hand-over. */
  actions(nowMs) {
    const written = this.takeBegun()
    for (const action of this.session.actions(nowMs)) {
      if (action.kind === 'run') {
        for (const run of this.slots.add([action.run])) this.begin(run, nowMs)
        written.push(...this.takeBegun())
      } else {
        const line = asLine(action)
        if (line !== null) written.push(line)
      }
    }
    return written
  }

  takeBegun() {
    const { begun } = this
    this.begun = []
    return begun.map((run) => ({ action: 'run', step_id: run.item[0], delivery: run.item[1] }))
  }
}

const OPS = {
  start: (driver, op, nowMs) => driver.start(op, nowMs),
  receive: (driver, op, nowMs) => driver.receive(op, nowMs),
  tick: () => {}, // the reply has the actions that are due
  complete: (driver, op, nowMs) =>
    driver.finish(op, nowMs, {
      status: 'completed',
      output: JSON.stringify(op.output),
      error: null,
      metadata: op.metadata ?? null,
    }),
  fail: (driver, op, nowMs) => {
    const { message, code, category, retryable, retry_after_ms: retryAfterMs, backtrace } = op
    const error = { message, code, category, retryable, retry_after_ms: retryAfterMs, backtrace }
    driver.finish(op, nowMs, { status: op.status ?? 'failed', output: 'null', error, metadata: null })
  },
  progress: (driver, op, nowMs) => driver.progress(op, nowMs),
  quiet: (driver, op, nowMs) => driver.session.quiet(nowMs),
  full: (driver, op, nowMs) => driver.session.full(op.is_full, nowMs),
  drain: (driver, op, nowMs) => driver.session.drain(nowMs),
  expel: (driver) => driver.session.expel(),
}

/** The action as the kit reads it. null: the kit has no use for this action. */
function asLine(action) {
  switch (action.kind) {
    case 'send':
      return { action: 'send', frame: action.topic + action.body }
    case 'cancel_run':
      return asStopRequest(action)
    case 'connect':
      return { action: 'connect', ...action.link, server_key: action.serverKey }
    case 'disconnect':
    case 'rebuild':
      return { action: action.kind, ...action.link }
    case 'quit':
      return { action: 'quit' }
    case 'log':
      return { action: 'log', level: action.level, event: action.event }
  }
  return null
}

function asStopRequest({ run, reason }) {
  return { action: 'request_stop', step_id: run.item[0], delivery: run.item[1], reason }
}

/** Answer each line until the input ends. A fault of the session is the reply to the op that caused it. */
export async function serve(input, output, driver = new Driver()) {
  let rest = ''
  input.setEncoding('utf8')
  for await (const chunk of input) {
    const lines = (rest + chunk).split('\n')
    rest = lines.pop()
    let replies = ''
    for (const line of lines) {
      let reply
      try {
        reply = driver.handle(JSON.parse(line))
      } catch (fault) {
        reply = { error: `${fault.name}: ${fault.message}` }
        process.stderr.write(`${fault.stack}\n`)
      }
      replies += `${JSON.stringify(reply)}\n`
    }
    if (replies !== '') output.write(replies)
  }
}
