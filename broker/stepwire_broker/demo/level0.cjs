// Level 0 in Node: price lists and invoices. Needs zeromq in the demo's directory, and no part of Stepwire.
const { appendFileSync } = require('node:fs')
const { Publisher, Subscriber } = require(require.resolve('zeromq', { paths: [process.cwd()] }))

const LANGUAGE = 'node'
const LEDGER = `ledgers/level0-${LANGUAGE}-${process.pid}.jsonl`

const HANDLERS = {
  'lists.price': ({ items }) => ({ cents: items.reduce((sum, item) => sum + item.cents * item.count, 0) }),
  'lists.invoice': ({ customer }, { charge }) => ({ invoice: `${customer}: ${(charge.cents / 100).toFixed(2)} EUR` }),
}

function run(step) {
  const { step_id, handler_class } = step
  if (!Object.hasOwn(HANDLERS, handler_class)) {
    const message = `${LANGUAGE} has no ${handler_class}`
    return { step_id, status: 'error', error: { code: 'unknown_handler', message, retryable: false } }
  }
  write('started', step)
  try {
    const output = HANDLERS[handler_class](step.task_context, step.previous_results)
    write('finished', step)
    return { step_id, status: 'completed', output: { ...output, language: LANGUAGE } }
  } catch (error) {
    write('failed', step)
    return { step_id, status: 'failed', error: { message: String(error) } }
  }
}

function write(event, { task_id, step_id, step_name, metadata }) {
  const facts = { event, task_id, step_id, step: step_name, attempt: metadata.attempt, language: LANGUAGE }
  const at = BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e3)) * 1_000n
  appendFileSync(LEDGER, `{"at_ns":${at},"pid":${process.pid},${JSON.stringify(facts).slice(1)}\n`)
}

async function main() {
  const steps = new Subscriber()
  const results = new Publisher()
  steps.subscribe('steps')
  steps.connect(process.env.STEPWIRE_STEPS)
  results.connect(process.env.STEPWIRE_RESULTS)
  for await (const [frame] of steps) {
    const batch = JSON.parse(frame.subarray(frame.indexOf(' ') + 1).toString())
    const answer = { batch_id: batch.batch_id, protocol_version: '1.0', results: batch.steps.map(run) }
    await results.send(`results ${JSON.stringify(answer)}`)
  }
}

main()
