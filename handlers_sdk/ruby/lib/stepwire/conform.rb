# frozen_string_literal: true

require "json"
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
    rescue ConfigurationError => e
      warn "stepwire: #{e.message}"
      exit 2
    end

    def offer(worker)
      worker.handler("conform.echo") { |_, input| input }
      worker.handler("conform.fail") { |_, kind:, text: "conform", **| fail_as(kind, text) }
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
      worker.handler("conform.progress") do |ctx, ms: 0, note: "half", **|
        ctx.progress(1, 2, note)
        sleep(ms / 1000.0)
        {}
      end
      worker.handler("conform.typed",
                     input: { order_id: Integer, note: [String, nil] }) do |_, order_id:, note: nil, **|
        note.nil? ? { order_id: order_id } : { order_id: order_id, note: note }
      end
      worker.handler("conform.book") { |ctx| Book.run(ctx) }
    end

    def fail_as(kind, text)
      case kind
      when "permanent" then raise Permanent.new(text, code: "conform")
      when "retry" then raise Retry.new(text, after: 1.5)
      when "unknown" then raise OutcomeUnknown, text
      when "unavailable" then raise StepError.new(text, category: "unavailable")
      else raise text
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

    # A handler that records its life in a ledger, for campaigns that kill workers and brokers.
    module Book
      module_function

      def run(ctx)
        directory = ENV.fetch("CONFORM_BOOK") { raise Permanent, "CONFORM_BOOK is not set" }
        write(directory, ctx, "started", mode: ctx.delivery_mode, key: ctx.idempotency_key,
                                         seen: ctx.results.transform_values { |output| output["token"] })
        if ctx.cancelled.wait((ctx.config["work_ms"] || 0) / 1000.0)
          write(directory, ctx, "stopped", reason: ctx.cancel_reason)
          raise StepError.new("stopped: #{ctx.cancel_reason}", code: "stopped")
        end
        write(directory, ctx, "effect", key: ctx.idempotency_key)
        if ctx.attempt < (ctx.config["failures"] || 0)
          write(directory, ctx, "failed")
          raise StepError.new("configured to fail", code: "told_to")
        end
        write(directory, ctx, "finished")
        { token: "#{ctx.step_id}/#{ctx.delivery}/#{Process.pid}" }
      end

      # One line by one write, so that a kill leaves no half of it.
      def write(directory, ctx, event, **facts)
        line = JSON.generate(
          event: event, at: Process.clock_gettime(Identity::CLOCK, :nanosecond),
          wall: Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond), step_id: ctx.step_id,
          task_id: ctx.task_id, step: ctx.step_name, delivery: ctx.delivery, attempt: ctx.attempt, pid: Process.pid,
          **facts
        )
        path = File.join(directory, "worker-#{ENV.fetch('STEPWIRE_NAME', 'worker')}-#{Process.pid}.jsonl")
        File.open(path, File::WRONLY | File::APPEND | File::CREAT) { |file| file.syswrite("#{line}\n") }
      end
    end
  end
end
