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

    # The step as the handler receives it.
    def step
      @run.step
    end

    # Perform the call by the block, which returns the result or GIVE_BACK.
    def opened_and_closed
      yield
    end

    # The result as it may leave the worker.
    def closed(result)
      result
    end

    # The values of the step's secrets, by name.
    def secrets
      {}
    end

    # The last check before the handler is called: may it be called? If not, the step is given back.
    def begin(at_ms)
      @run.begin(at_ms) && @context.cancel_reason.nil?
    end

    # Call the handler in this thread, after `begin`. Returns the result.
    def perform
      step = self.step
      started_ms = @run.started_ms
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
      step = self.step
      reason = @context.cancel_reason
      if reason == "timeout" || (reason && error.is_a?(Cancelled))
        return GIVE_BACK if reason == "shutdown" && !step.at_most_once?

        return Outcomes.stopped(step, reason, took_ms, @handler.version)
      end
      RunLog.raised(step, error, reason, is_sealed: @context.sealed?)
      Outcomes.failed(@handler, step, error, took_ms)
    end

    def logged(result)
      RunLog.not_reported(@run.step, result, is_sealed: @context.sealed?)
      result
    end
  end

  # A call of a step that the edge opens before the handler.
  class CallToOpen < HandlerCall
    attr_reader :step

    def initialize(run, handler, context, edge)
      super(run, handler, context)
      @edge = edge
      @step = run.step
      @opened = nil
    end

    def perform
      opened_and_closed { super }
    end

    # Perform the call between the opening of its step and the closing of its result. May wait for files. A lease that
    # ends meanwhile gives the step back: the handler must not be called.
    def opened_and_closed
      opened = @edge.open(@run.step)
      return logged(opened) if opened.is_a?(Result)

      @opened = opened
      @step = opened.step
      @context.open(@step, is_sealed: !opened.task.nil?)
      too_late? ? GIVE_BACK : closed(yield)
    end

    def closed(result)
      result.nil? || @opened.nil? ? result : @edge.close(@opened, result)
    end

    def secrets
      @opened.secrets
    end

    private

    # A lease that ended counts although a new session has begun: the broker may have given the step to another worker.
    def too_late?
      Identity.now_ms >= @run.lease.until_ms || @context.lease_lost?
    end
  end
end
