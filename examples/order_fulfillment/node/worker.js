// The worker of orders.ship: it hands the parcel to the carrier.
import { Worker } from 'stepwire'

const worker = Worker.fromEnv()

worker.handle('orders.ship', async ({ parcel, customer }, ctx) => {
  ctx.log.info('shipping', { parcel })
  return { tracking: `${parcel} to ${customer}` }
})

await worker.run()
