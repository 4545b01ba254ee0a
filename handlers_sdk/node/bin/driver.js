#!/usr/bin/env node
import { serve } from '../src/driver.js'

await serve(process.stdin, process.stdout)
