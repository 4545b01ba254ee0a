# frozen_string_literal: true

module Stepwire
  # The deliveries that wait to be handed to the runner, and those that the runner has.
  #
  # A runner starts the next step the moment a slot is free. It can only do so if it has that step already, so
  # at_least_once steps are handed over ahead of free slots: as many as the observed pace says. The runner itself keeps
  # to the slots and to the concurrency of each handler (`runners/run_slots.rb`). An at_most_once step asks its broker
  # for permission, and a slot must be free for it from then on. So it is never handed over ahead, and while one asks,
  # no step is. A delivery is taken from its hand-over, or from its request for permission, to its end.
  class Slots
    attr_reader :asking, :taken
    attr_accessor :ahead # the number of steps that may be handed over ahead of free slots

    def initialize(slots, offers)
      @asking = {} # at_most_once: has a slot, and waits for the broker's go
      @taken = 0
      @ahead = 0
      @unblocked = [] # before `@queued`
      @queued = []
      @slots = slots
      @limited = {}
      offers.by_number.each_with_index do |offer, number|
        @limited[number] = Limited.new(offer.concurrency) unless offer.concurrency.nil?
      end
    end

    def queue(deliveries)
      @queued.concat(deliveries)
    end

    def queue?
      !@queued.empty? || !@unblocked.empty?
    end

    # True if the delivery at the head of the queue can be taken, unless its handler's concurrency is used up.
    def next?
      queue = @unblocked.empty? ? @queued : @unblocked
      return false if queue.empty?

      must_have_slot = !@asking.empty? || queue.first.is_at_most_once
      @taken < (must_have_slot ? @slots : @slots + @ahead)
    end

    # Take the next delivery from the queue. nil: nothing in the queue can be taken now.
    def take_next(now_ms)
      while next?
        is_unblocked = !@unblocked.empty?
        held = (is_unblocked ? @unblocked : @queued).shift
        limited = @limited[held.offer]
        unless held.state.equal?(QUEUED)
          unblock(limited, now_ms) if limited # cancelled while queued, perhaps after it was unblocked
          next
        end
        if limited
          if is_unblocked
            if room(limited, held, now_ms) <= 0
              limited.blocked.unshift(held)
              next
            end
          elsif !limited.blocked.empty? || room(limited, held, now_ms) <= 0
            limited.blocked << held
            next
          end
          limited.take(now_ms)
        end
        @taken += 1
        return held
      end
      nil
    end

    # The delivery has ended, or will never start.
    def release(held, now_ms)
      @taken -= 1
      limited = @limited[held.offer]
      return unless limited

      limited.release(now_ms)
      unblock(limited, now_ms)
    end

    private

    # Put deliveries that waited for this handler's concurrency before the queue.
    def unblock(limited, now_ms)
      blocked = limited.blocked
      unblocked = 0
      while !blocked.empty? &&
            (!blocked.first.state.equal?(QUEUED) || room(limited, blocked.first, now_ms) > unblocked)
        held = blocked.shift
        next unless held.state.equal?(QUEUED)

        @unblocked << held
        unblocked += 1
      end
    end

    def room(limited, held, now_ms)
      limited.room(!@asking.empty? || held.is_at_most_once, now_ms)
    end

    # The deliveries of a handler with its own concurrency. Its pace limits how many run ahead of it.
    class Limited
      attr_reader :blocked

      def initialize(concurrency)
        @concurrency = concurrency
        @taken = 0
        @blocked = []
        @pace = Pace.new(0.0)
      end

      def room(without_ahead, now_ms)
        ahead = without_ahead ? 0 : (@pace.steps_in(Limits::PREFETCH_MS, now_ms) + 0.5).to_i
        @concurrency + ahead - @taken
      end

      def take(now_ms)
        @taken += 1
        @pace.resume(now_ms)
      end

      def release(now_ms)
        @taken -= 1
        @pace.count_end(now_ms)
        @pace.pause(now_ms) if @taken.zero?
      end
    end
  end
end
