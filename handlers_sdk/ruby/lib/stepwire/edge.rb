# frozen_string_literal: true

module Stepwire
  # The edge between the wire and the handlers of a worker: opens a step before its handler, and closes its result
  # after.
  #
  # A step is opened by unsealing its context and the outputs before it, and by replacing its references to secrets. The
  # result is closed by removing the values of secrets, and by sealing it. A process with secrets or keys writes no core
  # dumps.
  class Edge
    SECRET_UNAVAILABLE = "secret_unavailable"
    NOT_UNSEALED = "not_unsealed"

    # A step as its handler receives it, the values of its secrets by name, and the task of a sealed step.
    Opened = Struct.new(:step, :secrets, :task)

    # `secrets`: a directory, an object with the method `call`, or nil. Raises ConfigurationError.
    def initialize(secrets = nil, seal_keys_file = nil)
      @secrets = SecretValues.new(secrets)
      @keys = seal_keys_file.nil? || seal_keys_file.empty? ? nil : SealKeys.of_file(seal_keys_file)
      Process.setrlimit(:CORE, 0, Process.getrlimit(:CORE)[1]) if secrets || @keys
    end

    # The step for its handler, or the Result of a step that cannot be opened: its handler is not called.
    def open(request)
      task = nil
      step = request.dup
      task = SealedSteps.task_of(step)
      SealedSteps.unseal(step, task, needed_keys) if task
      Opened.new(step, @secrets.resolve(step), task)
    rescue NotUnsealed => e
      Outcomes.not_opened(request, NOT_UNSEALED, e.message) # another worker may have the key
    rescue SecretUnavailable => e
      # The secret may arrive, or another worker may have it, so the step's policy decides about a retry.
      sealed(request, task, Outcomes.not_opened(request, SECRET_UNAVAILABLE, e.message, category: e.category))
    end

    # The result as it may leave the worker.
    def close(opened, result)
      if result.status == "completed"
        output = result.output
        output = SecretValues.without(opened.secrets, output) unless opened.secrets.empty?
        output = needed_keys.seal("output", opened.task, opened.step.step_name, output) if opened.task
        result.output = output
        return result
      end
      sealed(opened.step, opened.task, result)
    end

    private

    def sealed(step, task, result)
      result.error = SealedSteps.sealed_error(step, task, needed_keys, result.error) if task
      result
    end

    def needed_keys
      return @keys unless @keys.nil?

      raise NotUnsealed, "the step is sealed, and this worker has no keys: set #{SealKeyFile::FILE}"
    end
  end
end
