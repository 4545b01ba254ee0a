# frozen_string_literal: true

module Stepwire
  # Remembers deliveries that are over or were refused, because this process must not start them (again).
  #
  # The number of tombstones may be limited because batch numbers increase within a session. When a tombstone is
  # forgotten, the floor of its session rises to its batch number, and unknown batches up to the floor are refused as
  # stale. A delivery that was disowned before its receipt has no batch number, so its tombstone is kept for the full
  # time.
  class Tombstones
    TOMBSTONES_MAX = 20_000

    def initialize
      @received = {} # key of the item → [time, peer, batch]
      @disowned = {} # key of the item → [time, peer]
      @latest = @forgotten = nil
    end

    def include?(key)
      @received.key?(key) || (!@disowned.empty? && @disowned.key?(key))
    end

    def add(key, peer, batch, now_ms)
      @latest = [now_ms, peer, batch] unless same?(@latest, now_ms, peer, batch)
      @received[key] = @latest
      forget_oldest if @received.size > TOMBSTONES_MAX
    end

    # Make sure that this delivery, which may still be under way, never starts here.
    def disown(key, peer, now_ms)
      @disowned[key] = [now_ms, peer] unless @received.key?(key)
    end

    # Forget tombstones that are older than TOMBSTONE_MS.
    def sweep(now_ms)
      before = now_ms - Limits::TOMBSTONE_MS
      forget_oldest while !@received.empty? && @received.first[1][0] < before
      @disowned.shift while !@disowned.empty? && @disowned.first[1][0] < before
    end

    # Forget the tombstones of a broker whose database was replaced, because its ids now belong to other steps.
    def forget_broker(peer)
      @received.delete_if { |_, entry| entry[1].equal?(peer) }
      @disowned.delete_if { |_, entry| entry[1].equal?(peer) }
    end

    def forget_oldest
      entry = @received.shift[1]
      return if entry.equal?(@forgotten)

      @forgotten = entry
      _, peer, batch = entry
      peer.floor = batch.number if batch.session == peer.session && batch.number > peer.floor
    end

    private

    # Deliveries that end together share an entry: the garbage collector visits the entries again and again.
    def same?(entry, now_ms, peer, batch)
      entry && entry[0] == now_ms && entry[1].equal?(peer) && entry[2].equal?(batch)
    end
  end
end
