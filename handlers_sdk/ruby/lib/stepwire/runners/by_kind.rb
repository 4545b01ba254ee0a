# frozen_string_literal: true

require_relative "run_slots"
require_relative "run_log"
require_relative "calls"
require_relative "threads"
require_relative "processes"

module Stepwire
  # One runner for each kind of handler that the worker has: threads, and threads with a handler process each. The
  # runners share the worker's slots.
  #
  # The socket thread submits calls. When a call ends, its runner starts the next one, without the socket thread.
  class Runners
    STOP_S = 0.5 # a run that does not stop in this time is abandoned with its thread

    def initialize(handlers, slots, links, report)
      @slots = RunSlots.new(slots, handlers.map(&:offer))
      @submitted = []
      @children = ChildProcesses.new(handlers, links)
      @runners = {}
      unless handlers.all?(&:process)
        @runners[false] = ThreadRunner.new(slots, "stepwire-handler", report, next_call(false), :perform.to_proc)
      end
      return unless handlers.any?(&:process)

      @runners[true] = ThreadRunner.new(slots, "stepwire-process", report, next_call(true), @children.method(:perform))
    end

    def submit(call)
      @submitted << call # until `flush`
    end

    # Start the calls that were submitted since the last flush, as far as slots are free.
    def flush
      return if @submitted.empty?

      calls = @submitted
      @submitted = []
      start(@slots.add(calls))
    end

    def stop
      @runners.each_value { |runner| runner.stop(STOP_S) }
      @children.kill
    end

    private

    # Pass calls that have a slot to the runner of their kind.
    def start(calls)
      return @runners.each_value { |runner| runner.submit(calls) } if @runners.size == 1

      calls.group_by { |call| call.handler.process }.each { |process, own| @runners.fetch(process).submit(own) }
    end

    # Releases the slot of a call that has ended. Returns the call that has the slot now, if it is of this kind; a call
    # of another kind is passed to its runner.
    def next_call(process)
      lambda do |ended|
        following = @slots.release(ended)
        next following if following.nil? || following.handler.process == process

        start([following])
        nil
      end
    end
  end
end
