#!/usr/bin/env node
import { addHandlers } from '../src/conform.js'
import { Worker } from '../src/index.js'

await addHandlers(Worker.fromEnv()).run()
