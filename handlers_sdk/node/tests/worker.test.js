import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { test } from 'node:test'
import { curveKeyPair } from 'zeromq'
import { Worker } from 'stepwire'
import { PlayedBroker } from './played_broker.js'

const LIMIT = { timeout: 30_000 }
const records = () => {
  const lines = []
  const add = (level) => (text, facts) => lines.push({ level, text, ...facts })
  return { lines, debug: add('debug'), info: add('info'), warn: add('warn'), error: add('error') }
}

/** A worker of this process with a played broker. Both end with the test. */
async function pair(t, handlers, { broker: given = {}, worker: options = {} } = {}) {
  const broker = await PlayedBroker.start(given)
  const logger = records()
  const worker = new Worker({ steps: broker.steps, results: broker.results, name: 'shop', logger, ...options })
  for (const [name, handler] of Object.entries(handlers)) worker.handle(name, ...[handler].flat())
  worker.start()
  t.after(async () => {
    worker.drain(0)
    await broker.next('bye')
    await worker.wait()
    await broker.close()
  })
  return { broker, worker, logger }
}

test('a worker says what it is, runs a step and reports its result', LIMIT, async (t) => {
  const { broker, worker, logger } = await pair(t, {
    ship: (order, ctx) => ({ id: order.order_id, key: ctx.idempotencyKey }),
  })
  const hello = await broker.next('hello', (message) => message.next !== undefined)
  assert.equal(hello.worker, worker.id)
  assert.deepEqual([hello.handlers, hello.slots, hello.prefetch, hello.lang], [['ship'], 10, 10, 'node'])
  assert.match(hello.sdk, /^stepwire-node\/\d/)
  assert.equal(hello.pid, process.pid)
  await broker.next('heartbeat')
  broker.sendSteps({ id: 1, handlerClass: 'ship', input: { order_id: 7 } })
  const result = await broker.result(1)
  assert.deepEqual([result.status, result.output], ['completed', { id: 7, key: 'k/1' }])
  assert.ok(result.metadata.execution_time_ms >= 0)
  const texts = logger.lines.map((line) => line.text)
  assert.match(texts[0], /^started as shop, process \d+, 10 slots; offers ship$/)
  assert.match(texts[1], /^connected to broker b1 at tcp:\/\/127\.0\.0\.1:\d+$/)
})

