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
  # Idle brokers lend their share to the others, but keep the credit that they already have. The total credit can
  # therefore reach twice the capacity, and never more. Steps above the capacity wait, and cost only memory.
  class Credit
    OUTBOX_BYTES_MAX = 64 * 1024 * 1024 # above this, no credit: brokers that send no acks may send no steps
    WAITING_MAX = 2_000 # steps for which the observed pace makes room
    WAITING_BYTES_MAX = 16 * 1024 * 1024 # the same in bytes
    RETURN_EVERY_MS = 20.0 # interval of the search for steps that no longer fit
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

    # The member `free` of hello and heartbeat.
    def of_all(now_ms)
      @brokers.to_h { |peer| [peer.id, of(peer, now_ms)[0]] }
    end

    # The member `slots_free` of hello and heartbeat.
    def slots_of_all(now_ms)
      @brokers.to_h { |peer| [peer.id, of(peer, now_ms)[1]] }
    end

    # The members `free` and `slots_free`: the number of further steps, and how many of them would start at once.
    def of(peer, now_ms)
      return [0, 0] if @is_draining || @is_quiet || @is_full || peer.is_quiet || @outbox.bytes > OUTBOX_BYTES_MAX

      capacity = @slots + room(now_ms)
      @largest = capacity if capacity > @largest
      if @brokers.size == 1
        load = @holdings.load
        return [[0, capacity - load].max, [0, @slots - load].max]
      end
      live = @brokers.select { |p| p.session || p.equal?(peer) }
      claims = live.map { |p| Claim.new(p.load, p.load.zero? && p.steps_ms + @idle_after_ms <= now_ms) }
      index = live.index { |p| p.equal?(peer) }
      free = Credit.split(capacity, claims, index, @rotation)
      [free, [free, Credit.split(@slots, claims, index, @rotation)].min]
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
    # A broker that still has credit would send the steps again at once, so it gets none back. That is also why steps
    # that wait for their handler's concurrency are not returned while they fit into the slots.
    def excess(now_ms)
      @return_at_ms = NEVER
      watch(now_ms)
      load = @holdings.load
      room = room(now_ms)
      fitting = @slots + room
      tolerated = @slots + (RETURN_FACTOR * room)
      if @brokers.size > 1 # the credits of several brokers may add up to twice the capacity
        fitting *= 2
        tolerated = fitting
      end
      return [0, []] if load <= tolerated

      [load - fitting, @brokers.select { |peer| of(peer, now_ms)[0].zero? }]
    end

    # The load of one live broker, and whether it is idle.
    Claim = Struct.new(:load, :is_idle)

    # The credit of the broker at `index`.
    def self.split(capacity, claims, index, rotation)
      mine = claims[index]
      return [0, capacity - mine.load].max if claims.size == 1

      places = share(capacity, claims.size, index, rotation)
      unless mine.is_idle
        lent = claims.each_index.sum { |i| claims[i].is_idle ? share(capacity, claims.size, i, rotation) : 0 }
        borrowers = claims.count { |claim| !claim.is_idle }
        rank = claims.first(index).count { |claim| !claim.is_idle }
        places += share(lent, borrowers, rank, rotation)
      end
      [0, places - mine.load].max
    end

    def self.share(capacity, among, index, rotation)
      whole, rest = capacity.divmod(among)
      (index + rotation) % among < rest ? whole + 1 : whole
    end
  end
end
