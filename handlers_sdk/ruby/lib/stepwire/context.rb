# frozen_string_literal: true

module Stepwire
  # A flag that the SDK sets once, and a handler reads or waits for.
  class Signal
    MAKING = Mutex.new

    # `is_set` asks whether the flag is set already.
    def initialize(&is_set)
      @is_set = is_set
      @changed = nil # made when a handler first waits
    end

    def set?
      @is_set.call
    end

    # Block until the flag is set, at most `timeout` seconds. True if it is set.
    def wait(timeout = nil)
      until_s = timeout && (Process.clock_gettime(Process::CLOCK_MONOTONIC) + timeout)
      MAKING.synchronize do
        @changed ||= ConditionVariable.new
        until set?
          left_s = until_s && (until_s - Process.clock_gettime(Process::CLOCK_MONOTONIC))
          return false if left_s && left_s <= 0

          @changed.wait(MAKING, left_s)
        end
      end
      true
    end

    # Wake up who waits. Called with MAKING locked, after the flag was set.
    def wake
      @changed&.broadcast
    end
  end

  # One delivery of a step, for its handler: the first argument of every handler.
  #
  # `idempotency_key` is the same for every attempt and delivery of the step. Pass it to every service that must not act
  # twice. `delivery` only increases: a store that keeps the highest value can refuse writes of an earlier run.
  class Context
    NOTE_CHARS_MAX = 200

    attr_reader :cancel_reason # timeout, task_cancelled, superseded, shutdown, …; nil until the run should stop

    # `report` is called with the item, done, total and note of each progress report. Ruby keeps three members inside an
    # object, and more in memory of their own: the others are set when they are needed.
    def initialize(run, report)
      @run = run
      @step = run.step
      @report = report
    end

    # -- the step -----------------------------------------------------------------------------------------------------

    %i[task_id step_id step_name handler_class attempt retry_limit delivery delivery_mode idempotency_key traceparent
       tracestate].each do |name|
      define_method(name) { @step[name] }
    end

    # True in a shadow run. The result is only compared, so the run must have no effects.
    def shadow?
      @step.shadow
    end

    # -- input --------------------------------------------------------------------------------------------------------

    # The step's `handler_config`.
    def config
      config = @step.handler_config
      config.equal?(Codec::NO_CONFIG) ? {} : config
    end

    # The outputs of the steps that this step depends on, by step name.
    def results
      @step.previous_results
    end

    # The step's `input` if its workflow defines one, otherwise the whole task context.
    def input
      @step.input.equal?(ABSENT) ? @step.task_context : @step.input
    end

    # -- time ---------------------------------------------------------------------------------------------------------

    # Milliseconds until the timeout; infinite without a timeout.
    def remaining_ms
      [0.0, @run.timeout_at_ms - Identity.now_ms].max
    end

    # The time of the timeout on the worker's own clock (`Stepwire::Identity.now_ms`).
    def deadline_ms
      @run.timeout_at_ms
    end

    # Milliseconds since the start of the run.
    def elapsed_ms
      [0.0, Identity.now_ms - @run.started_ms].max
    end

    # -- requests to stop ---------------------------------------------------------------------------------------------

    # True if the run should stop: its time is over, or its task was cancelled. `cancel_reason` is the reason.
    def cancelled?
      !@cancel_reason.nil?
    end

    # The same as a signal to wait for: `ctx.cancelled.wait(1.5)`.
    def cancelled
      @cancelled ||= Signal.new { cancelled? }
    end

    # True if the broker may now run the step on another worker. The flag stops nothing.
    def lease_lost?
      @is_lease_lost == true
    end

    # The same as a signal to wait for.
    def lease_lost
      @lease_lost ||= Signal.new { lease_lost? }
    end

    # Raise Stepwire::Cancelled if the run should stop. Call it between two pieces of work.
    def raise_if_cancelled
      raise Cancelled, @cancel_reason if cancelled?
    end

    # Sleep, but wake up at once and raise Stepwire::Cancelled when the run should stop.
    def sleep(seconds)
      cancelled.wait(seconds)
      raise_if_cancelled
    end

    # -- reports ------------------------------------------------------------------------------------------------------

    # Report the progress of this run: `done` of `total`, and a short note for people.
    #
    # Calls are cheap: only the latest report of a run is sent, at most five times a second. A note with more than 200
    # characters is cut after 199, and ends with `…`; a note of a sealed step is not sent. Raises
    # ConfigurationError for anything but finite numbers up to 2^53.
    def progress(done, total = nil, note = nil)
      [done, total].compact.each do |number|
        next if (number.is_a?(Integer) || number.is_a?(Float)) && number.abs <= 2**53 # false for NaN

        raise ConfigurationError, "progress(#{done.inspect}, #{total.inspect}): both must be finite numbers up to 2^53"
      end
      note = note.nil? || sealed? ? nil : Texts.shortened(note.to_s, NOTE_CHARS_MAX)
      @report.call([@step.step_id, @step.delivery], done, total, note)
      nil
    end

    # A logger whose lines begin with the step's ids.
    def log
      @log ||= Logs::StepLogger.new(@step)
    end
    alias logger log

    # The step is open: the handler receives it in this form. No note of a sealed step is sent.
    def open(step, is_sealed:)
      @step = step
      @is_sealed = is_sealed
    end

    def sealed?
      @is_sealed == true
    end

    # Set the flags for this reason. A lost lease does not cancel the run, which may still be the only one.
    def request_stop(reason)
      Signal::MAKING.synchronize do
        if reason == "lease_lost"
          @is_lease_lost = true
          @lease_lost&.wake
        else
          @cancel_reason ||= reason
          @cancelled&.wake
        end
      end
    end
  end
end
