# frozen_string_literal: true

module Stepwire
  # The values of secrets to remove from texts, and what replaces each: `[secret stripe/live]`.
  class Redactor
    VALUES_MAX = 1_000 # the latest resolved values; earlier ones are forgotten
    LINE_CHARS_MIN = 4 # of one line of a value with several lines
    OUTPUT_CHARS_MIN = 8 # of a value that is removed from an output: a shorter one may be part of any data

    LINE_ENDS = /\r\n|[\n\r\v\f\u001c-\u001e\u0085\u2028\u2029]/
    ESCAPES = { "\\" => "\\\\", '"' => '\\"', "\n" => "\\n", "\r" => "\\r", "\t" => "\\t" }.freeze

    # The texts in which a value occurs: itself, its lines, and both as a JSON string or `inspect` writes them.
    def self.forms_of(value)
      lines = value.split(LINE_ENDS).map(&:strip)
      plain = [value, value.strip]
      plain.concat(lines.select { |line| line.length >= LINE_CHARS_MIN }) if lines.size > 1
      plain.flat_map { |text| [text, text.gsub(/[\\"\n\r\t]/, ESCAPES), text.inspect[1..-2]] }.uniq - [""]
    end

    def initialize
      @names = {} # by value, the latest last
      @of_form = {}
      @pattern = nil
      @lock = Mutex.new
    end

    def active?
      !@pattern.nil?
    end

    # Remove this value from now on. A value that was added again counts as the latest.
    def add(name, value)
      return if value.empty? || @names[value] == name

      @lock.synchronize do
        @names.delete(value)
        @names[value] = name
        @names.shift while @names.size > VALUES_MAX
        @of_form = @names.each_with_object({}) do |(known, of), forms|
          Redactor.forms_of(known).each { |form| forms[form] = of }
        end
        @pattern = Regexp.union(@of_form.keys.sort_by { |form| -form.length })
      end
    end

    # The text with the names of secrets in the place of their values.
    def redact(text)
      return text if @pattern.nil?

      Texts.utf8(text).gsub(@pattern) { |form| "[secret #{@of_form.fetch(form, 'removed')}]" }
    end

    # A copy of a decoded JSON value without the secrets' values in its strings and keys.
    def redacted(value)
      case value
      when String then redact(value)
      when Hash then value.to_h { |key, inner| [redact(key), redacted(inner)] }
      when Array then value.map { |inner| redacted(inner) }
      else value
      end
    end
  end

  # Removes the values of secrets from texts that leave this process: errors, backtraces, progress and log lines. The
  # values of all secrets that this process has resolved count, whichever run a text comes from.
  module Redaction
    OF_PROCESS = Redactor.new

    module_function

    def redact(text)
      OF_PROCESS.redact(text)
    end

    # Remove these values, by the names of their secrets, from all texts of this process from now on.
    def remember(values)
      values.each { |name, value| OF_PROCESS.add(name, value) }
    end
  end
end
