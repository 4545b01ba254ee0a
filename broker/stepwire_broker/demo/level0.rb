# Level 0 in Ruby: price lists and invoices. Needs ffi-rzmq, and no part of Stepwire.
require "ffi-rzmq"
require "json"

LANGUAGE = "ruby"
LEDGER = "ledgers/level0-#{LANGUAGE}-#{Process.pid}.jsonl".freeze

HANDLERS = {
  "lists.price" => lambda do |order, _|
    { cents: order.fetch("items").sum { |item| item.fetch("cents") * item.fetch("count") } }
  end,
  "lists.invoice" => lambda do |order, results|
    { invoice: format("%s: %d.%02d EUR", order.fetch("customer"), *results.fetch("charge").fetch("cents").divmod(100)) }
  end
}.freeze

def run(step)
  result = { step_id: step["step_id"] }
  handler = HANDLERS[step["handler_class"]]
  unless handler
    error = { code: "unknown_handler", message: "#{LANGUAGE} has no #{step['handler_class']}", retryable: false }
    return { **result, status: "error", error: error }
  end
  write("started", step)
  output = handler.call(step["task_context"], step["previous_results"])
  write("finished", step)
  { **result, status: "completed", output: output.merge(language: LANGUAGE) }
rescue StandardError => e
  write("failed", step)
  { **result, status: "failed", error: { message: "#{e.class}: #{e.message}" } }
end

def write(event, step)
  facts = { at_ns: Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond), event: event,
            task_id: step["task_id"], step_id: step["step_id"], step: step["step_name"],
            attempt: step["metadata"]["attempt"], language: LANGUAGE, pid: Process.pid }
  File.open(LEDGER, "a") { |ledger| ledger.write("#{JSON.generate(facts)}\n") }
end

# ffi-rzmq gives return codes.
def check(code) = ZMQ::Util.resultcode_ok?(code) ? code : abort("level0.rb: #{ZMQ::Util.error_string}")

trap("TERM") { exit!(0) }
context = ZMQ::Context.new
steps, results = context.socket(ZMQ::SUB), context.socket(ZMQ::PUB)
check steps.setsockopt(ZMQ::SUBSCRIBE, "steps")
check steps.connect(ENV.fetch("STEPWIRE_STEPS"))
check results.connect(ENV.fetch("STEPWIRE_RESULTS"))
loop do
  check steps.recv_string(message = +"")
  batch = JSON.parse(message.split(" ", 2).last)
  answer = { batch_id: batch["batch_id"], protocol_version: "1.0", results: batch["steps"].map { |step| run(step) } }
  check results.send_string("results #{JSON.generate(answer)}")
end
