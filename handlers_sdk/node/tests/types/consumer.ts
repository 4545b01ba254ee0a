// A program as a user writes it: `tsc --noEmit --strict` checks it against the declarations of the package.
import { OutcomeUnknown, Permanent, Retry, RunStopped, StepError, Worker, type Context, type Json } from 'stepwire'
import * as testing from 'stepwire/testing'

interface Order {
  order_id: number
  note?: string
}

interface Shipped {
  tracking: string
}

const worker: Worker = Worker.fromEnv({ slots: 4, labels: { region: 'eu' }, logger: console })

worker.handle<Order, Shipped>('ship_order', { concurrency: 8, timeoutMs: 5_000 }, async (order, ctx) => {
  const response = await fetch('https://example.com', { signal: ctx.signal })
  ctx.log.info('shipping', { order_id: order.order_id, status: response.status })
  ctx.progress(1, 2, 'packed')
  const key: string = ctx.idempotencyKey
  return { tracking: `${key}-${order.order_id}` }
})

// The type of the input follows from its schema.
const readOrder = (value: unknown): Order => {
  if (typeof (value as Order).order_id !== 'number') throw new TypeError('order_id must be a number')
  return value as Order
}
worker.handle('typed', { input: readOrder }, (order) => ({ id: order.order_id.toFixed() }))
worker.handle('parsed', { input: { parse: readOrder } }, (order) => ({ note: order.note ?? null }))

const fail = (input: { kind: string }, ctx: Context): Json => {
  if (ctx.cancelled) throw new Permanent('stopped', { code: ctx.cancelReason ?? undefined })
  if (input.kind === 'later') throw new Retry('busy', { after: 60 })
  if (input.kind === 'unknown') throw new OutcomeUnknown('no answer', { cause: new Error('timed out') })
  if (input.kind === 'down') throw new StepError('no database', { category: 'unavailable' })
  return { attempt: ctx.attempt, deadline: ctx.remainingMs }
}
worker.handle('fail', fail)

// @ts-expect-error: a handler's name is a text
worker.handle(7, fail)
// @ts-expect-error: there is no such option
new Worker({ slot: 4 })
// @ts-expect-error: Retry needs the seconds
new Retry('busy')

export async function test(): Promise<string> {
  const outcome = await testing.run(fail, { kind: 'none' }, { attempt: 1, config: {}, results: { pay: { id: 1 } } })
  const all = await testing.run(worker, { order_id: 7 }, { handlerClass: 'ship_order' })
  const stopped = new Error() instanceof RunStopped
  return `${outcome.status} ${outcome.error?.code} ${all.output.tracking} ${stopped}`
}

await worker.run()
