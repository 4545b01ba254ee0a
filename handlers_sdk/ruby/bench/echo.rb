# frozen_string_literal: true

# A level-0 loop on ffi-rzmq alone, without the SDK: what the benchmark compares the SDK with.
require "ffi-rzmq"
require "json"

context = ZMQ::Context.new
steps = context.socket(ZMQ::SUB)
results = context.socket(ZMQ::PUB)
steps.connect(ENV.fetch("STEPWIRE_STEPS"))
results.connect(ENV.fetch("STEPWIRE_RESULTS"))
steps.setsockopt(ZMQ::SUBSCRIBE, "steps ")
frame = +""
loop do
  next if steps.recv_string(frame).negative?

  topic, body = frame.split(" ", 2)
  next if topic != "steps"

  batch = JSON.parse(body)
  done = batch["steps"].map do |step|
    { step_id: step["step_id"], status: "completed", output: step["task_context"] }
  end
  answer = { batch_id: batch["batch_id"], protocol_version: "1.0", results: done }
  results.send_string("results #{JSON.generate(answer)}")
end
