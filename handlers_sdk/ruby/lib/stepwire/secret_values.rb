# frozen_string_literal: true

module Stepwire
  # The source of a worker's secrets, and the replacement of references in a step.
  #
  # A reference counts in `handler_config`, and in the input of the handler: `input` if the workflow defines one,
  # otherwise the task's context. Outputs of other steps are data: a reference in `previous_results` stays a reference.
  class SecretValues
    # `source`: a directory, an object with the method `call`, or nil for a worker without secrets.
    def initialize(source)
      @resolver = source.respond_to?(:call) ? source : reader_of(source)
    end

    # Write the value into the step in the place of each reference. Returns the values by their names. Raises
    # SecretUnavailable.
    #
    # Each secret is read once for a step, so its values agree with each other, and again for the next step, so a
    # rotated secret is used at once.
    def resolve(step)
      values = {}
      value_of = ->(name) { values[name] ||= self.value_of(name) }
      step.handler_config = SecretReferences.replace(step.handler_config, &value_of)
      if step.input.equal?(ABSENT)
        step.task_context = SecretReferences.replace(step.task_context, &value_of)
      else
        step.input = SecretReferences.replace(step.input, &value_of)
      end
      Redaction.remember(values)
      values
    end

    # The value of one secret. Raises SecretUnavailable: the text of the resolver's own error may hold anything.
    def value_of(name)
      value = begin
        @resolver.call(name)
      rescue SecretUnavailable
        raise
      rescue StandardError => e
        raise SecretUnavailable.new("secret #{Texts.quoted(name)}: the resolver of this worker failed with " \
                                    "#{Backtraces.name_of(e)}", category: "unavailable"), cause: nil
      end
      return Texts.utf8(value) if value.is_a?(String) && !value.empty?

      fault = value.nil? ? "does not know it" : "returned no text"
      raise SecretUnavailable, "secret #{Texts.quoted(name)}: the resolver of this worker #{fault}"
    end

    # The output, as JSON, with the names of secrets in the place of these values, if they are long enough.
    def self.without(values, output)
      redactor = Redactor.new
      values.each { |name, value| redactor.add(name, value) if value.length >= Redactor::OUTPUT_CHARS_MIN }
      redactor.active? ? JSON.generate(redactor.redacted(JSON.parse(output))) : output
    end

    private

    def reader_of(directory)
      return ->(name) { SecretFiles.read(directory, name) } unless directory.nil? || directory.empty?

      lambda do |name|
        raise SecretUnavailable, "secret #{Texts.quoted(name)}: this worker reads no secrets: set " \
                                 "STEPWIRE_SECRETS_DIR to a directory of files, or pass Worker.new(secrets: ...)"
      end
    end
  end
end