test('heartbeats go on, and the lease is kept, while a handler computes', LIMIT, async (t) => {
  const compute = () => {
    const until = performance.now() + 3_000
    while (performance.now() < until);
    return 'done'
  }
  // The broker plays in this process, so the worker needs a process of its own.
  const broker = await PlayedBroker.start({ leaseMs: 1_000, heartbeatMs: 100 })
  const source = `
    import { Worker } from 'stepwire'
    const worker = Worker.fromEnv().handle('compute', ${compute})
    await worker.run()`
  const child = spawn(process.execPath, ['--input-type=module', '-e', source], {
    cwd: new URL('..', import.meta.url),
    env: { ...process.env, ...broker.env },
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  t.after(() => child.kill('SIGKILL'))
  await broker.next('heartbeat')
  broker.sendSteps({ id: 1, handlerClass: 'compute' })
  const running = (message) => message.holding?.some(([, , state]) => state === 'running')
  let beats = 0
  const result = broker.result(1)
  const ended = result.then(() => 'ended')
  for (;;) {
    const seen = await Promise.race([broker.next('heartbeat', running), ended])
    if (seen === 'ended') break
    beats += 1
  }
  assert.equal((await result).output, 'done')
  assert.ok(beats >= 15, `${beats} heartbeats`)
  child.kill('SIGTERM')
  assert.deepEqual(await new Promise((settle) => child.once('exit', (...how) => settle(how))), [0, null])
  await broker.close()
})

test('a run is asked to stop by its timeout, and its slot is free after its end', LIMIT, async (t) => {
  const seen = []
  const wait = async (_, ctx) => {
    await new Promise((settle) => ctx.signal.addEventListener('abort', settle))
    seen.push(ctx.cancelReason)
    return 'stopped in time'
  }
  const { broker } = await pair(t, { wait: [{ timeoutMs: 50 }, wait] }, { worker: { slots: 1 } })
  await broker.next('heartbeat')
  broker.sendSteps({ id: 1, handlerClass: 'wait' }, { id: 2, handlerClass: 'wait' })
  assert.equal((await broker.result(1)).output, 'stopped in time')
  assert.equal((await broker.result(2)).status, 'completed')
  assert.deepEqual(seen, ['timeout', 'timeout'])
})

test('steps of an unknown handler are refused, and an error of a handler is a failure', LIMIT, async (t) => {
  const { broker, logger } = await pair(t, {
    fail: () => {
      throw new RangeError('too far')
    },
  })
  await broker.next('heartbeat')
  broker.sendSteps({ id: 1, handlerClass: 'other' }, { id: 2, handlerClass: 'fail' })
  const refuse = await broker.next('refuse')
  assert.deepEqual([refuse.items, refuse.code], [[[1, 1]], 'unknown_handler'])
  const result = await broker.result(2)
  assert.deepEqual(
    [result.status, result.error.code, result.error.message],
    ['failed', 'RangeError', 'RangeError: too far'],
  )
  const line = logger.lines.find((each) => each.event === 'run_failed')
  assert.deepEqual([line.level, line.step_id, line.task_id], ['error', 2, 1])
})

test('an at_most_once step runs after the go of its broker, and once', LIMIT, async (t) => {
  let runs = 0
  const { broker } = await pair(t, { charge: () => (runs += 1) })
  await broker.next('heartbeat')
  broker.sendSteps({ id: 1, handlerClass: 'charge', mode: 'at_most_once' })
  const start = await broker.next('start')
  assert.deepEqual([start.items, runs], [[[1, 1]], 0])
  const go = { type: 'go', v: '2.0', broker: 'b1', epoch: 7, session: '7.1', items: [[1, 1]] }
  broker.send(go)
  broker.send(go)
  assert.equal((await broker.result(1)).output, 1)
  assert.equal(runs, 1)
})

test('one mebibyte passes in both directions', LIMIT, async (t) => {
  const { broker } = await pair(t, { echo: (input) => input })
  await broker.next('heartbeat')
  const input = { text: 'ä'.repeat(512 * 1024) }
  broker.sendSteps({ id: 1, handlerClass: 'echo', input })
  assert.deepEqual((await broker.result(1)).output, input)
})

test('a thousand steps in batches run once each, within the slots', LIMIT, async (t) => {
  const runs = new Map()
  let running = 0
  let most = 0
  const work = async ({ id }) => {
    runs.set(id, (runs.get(id) ?? 0) + 1)
    most = Math.max(most, ++running)
    await new Promise((settle) => setImmediate(settle))
    running -= 1
    return id
  }
  const { broker } = await pair(t, { work }, { worker: { slots: 4, prefetch: 1_000 } })
  await broker.next('heartbeat')
  for (let first = 0; first < 1_000; first += 50) {
    broker.sendSteps(
      ...Array.from({ length: 50 }, (_, i) => ({
        id: first + i + 1,
        handlerClass: 'work',
        input: { id: first + i + 1 },
      })),
    )
  }
  for (let id = 1; id <= 1_000; id++) {
    const message = await Promise.race([
      broker.next('results', (each) => each.results.some((result) => result.step_id === id)),
    ])
    for (const result of message.results)
      if (result.step_id > id) broker.received.push({ ...message, results: [result] })
    broker.send({ type: 'ack', v: '2.0', broker: 'b1', epoch: 7, rids: [message.rid] })
  }
  assert.equal(runs.size, 1_000)
  assert.deepEqual([...new Set(runs.values())], [1])
  assert.ok(most <= 4, `${most} ran at a time`)
})

test('with the keys of the broker a worker connects, with other keys it does not', LIMIT, async (t) => {
  const server = curveKeyPair()
  const own = curveKeyPair()
  const curve = { curveServer: true, curveSecretKey: server.secretKey }
  const keys = { curveServerKey: server.publicKey, curvePublicKey: own.publicKey, curveSecretKey: own.secretKey }
  const { broker } = await pair(t, { echo: (input) => input }, { broker: { curve }, worker: keys })
  await broker.next('heartbeat')
  broker.sendSteps({ id: 1, handlerClass: 'echo', input: { a: 1 } })
  assert.deepEqual((await broker.result(1)).output, { a: 1 })
  const wrong = { ...keys, curveServerKey: curveKeyPair().publicKey }
  const stranger = new Worker({ steps: broker.steps, results: broker.results, ...wrong, logger: records() })
  stranger.handle('echo', () => null).start()
  const hello = broker.next('hello', (message) => message.worker === stranger.id)
  assert.equal(await Promise.race([hello, new Promise((settle) => setTimeout(settle, 1_500, 'none'))]), 'none')
  await stranger.stop(0)
})

test('a program that calls exit ends with its own code, also while the sockets are open', LIMIT, async () => {
  const source = `
    import { Worker } from 'stepwire'
    const worker = new Worker({ steps: 'tcp://127.0.0.1:9', results: 'tcp://127.0.0.1:9' }).handle('x', () => 1)
    worker.start()
    setTimeout(() => process.exit(7), 300)`
  const child = spawn(process.execPath, ['--input-type=module', '-e', source], {
    cwd: new URL('..', import.meta.url),
    stdio: ['ignore', 'ignore', 'ignore'],
  })
  assert.deepEqual(await new Promise((settle) => child.once('exit', (...how) => settle(how))), [7, null])
})

test('without a broker, the worker names the endpoint and the reason', LIMIT, async () => {
  const logger = records()
  const worker = new Worker({ steps: 'ipc://nowhere.sock', results: 'ipc://nowhere2.sock', logger }).handle(
    'x',
    () => 1,
  )
  worker.start()
  while (!logger.lines.some((line) => line.event === 'no_broker')) await new Promise((settle) => setTimeout(settle, 50))
  const { text } = logger.lines.find((line) => line.event === 'no_broker')
  assert.match(text, /^no broker for 3 s: ipc:\/\/\/.*\/nowhere\.sock: there is no such socket\. The path is relative/)
  await worker.stop()
  assert.equal(logger.lines.at(-1).text, 'the worker has ended')
})
