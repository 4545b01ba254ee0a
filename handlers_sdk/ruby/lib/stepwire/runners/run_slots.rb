# frozen_string_literal: true

module Stepwire
  # The slots of a worker's runners, and the calls that wait for one. A call has the number of its handler's `offer`.
  #
  # All runners share the slots. The calls start in the order in which they were handed over, and wait for a slot and
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

    # Add calls. Returns those that have a slot now, and must be started.
    def add(calls)
      @lock.synchronize do
        @waiting.concat(calls)
        started = []
        while @free.positive? && (call = following)
          @free -= 1
          started << call
        end
        started
      end
    end

    # Release the slot of a call. Returns the call that has the slot now, and must be started.
    def release(call)
      @lock.synchronize do
        offer = call.offer
        if (blocked = @blocked[offer])
          @places[offer] += 1
          unless blocked.empty?
            @places[offer] -= 1
            return blocked.shift
          end
        end
        next_call = following
        @free += 1 if next_call.nil?
        next_call
      end
    end

    private

    # The next call in the queue whose handler has a place. Calls before it wait for their own handlers.
    def following
      while (call = @waiting.shift)
        places = @places[call.offer]
        return call if places.nil?

        if places.positive?
          @places[call.offer] -= 1
          return call
        end
        @blocked[call.offer] << call
      end
      nil
    end
  end
end
