# frozen_string_literal: true

module Stepwire
  GIVE_BACK = nil # an outcome: the step was not started, or had no effect

  # One call of a handler, from the session's `Run` to the result for the broker.
  class HandlerCall
    attr_reader :run, :handler, :context

    def initialize(run, handler, context)
      @run = run
      @handler = handler
      @context = context
    end

    def offer
      @run.offer
    end

    # The last check before the handler is called: may it be called? If not, the step is given back.
    def begin(at_ms)
      @run.begin(at_ms) && @context.cancel_reason.nil?
    end

    # Call the handler in this thread. Returns the result.
    def perform
      step = @run.step
      started_ms = Identity.now_ms
      begin
        input = @handler.read_input(step)
      rescue BadInput => e
        return logged(Outcomes.bad_input(@handler, step, e.message))
      end
      begin
        value = @handler.call(@context, input)
      rescue Exception => e # rubocop:disable Lint/RescueException -- a run ends with a result, whatever it raises
        return ended(e, Identity.now_ms - started_ms)
      end
      result = Outcomes.completed(@handler, step, value, Identity.now_ms - started_ms)
      result.error.nil? ? result : logged(result)
    end

    private

    def ended(error, took_ms)
      step = @run.step
      reason = @context.cancel_reason
      if reason == "timeout" || (reason && error.is_a?(Cancelled))
        return GIVE_BACK if reason == "shutdown" && !step.at_most_once?

        return Outcomes.stopped(step, reason, took_ms, @handler.version)
      end
      RunLog.raised(step, error, reason)
      Outcomes.failed(@handler, step, error, took_ms)
    end

    def logged(result)
      RunLog.not_reported(@run.step, result)
      result
    end
  end
end
