# frozen_string_literal: true

module Stepwire
  # The rate at which steps really end, observed with decay. Credit and run-ahead follow it.
  #
  # Counts ends of steps, and the time for which there was a step to run. Both fade, and their ratio is the rate. Time
  # without a step does not count: an idle worker is not slow. While steps run and none ends, the rate falls, so a
  # change from short to long steps shows before the first long step ends.
  class Pace
    FADE_MS = 100.0 # the weight of an observation falls to 1/e in this time

    # `expected`: the number of steps that may wait before any has ended.
    def initialize(expected)
      @ended = expected.to_f
      @busy_ms = Limits::PREFETCH_MS.to_f
      @at_ms = 0.0
      @is_busy = false
    end

    # There is a step to run again.
    def resume(now_ms)
      return if @is_busy

      @is_busy = true
      @at_ms = now_ms
    end

    # No step is left.
    def pause(now_ms)
      fade(now_ms)
      @is_busy = false
    end

    def count_end(now_ms)
      fade(now_ms) if now_ms > @at_ms
      @ended += 1.0
    end

    # The number of steps that are expected to end in this time.
    def steps_in(ms, now_ms)
      fade(now_ms)
      @ended / @busy_ms * ms
    end

    private

    def fade(now_ms)
      passed_ms = now_ms - @at_ms
      return if !@is_busy || passed_ms <= 0

      @at_ms = now_ms
      kept = Math.exp(-passed_ms / FADE_MS)
      @ended *= kept
      @busy_ms = (@busy_ms * kept) + (FADE_MS * (1 - kept))
    end
  end
end
