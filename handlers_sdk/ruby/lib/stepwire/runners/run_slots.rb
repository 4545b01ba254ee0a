# frozen_string_literal: true

module Stepwire
  # The slots of a worker's runners, and the runs that wait for one. A run has the number of its handler's `offer`.
  #
  # All runners share the slots. The runs start in the order in which they were handed over, and wait for a slot and
  # for a place in the concurrency of their handler. Any thread may call these methods.
  class RunSlots
    def initialize(slots, offers)
      @free = slots
      @waiting = []
      @places = {}
      offers.each_with_index { |offer, number| @places[number] = offer.concurrency unless offer.concurrency.nil? }
      @blocked = @places.transform_values { [] }
      @lock = Mutex.new
    end

    # Add runs. Returns those that have a slot now, and must be started.
    def add(runs)
      @lock.synchronize do
        @waiting.concat(runs)
        started = []
        while @free.positive? && (run = following)
          @free -= 1
          started << run
        end
        started
      end
    end

    # Release the slot of a run. Returns the run that has the slot now, and must be started. Without limits of
    # handlers, that is the next one, and `shift` of an Array is atomic.
    def release(run)
      if @places.empty?
        next_run = @waiting.shift
        return next_run if next_run
      end
      @lock.synchronize do
        offer = run.offer
        if (blocked = @blocked[offer])
          @places[offer] += 1
          unless blocked.empty?
            @places[offer] -= 1
            return blocked.shift
          end
        end
        next_run = following
        @free += 1 if next_run.nil?
        next_run
      end
    end

    private

    # The next run in the queue whose handler has a place. Runs before it wait for their own handlers.
    def following
      while (run = @waiting.shift)
        places = @places[run.offer]
        return run if places.nil?

        if places.positive?
          @places[run.offer] -= 1
          return run
        end
        @blocked[run.offer] << run
      end
      nil
    end
  end
end
