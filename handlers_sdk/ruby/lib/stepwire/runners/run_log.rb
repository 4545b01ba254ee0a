# frozen_string_literal: true

module Stepwire
  # The log lines of runs that end without an output.
  #
  #     task 9 step 12 pay attempt 1 of 4 failed: KeyError: key not found: "nope"
  #     ship.rb:4:in `call'
  #
  # An unexpected exception is an error, with its backtrace. What a handler says on purpose is a warning of one line.
  module RunLog
    TEXT_CHARS_MAX = 500 # the backtrace and the result have more

    REASONS = {
      "timeout" => "exceeded its timeout and is asked to stop",
      "task_cancelled" => "is asked to stop: the task was cancelled",
      "not_granted" => "is asked to stop: the broker does not grant it",
      "superseded" => "is asked to stop: the broker has ended this run (its timeout, or a retry elsewhere); " \
                      "its result will not be used",
      "shutdown" => "is asked to stop: the worker shuts down",
      "lease_lost" => "continues without a broker: its result may come too late"
    }.freeze
    EXPECTED = %w[task_cancelled shutdown].freeze

    module_function

    # Log the exception of a handler; of a sealed step, only its type.
    def raised(step, error, cancel_reason, is_sealed: false)
      if is_sealed
        write(:warning, step, "failed: #{Backtraces.name_of(error)}; the text of the error is sealed")
        return
      end
      if cancel_reason
        write(:info, step, "ended after it was asked to stop (#{cancel_reason}): #{Backtraces.summary(error)}")
        return
      end
      text = "failed: #{Backtraces.summary(error)}"
      unless error.is_a?(StepError)
        write(:error, step, text, Backtraces.lines(error))
        return
      end
      text += format("; a retry may start after %g s", error.after_ms / 1000.0) if error.is_a?(Retry)
      text += "; no retry" if error.is_a?(Permanent)
      text += " (caused by #{Backtraces.summary(error.cause)})" if error.cause
      write(:warning, step, text)
    end

    # Log a failure that the SDK has found: input that does not fit, output that is not JSON, a dead process.
    def not_reported(step, result, is_sealed: false)
      text = is_sealed ? "the text of the error is sealed" : result.error[:message]
      write(:error, step, "failed: #{result.error[:code]}: #{text}")
    end

    # The level and the line of a request to stop. A handler may ignore it, so the end of the run may never be logged.
    def interrupted(step, reason)
      [EXPECTED.include?(reason) ? :info : :warning, line(step, REASONS.fetch(reason))]
    end

    def write(level, step, text, backtrace = [])
      Stepwire.logger.add(Logs::LEVELS.fetch(level)) { [line(step, text), *backtrace].join("\n") }
    end

    def line(step, text)
      attempt = "attempt #{step.attempt + 1} of #{step.retry_limit + 1}" # people count from 1
      "task #{step.task_id} step #{step.step_id} #{step.step_name} #{attempt} #{Texts.shortened(text, TEXT_CHARS_MAX)}"
    end
  end
end
