# frozen_string_literal: true

require "logger"

# The logger of the SDK, and its lines.
module Stepwire
  # Readable log lines on stderr, for programs that do not set `Stepwire.logger`.
  #
  #     2026-11-19 10:03:15 INFO    task 9 step 12 pay: charged 12.50 EUR
  module Logs
    LEVELS = { debug: Logger::DEBUG, info: Logger::INFO, warning: Logger::WARN, error: Logger::ERROR }.freeze
    NAMES = { "WARN" => "WARNING", "FATAL" => "CRITICAL" }.freeze
    COLOURS = { "WARN" => "\e[33m", "ERROR" => "\e[31m", "FATAL" => "\e[31m" }.freeze
    WAITING_MAX = 10_000 # lines of the socket thread that wait to be written

    module_function

    def default_logger
      logger = Logger.new($stderr, level: Logger::INFO)
      logger.formatter = method(:line)
      logger
    end

    # Time, level and text. On a terminal without the date, and with colours for faults.
    def line(severity, time, _program, message)
      is_terminal = $stderr.tty?
      level = (NAMES[severity] || severity).ljust(7)
      level = "#{COLOURS[severity]}#{level}\e[0m" if is_terminal && COLOURS.key?(severity) && !ENV["NO_COLOR"]
      "#{time.strftime(is_terminal ? '%H:%M:%S' : '%Y-%m-%d %H:%M:%S')} #{level} #{message}\n"
    end

    # `task 9 step 12 pay: `. People count attempts from 1.
    def step_prefix(step)
      attempt = step.attempt.positive? ? " attempt #{step.attempt + 1}" : ""
      "task #{step.task_id} step #{step.step_id} #{step.step_name}#{attempt}: "
    end

    # Writes the lines of the socket thread in a thread of its own: stderr may be a pipe that nobody reads, and
    # heartbeats must continue.
    class Writer
      def initialize
        @lines = Thread::Queue.new
        @thread = nil
      end

      def write(level, text)
        return if @lines.size >= WAITING_MAX || @lines.closed?

        @thread ||= Thread.new { serve }
        @lines << [level, text]
      end

      # Wait at most `wait_s` until every line is written.
      def close(wait_s)
        @lines.close
        @thread&.join(wait_s)
      end

      private

      def serve
        Thread.current.name = "stepwire-log"
        while (level, text = @lines.pop)
          Stepwire.logger.add(LEVELS.fetch(level)) { text }
        end
      end
    end

    # `ctx.log`: every line begins with the step's ids.
    class StepLogger
      def initialize(step)
        @prefix = Logs.step_prefix(step)
      end

      %i[debug info warn error fatal].each do |name|
        severity = Logger.const_get(name.upcase)
        define_method(name) do |text = nil, &block|
          Stepwire.logger.add(severity) { Redaction.redact("#{@prefix}#{text || block&.call}") }
        end
      end
    end
  end

  class << self
    attr_writer :logger

    # The logger of the SDK and of `ctx.log`: any ::Logger.
    def logger
      @logger ||= Logs.default_logger
    end
  end
end
