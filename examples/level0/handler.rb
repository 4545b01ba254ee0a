# Level 0 in Ruby: needs ffi-rzmq (Debian: apt-get install ruby-ffi-rzmq), and no part of Stepwire.
require "ffi-rzmq"
require "json"

HANDLERS = {
  "quote.sum" => lambda do |config, order, _|
    { sum: order.fetch("items").sum { |item| item.fetch(config.fetch("of")) * item.fetch("count") } }
  end,
  "quote.total" => lambda do |config, _, before|
    goods, weight, volume = %w[goods weight volume].map { |name| before.fetch(name).fetch("sum") }
    { cents: goods + weight * config.fetch("cents_per_kg") / 1000,
      parcels: -(-volume / config.fetch("millilitres_per_parcel")) } # rounded up
  end
}.freeze

# Always return a result: without one, the broker waits until the step's timeout has expired.
def run(step)
  handler = HANDLERS[step["handler_class"]]
  unless handler
    error = { code: "unknown_handler", message: "ruby has no #{step['handler_class']}", retryable: false }
    return { step_id: step["step_id"], status: "error", error: error }
  end
  output = handler.call(*step.values_at("handler_config", "task_context", "previous_results")).merge(language: "ruby")
  JSON.generate(output) # an output that is not JSON fails the step, and must not end the loop
  { step_id: step["step_id"], status: "completed", output: output }
rescue StandardError => e
  is_in_the_order = e.is_a?(KeyError) || e.is_a?(TypeError) || e.is_a?(NoMethodError) # so a retry cannot help
  error = { message: "#{e.class}: #{e.message}", backtrace: e.backtrace.first(5), retryable: !is_in_the_order }
  { step_id: step["step_id"], status: "failed", error: error }
end

# ffi-rzmq returns codes and raises nothing.
def check(code) = ZMQ::Util.resultcode_ok?(code) ? code : abort("handler.rb: #{ZMQ::Util.error_string}")

context = ZMQ::Context.new
steps, results = context.socket(ZMQ::SUB), context.socket(ZMQ::PUB)
check steps.setsockopt(ZMQ::SUBSCRIBE, "steps")
check steps.connect(ENV.fetch("STEPWIRE_STEPS", "ipc://.stepwire/steps.sock"))
check results.connect(ENV.fetch("STEPWIRE_RESULTS", "ipc://.stepwire/results.sock"))
loop do
  check steps.recv_string(message = +"")
  topic, body = message.split(" ", 2)
  next unless topic == "steps" # some bindings also deliver what was not subscribed, such as a broker's greeting

  batch = JSON.parse(body)
  answer = { batch_id: batch["batch_id"], protocol_version: "1.0", results: batch["steps"].map { |step| run(step) } }
  check results.send_string("results #{JSON.generate(answer)}")
end
