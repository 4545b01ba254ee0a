# frozen_string_literal: true

module Stepwire
  # The results that are made of a handler's return values and exceptions.
  module Outcomes
    CODE_CHARS_MAX = 128
    # What is wrong with an output, and what to return instead: the same sentences in every SDK.
    REFUSED = {
      "not_a_number" => "it holds NaN or Infinity, which JSON does not have: return null instead",
      "integer_out_of_range" => "it holds an integer outside ±(2^53 - 1): return it as text",
      "nul_character" => "it holds U+0000, which databases cannot store: remove it, or return the text as Base64",
      "lone_surrogate" => "it holds text that is not valid UTF-8: return well-formed text, or Base64"
    }.freeze

    module_function

    # The result of a handler that was not called, because the input does not fit its parameters.
    def bad_input(handler, step, why)
      text = "the input of '#{step.step_name}' does not fit handler '#{handler.name}': #{why}"
      error(step, "bad_input", text, retryable: false)
    end

    # The result of a handler that was not called, because this worker cannot open the step. A retry may succeed.
    def not_opened(step, code, text, category: nil)
      detail = Result.error_detail(message: Texts.clean(text), code: code, category: category, retryable: true)
      Result.new(step.step_id, step.delivery, "error", nil, detail, {})
    end

    # The result of a handler that returned: its output, or an error if a language or a database cannot represent it.
    def completed(handler, step, value, took_ms)
      output = StrictJson.encode(value)
      Result.new(step.step_id, step.delivery, "completed", output, nil, metadata(took_ms, handler.version))
    rescue InvalidMessage, JSON::GeneratorError, SystemStackError => e
      why = (e.is_a?(InvalidMessage) && (REFUSED[e.code] || e.detail)) || e.message
      text = "the output of '#{handler.name}' cannot be sent as JSON: #{Texts.shortened(why, 500)}"
      sdk_failure(step, "bad_output", text, took_ms: took_ms)
    end

    # The result of a handler that raised.
    #
    # The message of an unexpected exception begins with its type. A StepError's message is the handler's own sentence,
    # and a subclass of the handler's own names its code.
    def failed(handler, step, error, took_ms)
      detail = error.is_a?(StepError) ? said(error) : unexpected(error)
      Result.new(step.step_id, step.delivery, "failed", nil, detail, metadata(took_ms, handler.version))
    end

    # The result of a run that stopped because of a timeout or a cancel.
    def stopped(step, reason, took_ms, version = nil)
      text = reason == "timeout" ? "the run exceeded its timeout" : "the run was cancelled: #{reason}"
      code = reason == "timeout" ? "timeout" : "cancelled"
      code = OUTCOME_UNKNOWN if step.at_most_once?
      detail = Result.error_detail(message: text, code: code)
      Result.new(step.step_id, step.delivery, "failed", nil, detail, metadata(took_ms, version))
    end

    # The result of a handler that was called, but whose outcome the SDK cannot report.
    def sdk_failure(step, code, text, retryable: false, took_ms: nil)
      return error(step, OUTCOME_UNKNOWN, "#{code}: #{text}", retryable: nil, took_ms: took_ms) if step.at_most_once?

      error(step, code, text, retryable: retryable, took_ms: took_ms)
    end

    def error(step, code, text, retryable:, took_ms: nil)
      detail = Result.error_detail(message: Texts.clean(text), code: code, retryable: retryable)
      Result.new(step.step_id, step.delivery, "error", nil, detail, took_ms ? metadata(took_ms, nil) : {})
    end

    def said(error)
      own_name = error.class.name unless error.class.name&.start_with?("Stepwire::")
      code = error.code || own_name
      text = Backtraces.text_of(error)
      Result.error_detail(
        message: Texts.clean(text.empty? ? Backtraces.name_of(error) : text),
        code: code && Texts.clean(code.to_s, CODE_CHARS_MAX),
        category: error.category && Texts.clean(error.category.to_s, CODE_CHARS_MAX),
        retryable: error.retryable,
        retry_after_ms: error.is_a?(Retry) ? error.after_ms : nil
      )
    end

    def unexpected(error)
      Result.error_detail(message: Texts.clean(Backtraces.summary(error)),
                          code: Texts.clean(Backtraces.name_of(error), CODE_CHARS_MAX),
                          backtrace: Backtraces.lines(error))
    end

    # The metadata of a result.
    def metadata(took_ms, version)
      version ? { execution_time_ms: (took_ms * 1000).round / 1000.0, handler_version: version } : took_ms
    end
  end
end
