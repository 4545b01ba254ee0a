# frozen_string_literal: true

module Stepwire
  # The worker's knowledge of one broker: the session, the lease, and the broker's share of the load.
  class BrokerPeer
    attr_reader :id, :topic, :lease, :promises
    attr_accessor :next, # the k of the current or next session; increases when a session is dropped
                  :epoch, :session, :deployment,
                  :n_after, # only a welcome that echoes a later n counts
                  :lease_ms, :heartbeat_ms, :bytes_max,
                  :floor, # unknown batches of this session up to this number are stale
                  :load, # deliveries of this broker that need a slot or have one
                  :answered_ms, # the time of the broker's last answer to a hello or heartbeat
                  :steps_ms, # the time of the broker's last steps
                  :opened_ms, # the time at which the latest session opened
                  :drop_wait_ms, # the pause before the hello after the next drop
                  :is_held_back, # its latest credit is smaller than its share, because of promises to other brokers
                  :is_quiet # `quiet` of the last heartbeat_ack: the broker sends no new steps

    def initialize(id, now_ms, next_k = 1)
      @id = id
      @topic = Topics.results_to(id)
      @next = next_k
      @epoch = -1
      @session = nil
      @deployment = nil
      @n_after = -1
      @lease = Lease.new
      @lease_ms = Limits::LEASE_MS
      @heartbeat_ms = Limits::HEARTBEAT_MS
      @bytes_max = Limits::MESSAGE_BYTES_MAX
      @floor = -1
      @load = 0
      @answered_ms = now_ms
      @steps_ms = -NEVER
      @opened_ms = now_ms
      @drop_wait_ms = 0.0
      @promises = Promises.new
      @is_held_back = false
      @is_quiet = false
      @start = nil
    end

    # The beginning of the results messages to this broker, written once for a session.
    def results_start(worker, session)
      return @start if @start && session == @start_session && @deployment == @start_deployment

      @start_session = session
      @start_deployment = @deployment
      @start = Codec.results_start(worker, session, @deployment || "")
    end
  end

  # The known brokers by id.
  class Brokers
    include Enumerable

    def initialize
      @peers = {}
      @next_of = {} # of forgotten brokers: no number is used twice
    end

    def size
      @peers.size
    end

    def empty?
      @peers.empty?
    end

    def each(&)
      @peers.each_value(&)
    end

    def known?(broker)
      @peers.key?(broker)
    end

    def get(broker)
      @peers[broker]
    end

    def get_or_add(broker, now_ms)
      @peers[broker] ||= BrokerPeer.new(broker, now_ms, @next_of.delete(broker) || 1)
    end

    # Forget a broker that has no session and owns nothing here.
    def forget(peer)
      @peers.delete(peer.id)
      @next_of[peer.id] = peer.next
    end

    # The member `next` of hello and heartbeat.
    def next_numbers
      @peers.transform_values(&:next)
    end

    # The member `sessions` of hello and heartbeat.
    def sessions
      @peers.transform_values(&:session).compact
    end
  end
end
