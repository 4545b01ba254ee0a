// Level 0 in Node: needs zeromq (npm install, here), and nothing of Stepwire.
import { Publisher, Subscriber } from 'zeromq'

const LANGUAGE = 'node'

/** A missing number would go through arithmetic as NaN and through JSON as null. */
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

/** Whatever happens, there is a result: a step without one is only given up when its time is over. */
async function run({ step_id, handler_class, ...step }) {
  if (!Object.hasOwn(HANDLERS, handler_class)) {
    const message = `${LANGUAGE} has no ${handler_class}`
    return { step_id, status: 'error', error: { code: 'unknown_handler', message, retryable: false } }
  }
  try {
    const output = { ...(await HANDLERS[handler_class](step)), language: LANGUAGE }
    JSON.stringify(output) // an output that is no JSON is the handler's failure, not the loop's end
    return { step_id, status: 'completed', output }
  } catch (error) {
    const isInTheOrder = error instanceof TypeError // and will be there the next time too
    return { step_id, status: 'failed', error: { message: String(error), retryable: !isInTheOrder } }
  }
}

const steps = new Subscriber()
const results = new Publisher()
steps.subscribe('steps')
steps.connect(process.env.STEPWIRE_STEPS ?? 'ipc://.stepwire/steps.sock')
results.connect(process.env.STEPWIRE_RESULTS ?? 'ipc://.stepwire/results.sock')
for await (const [frame] of steps) {
  const batch = JSON.parse(frame.subarray(frame.indexOf(' ') + 1).toString())
  const done = await Promise.all(batch.steps.map(run))
  const answer = { batch_id: batch.batch_id, protocol_version: '1.0', results: done }
  await results.send(`results ${JSON.stringify(answer)}`)
}
