# frozen_string_literal: true

require "json"
require "securerandom"
require_relative "../stepwire"

module Stepwire
  # Runs a handler without a broker, in a unit test.
  #
  #     require "stepwire/testing"
  #
  #     outcome = Stepwire::Testing.run(ShipOrder, { order_id: 7 }, results: { pay: { transaction: "t1" } })
  #     assert outcome.completed?
  #     assert_equal "T7", outcome.output["tracking"]
  module Testing
    # One call of `ctx.progress`.
    RecordedProgress = Struct.new(:done, :total, :note)

    # The result that a worker would have reported. `output` is read from its JSON, as a dependent step would read it.
    # `error` has the members `message`, `code`, `category`, `retryable`, `retry_after_ms` and `backtrace`; nil without
    # a failure.
    Outcome = Struct.new(:status, :output, :error, :progress) do
      def completed?
        status == "completed"
      end
    end

    FailureDetail = Struct.new(:message, :code, :category, :retryable, :retry_after_ms, :backtrace, keyword_init: true)

    module_function

    # Run a handler once, with the reading of the input, the encoding of the output and the mapping of errors of a
    # worker. `handler` is a class that includes Stepwire::Handler, or a Worker together with a `handler_class`. At
    # `timeout_ms` (0: never), or at the handler's own, the run is asked to stop, as by a worker. A handler with
    # `process: true` runs in this process. `secrets` has the values of the secrets to which the input and the
    # configuration refer.
    def run(handler, input = {}, handler_class: nil, results: {}, config: {}, attempt: 0,
            delivery_mode: "at_least_once", timeout_ms: Limits::TIMEOUT_DEFAULT_MS, idempotency_key: nil,
            traceparent: nil, tracestate: nil, secrets: nil)
      entry = find(handler, handler_class)
      step = StepRequest.new(
        2, 1, "step", handler_class || entry.name, as_received(config), as_received(input), as_received(results),
        ABSENT, 1, delivery_mode, attempt, 3, timeout_ms, idempotency_key || "#{SecureRandom.hex(16)}/step",
        traceparent, tracestate, nil, false
      )
      progress = []
      report = ->(_item, done, total, note) { progress << RecordedProgress.new(done, total, note) }
      timeouts = [timeout_ms.zero? ? nil : timeout_ms, entry.offer.timeout_ms].compact
      edge = Edge.new(secrets && ->(name) { secrets[name] })
      outcome_of(perform(entry, step, timeouts.min, report, edge), progress)
    end

    def perform(entry, step, timeout_ms, report, edge)
      lease = Lease.new
      lease.until_ms = NEVER
      run = Run.new([2, 1], step, 0, lease, timeout_ms || NEVER)
      context = Context.new(run, report)
      call = CallToOpen.new(run, entry, context, edge)
      call.begin(Identity.now_ms)
      timer = timeout_ms && Thread.new { stop_after(timeout_ms, context) }
      call.perform
    ensure
      timer&.kill
    end

    def stop_after(timeout_ms, context)
      sleep(timeout_ms / 1000.0)
      context.request_stop("timeout")
    end

    # The value as a worker receives it: with strings as keys.
    def as_received(value)
      JSON.parse(StrictJson.encode(value))
    end

    def find(handler, handler_class)
      workers = handler.is_a?(Worker) ? handler : Worker.new(name: "tested").add(handler)
      entries = workers.handlers
      return entries.first if handler_class.nil? && !handler.is_a?(Worker)

      if handler_class.nil?
        raise ConfigurationError,
              "Testing.run(worker, ...) needs handler_class:, the handler to run"
      end

      number = Offers.find(entries.map(&:offer), handler_class)
      return entries[number] if number

      offered = entries.map(&:name).join(", ")
      raise ConfigurationError, "the worker does not offer '#{handler_class}'; it offers " \
                                "#{offered.empty? ? 'nothing' : offered}"
    end

    def outcome_of(result, progress)
      output = result.status == "completed" ? JSON.parse(result.output) : nil
      error = result.error && FailureDetail.new(message: "", **result.error)
      Outcome.new(result.status, output, error, progress)
    end
  end
end
