import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Worker as Thread } from 'node:worker_threads'
import { NEVER, Run, RunMemory } from '../src/actions.js'
import { RunSlots } from '../src/runners/run_slots.js'
import { Runner } from '../src/runners/runner.js'
import { Queue } from '../src/session/queue.js'
import { Tombstones } from '../src/session/tombstones.js'
import { LoopWatch } from '../src/worker/loop_watch.js'

const memory = () => {
  const shared = new RunMemory()
  const lease = shared.newLease()
  lease.untilMs = 1_000
  const run = () => new Run(shared, [1, 1], {}, 0, lease, 100, NEVER)
  return { shared, lease, run }
}

test('a run that was taken back never begins, and one that has begun cannot be taken back', () => {
  const { shared, run } = memory()
  const taken = run()
  assert.equal(taken.takeBack(), true)
  assert.equal(shared.begin(taken.index, 10), false)
  const begun = run()
  assert.equal(shared.begin(begun.index, 10), true)
  assert.equal(begun.takeBack(), false)
  assert.equal(begun.startedMs, 10)
  assert.equal(begun.timeoutAtMs, 110)
})

test('no run begins at or after the end of the lease of its broker', () => {
  const { shared, lease, run } = memory()
  const first = run()
  assert.equal(shared.begin(first.index, 1_000), false)
  lease.untilMs = 2_000
  assert.equal(shared.begin(first.index, 1_999), true)
})

test('a run that moved to another broker needs its lease', () => {
  const { shared, run } = memory()
  const other = shared.newLease()
  const moved = run()
  moved.setLease(other)
  assert.equal(shared.begin(moved.index, 10), false)
  other.untilMs = 20
  assert.equal(shared.begin(moved.index, 10), true)
})

test('the place of an ended run is used again, and the run keeps when it began', () => {
  const { shared, run } = memory()
  const first = run()
  shared.begin(first.index, 10)
  first.release()
  const second = run()
  assert.equal(second.index, first.index)
  assert.equal(second.startedMs, null)
  assert.equal(first.startedMs, 10)
  assert.equal(first.takeBack(), false)
  first.requestStop('timeout')
  assert.equal(shared.stopReason(second.index), null)
})

test('of two threads that begin and take back the same run, exactly one succeeds', async () => {
  const { shared, run } = memory()
  const runs = Array.from({ length: 20_000 }, run)
  const flags = new Int32Array(new SharedArrayBuffer(4))
  const source = `
    import { workerData } from 'node:worker_threads'
    const { RunMemory } = await import(workerData.url)
    const memory = new RunMemory({ leases: workerData.leases })
    for (const chunk of workerData.chunks) memory.addChunk(chunk)
    const flags = new Int32Array(workerData.flags)
    Atomics.store(flags, 0, 1)
    const begun = workerData.indexes.filter((index) => memory.begin(index, 10))
    const { parentPort } = await import('node:worker_threads')
    parentPort.postMessage(begun)`
  const thread = new Thread(new URL(`data:text/javascript,${encodeURIComponent(source)}`), {
    workerData: {
      url: new URL('../src/actions.js', import.meta.url).href,
      leases: shared.leases,
      chunks: shared.chunks.map((chunk) => chunk.buffer),
      indexes: runs.map((each) => each.index),
      flags: flags.buffer,
    },
  })
  const result = new Promise((settle) => thread.once('message', settle))
  while (Atomics.load(flags, 0) === 0) await new Promise((settle) => setImmediate(settle))
  const taken = new Set()
  for (const each of runs.slice().reverse()) if (each.takeBack()) taken.add(each.index)
  const begun = new Set(await result)
  assert.equal(begun.size + taken.size, runs.length)
  for (const index of begun) assert.ok(!taken.has(index))
})

test('calls start in their order, within the slots and the concurrency of their handlers', () => {
  const slots = new RunSlots(2, [{ concurrency: 1 }, { concurrency: null }])
  const call = (name, offer) => ({ name, offer })
  const [a, b, c, d] = [call('a', 0), call('b', 0), call('c', 1), call('d', 1)]
  assert.deepEqual(slots.add([a, b, c, d]), [a, c])
  assert.equal(slots.release(c), d)
  assert.equal(slots.release(d), null)
  assert.equal(slots.release(a), b)
  assert.equal(slots.release(b), null)
  assert.equal(slots.free, 2)
})

test('an outcome does not wait for the handler that computes after it', async () => {
  const events = []
  let nowMs = 0
  const runner = new Runner({
    slots: 2,
    offers: [{ concurrency: null }],
    clock: () => nowMs,
    post: (outcomes) => events.push(['posted', outcomes.length / 2]),
  })
  const handler = {}
  const call = (name) => ({
    index: 0,
    offer: 0,
    handler,
    startedMs: 0,
    begin: () => true,
    end: () => {},
    run: () => {
      nowMs += 2
      events.push(name)
      return 'null'
    },
    completed: (output) => output,
  })
  runner.add([call('first'), call('second')])
  await new Promise((settle) => setImmediate(settle))
  assert.deepEqual(events, ['first', ['posted', 1], 'second', ['posted', 1]])
})

test('a handler that blocks the event loop for two checks is reported once', () => {
  const beat = new SharedArrayBuffer(12)
  const current = new Int32Array(beat)
  let pings = 0
  const watch = new LoopWatch(beat, () => (pings += 1))
  current[1] = 7
  assert.deepEqual([watch.check(0), watch.check(500), watch.check(1000), watch.check(2000)], [null, null, null, 7])
  assert.equal(watch.check(3000), null)
  current[0] = 1
  assert.equal(watch.check(4000), null)
  assert.equal(pings, 2)
})

test('a queue keeps its order at both ends', () => {
  const queue = new Queue()
  for (let i = 0; i < 5000; i++) queue.push(i)
  for (let i = 0; i < 3000; i++) assert.equal(queue.shift(), i)
  queue.unshift('first')
  assert.equal(queue.size, 2001)
  assert.equal(queue.shift(), 'first')
  assert.equal(queue.first, 3000)
})

test('when a tombstone is forgotten, the floor of its session rises', () => {
  const tombstones = new Tombstones()
  const peer = { session: '7.1', floor: -1 }
  for (let i = 0; i < 20_002; i++) tombstones.add([`${i}.1`], peer, { session: '7.1', number: i }, i)
  assert.equal(peer.floor, 1)
  assert.equal(tombstones.has('1.1'), false)
  assert.equal(tombstones.has('2.1'), true)
  tombstones.sweep(600_000 + 10)
  assert.equal(peer.floor, 9)
  tombstones.forgetBroker(peer)
  assert.equal(tombstones.has('10000.1'), false)
  tombstones.add(['7.1'], peer, { session: '7.2', number: 7 }, 0)
  tombstones.sweep(900_000)
  assert.equal(peer.floor, 9)
})
