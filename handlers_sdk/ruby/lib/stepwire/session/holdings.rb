# frozen_string_literal: true

module Stepwire
  # Every delivery that this process holds, from its receipt until its result is acknowledged: the list `holding` of
  # heartbeats.
  class HeldDeliveries
    attr_reader :load, :pace, :tombstones # load: deliveries that need a slot or have one

    def initialize(slots, pace)
      @load = 0
      @pace = pace
      @tombstones = Tombstones.new
      @slots = slots
      @held = {}
      @orphans = {} # still run, for a database that was replaced
    end

    # The delivery with this key (`Item.key`), or nil.
    def get(key)
      @held[key]
    end

    def orphan?(key)
      @orphans.key?(key)
    end

    def size
      @held.size
    end

    def empty?
      @held.empty?
    end

    def running
      @held.values.select { |held| held.state.equal?(RUNNING) }
    end

    # All deliveries whose runs have not begun. They never will: the caller must end these deliveries.
    def withdraw
      @held.values.select(&:withdraw)
    end

    # At most `count` deliveries of these brokers whose runs have not begun, the newest first. Not those that ask for
    # permission.
    def withdraw_newest(count, peers)
      withdrawn = []
      @held.values.reverse_each do |held|
        break if withdrawn.size >= count
        next unless peers.include?(held.peer) && !held.state.equal?(ASKING)
        next if held.is_at_most_once && held.state.equal?(RUNNING)

        withdrawn << held if held.withdraw
      end
      withdrawn
    end

    def of_broker(peer)
      @held.values.select { |held| held.peer.equal?(peer) }
    end

    # The member `holding` of hello and heartbeat.
    def report(now_ms)
      @held.each_value.filter_map do |held|
        state = held.reported_state
        [*held.item, state, held.age_ms(now_ms)] if state
      end
    end

    # Add a delivery that was just received. The caller then calls `queue` once for all of its message.
    def add(held)
      @held[held.key] = held
    end

    # Put the added deliveries of one message into the run queue.
    def queue(deliveries, peer, batch, now_ms)
      @pace.resume(now_ms) if @load.zero?
      peer.load += deliveries.size
      @load += deliveries.size
      batch.open += deliveries.size
      @slots.queue(deliveries)
    end

    # Record the end of a run. Only its result is kept.
    def finish(held, now_ms)
      held.state = DONE
      held.step = nil
      @pace.count_end(now_ms)
      lighten(held, now_ms)
      @slots.release(held, now_ms)
    end

    # Forget deliveries whose results are acknowledged.
    def bury_all(deliveries, now_ms)
      deliveries.each do |held|
        next bury(held, now_ms) unless held.state.equal?(DONE)

        held.state = held.message = nil
        key = held.key
        @held.delete(key)
        @tombstones.add(key, held.peer, held.batch, now_ms)
      end
    end

    # Forget the delivery, but keep its tombstone.
    def bury(held, now_ms)
      state = held.state
      held.state = nil
      return if state.nil?

      @held.delete(held.key)
      @tombstones.add(held.key, held.peer, held.batch, now_ms)
      if state.equal?(DONE)
        held.message = nil
        return
      end
      held.step = nil
      lighten(held, now_ms)
      @slots.asking.delete(held.key) if state.equal?(ASKING)
      @slots.release(held, now_ms) unless state.equal?(QUEUED)
    end

    # Keep tombstones of refused deliveries, so that they do not start if they are received again.
    def bury_unread(peer, batch, items, now_ms)
      items.each do |item|
        key = Item.key_of(item)
        @tombstones.add(key, peer, batch, now_ms) unless @held.key?(key)
      end
    end

    # Change the owner of a delivery to the broker that has adopted it.
    def move(held, peer)
      unless held.state.equal?(DONE)
        held.peer.load -= 1
        peer.load += 1
      end
      held.peer = peer
      held.run.lease = peer.lease if held.run # a run that has not begun now needs the lease of the new owner
    end

    # Let a run end whose broker's database was replaced, but drop its result.
    def orphan(held, now_ms)
      @held.delete(held.key)
      @orphans[held.key] = held
      lighten(held, now_ms)
    end

    def release_orphan(key, now_ms)
      held = @orphans.delete(key)
      @slots.release(held, now_ms) if held
    end

    private

    def lighten(held, now_ms)
      held.peer.load -= 1
      @load -= 1
      @pace.pause(now_ms) if @load.zero?
    end
  end
end
