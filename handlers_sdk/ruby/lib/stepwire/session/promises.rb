# frozen_string_literal: true

module Stepwire
  # The credit that a broker may still use: what the worker has named to it, and has not taken back with certainty.
  #
  # A worker takes credit back by naming less. The broker may send by the earlier number until it has read the later
  # one, and only its ack of that heartbeat proves that. Until then, no other broker is offered the same places.
  #
  # There is an entry [n, free] for each hello or heartbeat that the broker may not have read. Messages without an n of
  # a hello or heartbeat count for the latest entry.
  class Promises
    ENTRIES_MAX = 128 # unacknowledged hellos and heartbeats with an entry of their own

    def initialize
      @entries = []
    end

    # The number of steps that the broker may still send.
    def promised
      @entries.map(&:last).max || 0
    end

    # A hello or heartbeat with this number names this credit.
    def announce(n, free)
      @entries << [n, free]
      return unless @entries.size > ENTRIES_MAX

      oldest_free = @entries.shift.last
      @entries[0][1] = oldest_free if oldest_free > @entries[0][1]
    end

    # Another message names this credit.
    def name(free)
      if @entries.empty?
        @entries << [0, free]
      elsif free > @entries[-1][1]
        @entries[-1][1] = free
      end
    end

    # The broker has sent this number of steps.
    def use(steps)
      @entries.each { |entry| entry[1] = entry[1] > steps ? entry[1] - steps : 0 }
    end

    # The broker has read the hello or heartbeat n, and with it everything before. True if fewer are promised.
    def acknowledge(n)
      before = promised
      @entries.shift while !@entries.empty? && @entries[0][0] < n
      promised < before
    end
  end
end
