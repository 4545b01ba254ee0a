# frozen_string_literal: true

# Every exception of the SDK. All of them are a Stepwire::Error.
#
#     Error
#     ├── ConfigurationError      a worker or a handler cannot be set up like this
#     ├── InvalidMessage          a message breaks a rule of the protocol
#     └── StepError               raised by handlers: the step failed
#         ├── Permanent           the step failed, and a retry cannot help
#         ├── Retry               the step failed, and may be retried after a pause
#         └── OutcomeUnknown      the handler cannot know whether the step had its effect
#
# A handler may raise any exception. An ordinary one is a failure that the step's policy may retry; a StepError is more
# precise.
module Stepwire
  OUTCOME_UNKNOWN = "outcome_unknown"
  RETRY_AFTER_MAX_S = 10 * 365 * 86_400

  # The root of the tree.
  class Error < StandardError; end

  # A worker or a handler cannot be set up as requested. The message names the setting at fault. The backtrace begins at
  # the program's own line: the sentence says what to do there.
  class ConfigurationError < Error
    OWN_FRAME = "#{__dir__}/".freeze

    def backtrace
      super&.reject { |frame| frame.start_with?(OWN_FRAME) }
    end

    def backtrace_locations
      super&.reject { |frame| frame.absolute_path&.start_with?(OWN_FRAME) }
    end
  end

  # A message breaks a rule of the protocol. `code` is the code of SPEC.md §18.
  class InvalidMessage < Error
    attr_reader :code, :detail

    def initialize(code, detail = nil)
      @code = code
      @detail = detail
      super(detail ? "#{code}: #{detail}" : code)
    end
  end

  # The step failed, with a code from the handler. The step's policy decides about a retry, as for any exception.
  class StepError < Error
    attr_reader :code, :category

    def initialize(message = "", code: nil, category: nil)
      super(message)
      @code = code
      @category = category
    end

    def retryable
      true
    end
  end

  # The step failed, and a retry cannot help: a declined card, an address that does not exist.
  class Permanent < StepError
    def retryable
      false
    end
  end

  # The step failed, and must not be retried before `after` seconds.
  class Retry < StepError
    attr_reader :after_ms

    def initialize(message = "", after:, code: nil, category: nil)
      super(message, code: code, category: category)
      unless after.is_a?(Numeric) && after.real? && after >= 0 && after <= RETRY_AFTER_MAX_S
        raise ConfigurationError, "Retry(after: #{after.inspect}): seconds, 0 or more, at most ten years"
      end

      @after_ms = (after * 1000).to_i
    end
  end

  # The effect may or may not have happened, and the handler cannot find out. The broker retries an at_least_once step,
  # and holds an at_most_once step for an operator.
  class OutcomeUnknown < StepError
    def initialize(message = "", category: nil)
      super(message, code: OUTCOME_UNKNOWN, category: category)
    end

    def retryable
      nil
    end
  end

  # Raised by `ctx.raise_if_cancelled` in a run that was asked to stop.
  class Cancelled < Error
    attr_reader :reason

    def initialize(reason)
      @reason = reason
      super("the run was asked to stop: #{reason}")
    end
  end
end
