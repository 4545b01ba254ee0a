/**
 * A level-0 loop on the plain binding, without this SDK: the benchmark compares the SDK with it.
 *
 * It answers each step with its task context.
 */

import { Publisher, Subscriber } from 'zeromq'

const TOPIC = 'steps '
const steps = new Subscriber({ receiveHighWaterMark: 0 })
const results = new Publisher({ sendHighWaterMark: 0 })
steps.connect(process.env.STEPWIRE_STEPS ?? 'ipc://.stepwire/steps.sock')
results.connect(process.env.STEPWIRE_RESULTS ?? 'ipc://.stepwire/results.sock')
steps.subscribe(TOPIC)

for await (const [frame] of steps) {
  const text = frame.toString()
  if (!text.startsWith(TOPIC)) continue
  const batch = JSON.parse(text.slice(text.indexOf(' ') + 1))
  const done = batch.steps.map((step) => ({ step_id: step.step_id, status: 'completed', output: step.task_context }))
  const answer = { batch_id: batch.batch_id, protocol_version: '1.0', results: done }
  await results.send(`results ${JSON.stringify(answer)}`)
}
