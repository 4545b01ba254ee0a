// Level 0 in Node: needs zeromq (npm install, here), and no part of Stepwire.
import { Publisher, Subscriber } from 'zeromq'

const LANGUAGE = 'node'

/** Reject a missing number, which arithmetic would turn into NaN and JSON into null. */
function integer(value, name) {
  if (!Number.isSafeInteger(value)) throw new TypeError(`${name} is ${value}, not an integer`)
  return value
}

const HANDLERS = {
  'quote.sum': ({ handler_config: { of }, task_context: { items } }) => ({
    sum: items.reduce((sum, item) => sum + integer(item[of], of) * integer(item.count, 'count'), 0),
  }),
  'quote.total': ({ handler_config: config, previous_results: { goods, weight, volume } }) => ({
    cents: goods.sum + Math.floor((weight.sum * integer(config.cents_per_kg, 'cents_per_kg')) / 1000),
    parcels: integer(Math.ceil(volume.sum / config.millilitres_per_parcel), 'parcels'),
  }),
}

/** Always return a result: without one, the broker waits until the step's timeout has expired. */
async function run({ step_id, handler_class, ...step }) {
  if (!Object.hasOwn(HANDLERS, handler_class)) {
    const message = `${LANGUAGE} has no ${handler_class}`
    return { step_id, status: 'error', error: { code: 'unknown_handler', message, retryable: false } }
  }
  try {
    const output = { ...(await HANDLERS[handler_class](step)), language: LANGUAGE }
    JSON.stringify(output) // an output that is not JSON fails the step, and must not end the loop
    return { step_id, status: 'completed', output }
  } catch (error) {
    const isInTheOrder = error instanceof TypeError // so a retry cannot help
    return { step_id, status: 'failed', error: { message: String(error), retryable: !isInTheOrder } }
  }
}

const steps = new Subscriber()
const results = new Publisher()
steps.subscribe('steps')
steps.connect(process.env.STEPWIRE_STEPS ?? 'ipc://.stepwire/steps.sock')
results.connect(process.env.STEPWIRE_RESULTS ?? 'ipc://.stepwire/results.sock')
for await (const [frame] of steps) {
  // Some bindings also deliver what was not subscribed, such as a broker's greeting.
  if (frame.subarray(0, 6).toString() !== 'steps ') continue
  const batch = JSON.parse(frame.subarray(6).toString())
  const done = await Promise.all(batch.steps.map(run))
  const answer = { batch_id: batch.batch_id, protocol_version: '1.0', results: done }
  await results.send(`results ${JSON.stringify(answer)}`)
}
