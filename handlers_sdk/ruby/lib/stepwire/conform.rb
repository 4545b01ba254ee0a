# frozen_string_literal: true

require_relative "../stepwire"

module Stepwire
  # The worker that `stepwire handler conform` grades: the handlers of protocol/conformance/CONTRACT.md.
  module Conform
    WAIT_STEP_S = 0.05

    module_function

    def run
      worker = Worker.from_env
      offer(worker)
      worker.run
    end

    def offer(worker)
      worker.handler("conform.echo") { |_, input| input }
      worker.handler("conform.fail") { |_, kind:, **| fail_as(kind) }
      worker.handler("conform.crash") { |_| exit!(70) }
      { "conform.wait" => {}, "conform.limited" => { concurrency: 2 },
        "conform.short" => { timeout_ms: 300 } }.each do |name, options|
        worker.handler(name, **options) { |ctx, input| wait(ctx, input) }
      end
      worker.handler("conform.compute") { |_, ms:, **| compute(ms) }
      worker.handler("conform.big") { |_, bytes:, **| { text: "x" * bytes } }
      worker.handler("conform.bad_output") { |_, kind:, **| bad_output(kind) }
      worker.handler("conform.context") { |ctx| context(ctx) }
      worker.handler("conform.trace") { |ctx| { traceparent: ctx.traceparent } }
      worker.handler("conform.progress") do |ctx|
        ctx.progress(1, 2, "half")
        {}
      end
      worker.handler("conform.typed",
                     input: { order_id: Integer, note: [String, nil] }) do |_, order_id:, note: nil, **|
        note.nil? ? { order_id: order_id } : { order_id: order_id, note: note }
      end
    end

    def fail_as(kind)
      case kind
      when "permanent" then raise Permanent.new("conform", code: "conform")
      when "retry" then raise Retry.new("conform", after: 1.5)
      when "unknown" then raise OutcomeUnknown, "conform"
      when "unavailable" then raise StepError.new("conform", category: "unavailable")
      else raise "conform"
      end
    end

    # Run until it is asked to stop, or the time is over. With `ignore`, only the time ends it.
    def wait(ctx, input)
      input = {} unless input.is_a?(Hash)
      ms = input["ms"] || NEVER
      until ctx.elapsed_ms >= ms
        left_s = [(ms - ctx.elapsed_ms) / 1000, WAIT_STEP_S].min
        input["ignore"] ? sleep(left_s) : ctx.cancelled.wait(left_s)
        break if ctx.cancelled? && !input["ignore"]
      end
      { stopped: ctx.cancel_reason, ms: ctx.elapsed_ms.round }
    end

    def compute(ms)
      until_ms = Identity.now_ms + ms
      nil while Identity.now_ms < until_ms
      { ms: ms }
    end

    def bad_output(kind)
      case kind
      when "nan" then { value: Float::NAN }
      when "bigint" then { value: (2**53) + 1 }
      when "nul" then { value: "a\0b" }
      when "surrogate" then { value: "\xED\xA0\x80" }
      else { value: Object.new }
      end
    end

    def context(ctx)
      {
        step_id: ctx.step_id, task_id: ctx.task_id, attempt: ctx.attempt, delivery: ctx.delivery,
        idempotency_key: ctx.idempotency_key, traceparent: ctx.traceparent, tracestate: ctx.tracestate,
        config: ctx.config, results: ctx.results, handler_class: ctx.handler_class, step_name: ctx.step_name,
        delivery_mode: ctx.delivery_mode
      }
    end
  end
end
