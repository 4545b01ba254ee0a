# frozen_string_literal: true

module Stepwire
  # Sealed steps at a worker: the handler works with plaintext, and only sealed outputs and errors leave the worker. A
  # step is sealed if its context is. The broker stores no unsealed output of such a step.
  module SealedSteps
    ERROR_MESSAGE = "the error is sealed: stepwire task show --unseal prints it"
    ERROR_BYTES_MAX = 5_000 # of an error's text as JSON: sealed, it fits into the 8 KiB that a broker stores
    MESSAGE_CHARS_MAX = 1_000
    WORD = /\A[A-Za-z0-9_.:-]{1,64}\z/

    module_function

    # The task for which the context of this step was sealed; nil if it is not sealed. Raises NotUnsealed.
    def task_of(step)
      return unless SealKeys.sealed?(step.task_context)

      task = step.task_context["task"]
      names = task.is_a?(Hash) ? task.values_at("namespace", "workflow", "key") : [nil]
      return SealedTask.new(*names) if names.all?(String)

      raise NotUnsealed, "the context is sealed, and does not name its task"
    end

    # Write plaintext into the step: its context, and the outputs of the steps that it depends on. An `input` stays
    # as it is, because it is made of clear members. Raises NotUnsealed.
    def unseal(step, task, keys)
      step.task_context = read("context", keys.unseal("context", task, nil, step.task_context))
      step.previous_results = step.previous_results.to_h do |name, output|
        next [name, output] unless SealKeys.sealed?(output)

        [name, read("output", keys.unseal("output", task, name, output))]
      end
    end

    def read(kind, plaintext)
      StrictJson.parse(plaintext)
    rescue InvalidMessage => e
      raise NotUnsealed, "the #{kind} is sealed, and its content is not JSON as messages have it: #{e.code}", cause: nil
    end

    # The error of a result, sealed. `code` and `category` stay readable if they are words.
    def sealed_error(step, task, keys, error)
      detail = error.except(:message, :code, :category, :backtrace)
      detail[:message] = ERROR_MESSAGE
      %i[code category].each { |name| detail[name] = error[name] if error[name] && WORD.match?(error[name]) }
      detail[:backtrace] = [keys.seal("error", task, step.step_name, text_of(error))]
      detail
    end

    # The text of the error as JSON. If it is too long, the first lines of the backtrace explain most.
    def text_of(error)
      message = error[:message].to_s[0, MESSAGE_CHARS_MAX]
      backtrace = (error[:backtrace] || []).dup
      loop do
        text = JSON.generate({ message: message, backtrace: backtrace })
        return text if text.bytesize <= ERROR_BYTES_MAX

        message = message[0, message.length / 2] if backtrace.empty?
        backtrace.pop
      end
    end
  end
end
