# frozen_string_literal: true

module Stepwire
  # Progress reports: only the latest of each run is sent, at most five times a second.
  class ProgressReports
    PROGRESS_EVERY_MS = 200

    attr_reader :send_at_ms

    def initialize(holdings, out)
      @send_at_ms = NEVER
      @holdings = holdings
      @out = out
      @latest = {}
      @sent_ms = -NEVER
    end

    def add(held, done, total, note, now_ms)
      @latest[held.key] = [*held.item, done, total, note]
      @send_at_ms = [now_ms, @sent_ms + PROGRESS_EVERY_MS].max
    end

    def forget(held)
      @latest.delete(held.key)
    end

    def send_due(now_ms)
      @send_at_ms = NEVER
      @sent_ms = now_ms
      latest = @latest
      @latest = {}
      by_peer = {}
      latest.each do |key, entry|
        held = @holdings.get(key)
        (by_peer[held.peer] ||= []) << entry if held&.peer&.session
      end
      by_peer.each do |peer, items|
        Outgoing.parts(items).each { |part| @out.send_to(peer, "progress", { session: peer.session, items: part }) }
      end
    end
  end
end
