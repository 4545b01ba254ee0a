/** The messages of the sockets' thread to the main thread: everything of one turn in one message. */

/** Collects what the main thread must know, and posts it at the end of a turn. */
export class Outgoing {
  constructor(post) {
    this.post = post
    this.chunks = []
    this.runs = []
    this.cancels = []
    this.records = []
    this.isPingDue = false
  }

  addChunk(chunk) {
    this.chunks.push(chunk)
  }

  addRun(run) {
    this.runs.push(run)
  }

  addCancel(run) {
    this.cancels.push(run.index)
  }

  ping() {
    this.isPingDue = true
  }

  /** A logger that passes the records to the program's logger on the main thread. */
  logger() {
    const add = (method) => (text, facts) => {
      const { err, ...others } = facts
      this.records.push([method, text, err === undefined ? others : { ...others, err: String(err) }])
      if (this.records.length === 1) setImmediate(() => this.flush()) // also outside a turn
    }
    return { debug: add('debug'), info: add('info'), warn: add('warn'), error: add('error') }
  }

  flush() {
    const message = {}
    if (this.chunks.length > 0) message.chunks = this.take('chunks')
    if (this.runs.length > 0) Object.assign(message, packed(this.take('runs')))
    if (this.cancels.length > 0) message.cancels = this.take('cancels')
    if (this.records.length > 0) message.records = this.take('records')
    if (this.isPingDue) message.ping = true
    this.isPingDue = false
    if (Object.keys(message).length > 0) this.post(message)
  }

  end(ended) {
    this.flush()
    this.post({ ended })
  }

  take(list) {
    const taken = this[list]
    this[list] = []
    return taken
  }
}

/**
 * The runs as `texts` and a flat list `runs`: place in shared memory, offer, timeout, deadline, number of the text, and
 * position in its list of steps.
 *
 * A step is passed on as the text of its message, which is parsed once more: that is faster than a copy of the parsed
 * step. If only a few steps of a large batch are handed over, they are written as a text of their own.
 */
function packed(runs) {
  const bySource = new Map()
  for (const run of runs) {
    const { source } = run.step
    const list = bySource.get(source)
    if (list === undefined) bySource.set(source, [run])
    else list.push(run)
  }
  const texts = []
  const numbers = new Map()
  for (const [source, list] of bySource) {
    if (list.length * 2 >= source.steps) numbers.set(source, texts.push(source.text) - 1)
  }
  const flat = []
  for (const run of runs) {
    let number = numbers.get(run.step.source)
    let { position } = run.step
    if (number === undefined) {
      const { source: _, position: __, ...step } = run.step
      number = texts.push(JSON.stringify({ steps: [step] })) - 1
      position = 0
    }
    flat.push(run.index, run.offer, run.timeoutMs, run.deadlineMs, number, position)
    dropData(run.step)
  }
  return { texts, runs: flat }
}

/** The handlers' thread has the data now. Here they would only be copied by each collection of garbage. */
function dropData(step) {
  step.handler_config = step.task_context = step.previous_results = step.source = null
  if ('input' in step) step.input = null
}
