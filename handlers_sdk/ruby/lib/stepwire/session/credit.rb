# frozen_string_literal: true

module Stepwire
  # The credit of each broker: how many steps the worker has room for, and how the room is divided.
  #
  # A worker has its slots, and room for steps that wait: as many as it really finishes in PREFETCH_MS. Short steps then
  # never run out between two messages, and long steps stay at the broker, where another worker can take them. A
  # declared prefetch is the least room; a declared prefetch of 0 means that no step waits here. If steps become longer,
  # the room shrinks, and the worker returns the steps that no longer fit.
  #
  # Brokers do not know of each other, so the worker divides its capacity among them. Each broker has an equal share,
  # rounded down. The remainder rotates, so that every broker has its turn even if there are more brokers than capacity.
  # An idle broker keeps one place of its share, and lends the rest to the others. Each place is promised to one broker
  # at a time: it is offered to another one only when its former holder has acknowledged a smaller number
  # (`promises.rb`).
  class Credit
    OUTBOX_BYTES_MAX = 64 * 1024 * 1024 # above this, no credit: brokers that send no acks may send no steps
    WAITING_MAX = 2_000 # steps for which the observed pace makes room
    WAITING_BYTES_MAX = 16 * 1024 * 1024 # the same in bytes
    RETURN_EVERY_MS = 20.0 # interval of the search for steps that no longer fit
    IDLE_KEEPS = 1 # places that an idle broker does not lend, so that its next step need not wait
    RETURN_FACTOR = 2 # steps are returned when this many times the room is in use, so the pace may vary

    attr_reader :return_at_ms
    attr_accessor :is_quiet, # set by the program: accept no new steps
                  :is_full, # the runner accepts no steps at the moment
                  :is_draining

    def initialize(config, brokers, holdings, outbox)
      @return_at_ms = NEVER
      @is_quiet = false
      @is_full = false
      @is_draining = false
      @slots = config.slots
      @prefetch = config.prefetch
      @largest = config.slots + config.queue_max # the largest capacity that was offered
      @step_bytes = 0.0 # of a recent step
      @idle_after_ms = 2 * config.heartbeat_ms
      @brokers = brokers
      @holdings = holdings
      @outbox = outbox
      @rotation = 0
    end

    # Give the remainder of the split to the next broker.
    def rotate
      @rotation += 1
    end

    # The number of steps that are expected to end in PREFETCH_MS, and that may wait, here or in the runner.
    def ahead(now_ms)
      return 0 if @prefetch == 0 # rubocop:disable Style/NumericPredicate -- nil is not 0

      steps_max = WAITING_MAX
      if @step_bytes != 0
        by_bytes = WAITING_BYTES_MAX / @step_bytes
        steps_max = by_bytes if by_bytes < steps_max
      end
      expected = @holdings.pace.steps_in(Limits::PREFETCH_MS, now_ms)
      ((expected < steps_max ? expected : steps_max) + 0.5).to_i
    end

    # The number of steps that may wait for a slot.
    def room(now_ms)
      [@prefetch || 0, ahead(now_ms)].max
    end

    # The number of further steps that are not refused: the total credit can be twice the capacity.
    def places
      (2 * @largest) - @holdings.load
    end

    # Note the size of the steps in a message.
    def note_size(step_bytes)
      @step_bytes += (step_bytes - @step_bytes) / 4
    end

    # The members `free` and `slots_free` of the hello or heartbeat with this number, which promise this credit.
    def offer_all(n, now_ms)
      frees = {}
      slots_frees = {}
      @brokers.each do |peer|
        free, slots_free = split(peer, now_ms)
        peer.promises.announce(n, free)
        frees[peer.id] = free
        slots_frees[peer.id] = slots_free
      end
      [frees, slots_frees]
    end

    # The members `free` and `slots_free` of another message to this broker, which promises this credit.
    def offer(peer, now_ms)
      places = split(peer, now_ms)
      peer.promises.name(places[0])
      places
    end

    # True if another broker was held back by promises, and may get places that this one no longer has.
    def moves?(peer)
      @brokers.any? { |other| !other.equal?(peer) && other.is_held_back && other.session }
    end

    # True if this broker was idle until now, and its share was lent to another one.
    def waking?(peer, now_ms)
      return false if @brokers.size == 1

      @brokers.any? { |other| !other.equal?(peer) && other.session } && idle?(peer, now_ms)
    end

    # -- return -------------------------------------------------------------------------------------------------------

    # Look for steps that no longer fit, after a while, if more are held than there are slots.
    def watch(now_ms)
      return unless @holdings.load > @slots + (@prefetch || 0)

      at_ms = now_ms + RETURN_EVERY_MS
      @return_at_ms = at_ms if at_ms < @return_at_ms
    end

    # The number of steps that no longer fit, and the brokers that may get them back. Called at `return_at_ms`.
    #
    # A broker that still has credit would send the steps again at once, so none is returned while some are left. That
    # is also why steps that wait for their handler's concurrency are not returned while they fit into the slots. Of
    # several brokers, those get steps back that use their whole share.
    def excess(now_ms)
      @return_at_ms = NEVER
      watch(now_ms)
      load = @holdings.load
      room = room(now_ms)
      capacity = fitting = @slots + room
      tolerated = @slots + (RETURN_FACTOR * room)
      if @brokers.size > 1 # credit that was promised before steps became longer
        fitting *= 2
        tolerated = fitting
      end
      return [0, []] if load <= tolerated

      [load - fitting, @brokers.select { |peer| closed?(peer) || share_left(capacity, peer, now_ms) <= 0 }]
    end

    # The load of one live broker, and whether it is idle.
    Claim = Struct.new(:load, :is_idle)

    # The places of the broker at `index` that it does not use yet; negative if it uses more than its places.
    def self.split(capacity, claims, index, rotation)
      mine = claims[index]
      shares = claims.each_index.map { |i| share(capacity, claims.size, i, rotation) }
      places = shares[index]
      borrowers = claims.count { |claim| !claim.is_idle }
      if mine.is_idle && borrowers.positive?
        places = [places, IDLE_KEEPS].min
      elsif !mine.is_idle
        lent = shares.zip(claims).sum { |share, claim| claim.is_idle ? [0, share - IDLE_KEEPS].max : 0 }
        rank = claims.first(index).count { |claim| !claim.is_idle }
        places += share(lent, borrowers, rank, rotation)
      end
      places - mine.load
    end

    def self.share(capacity, among, index, rotation)
      whole, rest = capacity.divmod(among)
      (index + rotation) % among < rest ? whole + 1 : whole
    end

    private

    # The number of further steps, and how many of them would start at once. Notes whether promises to others hold the
    # broker back.
    def split(peer, now_ms)
      peer.is_held_back = false
      return [0, 0] if closed?(peer)

      capacity = @slots + room(now_ms)
      @largest = capacity if capacity > @largest
      load = @holdings.load
      return [[0, capacity - load].max, [0, @slots - load].max] if @brokers.size == 1

      left = [share_left(capacity, peer, now_ms), capacity - load].min
      promised = @brokers.sum { |p| p.session && !p.equal?(peer) ? p.promises.promised : 0 }
      free = [0, [left, capacity - load - promised].min].max
      slots_left = [share_left(@slots, peer, now_ms), @slots - load].min
      peer.is_held_back = free < left
      [free, [0, [free, slots_left].min].max]
    end

    def closed?(peer)
      @is_draining || @is_quiet || @is_full || peer.is_quiet || @outbox.bytes > OUTBOX_BYTES_MAX
    end

    # The part of this broker's share of the capacity that it does not use yet; negative if it uses more.
    def share_left(capacity, peer, now_ms)
      live = @brokers.select { |p| p.session || p.equal?(peer) }
      claims = live.map { |p| Claim.new(p.load, idle?(p, now_ms)) }
      Credit.split(capacity, claims, live.index { |p| p.equal?(peer) }, @rotation)
    end

    def idle?(peer, now_ms)
      peer.load.zero? && peer.steps_ms + @idle_after_ms <= now_ms
    end
  end
end
