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
  # The socket thread submits runs. When a run ends, its runner starts the next one, without the socket thread.
  # `call_of` makes the call of a run.
  class Runners
    STOP_S = 0.5 # a run that does not stop in this time is abandoned with its thread

    def initialize(handlers, slots, links, call_of, report)
      @handlers = handlers
      @slots = RunSlots.new(slots, handlers.map(&:offer))
      @submitted = []
      @children = ChildProcesses.new(handlers, links)
      @runners = {}
      unless handlers.all?(&:process)
        @runners[false] = ThreadRunner.new(slots, "stepwire-handler", call_of, report, next_run(false),
                                           :perform.to_proc)
      end
      return unless handlers.any?(&:process)

      @runners[true] = ThreadRunner.new(slots, "stepwire-process", call_of, report, next_run(true),
                                        @children.method(:perform))
    end

    def submit(run)
      @submitted << run # until `flush`
    end

    # Start the runs that were submitted since the last flush, as far as slots are free.
    def flush
      return if @submitted.empty?

      runs = @submitted
      @submitted = []
      start(@slots.add(runs))
    end

    def stop
      @runners.each_value { |runner| runner.stop(STOP_S) }
      @children.kill
    end

    private

    # Pass runs that have a slot to the runner of their kind.
    def start(runs)
      return @runners.each_value { |runner| runner.submit(runs) } if @runners.size == 1

      runs.group_by { |run| @handlers[run.offer].process }.each { |process, own| @runners.fetch(process).submit(own) }
    end

    # Releases the slot of a run that has ended. Returns the run that has the slot now, if it is of this kind; a run
    # of another kind is passed to its runner.
    def next_run(process)
      lambda do |ended|
        following = @slots.release(ended)
        next following if following.nil? || @handlers[following.offer].process == process

        start([following])
        nil
      end
    end
  end
end
