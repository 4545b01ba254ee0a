# frozen_string_literal: true

module Stepwire
  # Reports that no broker answers: after three seconds, then at growing intervals. Knows since when links have no
  # session, and when to report that next. Used by the socket thread only.
  class BrokerSearch
    AFTER_MS = [3_000, 10_000, 30_000, 60_000].freeze
    EVERY_MS = 300_000 # after those

    attr_reader :report_at_ms

    def initialize(events)
      @events = events
      @report_at_ms = NEVER
      @since_ms = 0.0
      @reports = 0
    end

    # Note the links without a session, after each change and at `report_at_ms`. Reports the first when due.
    def update(closed, now_ms)
      if closed.empty?
        @report_at_ms = NEVER
        @reports = 0
        return
      end
      if @report_at_ms == NEVER
        @since_ms = now_ms
        @report_at_ms = now_ms + AFTER_MS[0]
      end
      return if now_ms < @report_at_ms

      @reports += 1
      @report_at_ms = @since_ms + (AFTER_MS[@reports] || (now_ms - @since_ms + EVERY_MS))
      seconds = ((now_ms - @since_ms) / 1000).round
      # In a thread, because resolving a name or connecting can take seconds, and heartbeats must continue.
      Thread.new { report(closed.first, seconds) }.name = "stepwire-search"
    end

    private

    def report(link, seconds)
      endpoint, reason = Reachability.diagnosis(link, public_key: @events.public_key)
      @events.log(:warning, :no_broker, { endpoint: endpoint, reason: reason, seconds: seconds })
    end
  end
end
