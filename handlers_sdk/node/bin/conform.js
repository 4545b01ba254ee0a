#!/usr/bin/env node
import { addHandlers } from '../src/conform.js'
import { ConfigurationError, Worker } from '../src/index.js'

try {
  await addHandlers(Worker.fromEnv()).run()
} catch (error) {
  if (!(error instanceof ConfigurationError)) throw error
  process.stderr.write(`stepwire: ${error.message}\n`)
  process.exitCode = 2
}
