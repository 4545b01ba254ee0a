# frozen_string_literal: true

module Stepwire
  # The actions decided so far, in their order, and the counter `n` of the messages sent.
  class Outgoing
    SENT_MAX = 128 # hellos and heartbeats whose send time is remembered: for minutes, while a lease lasts seconds

    attr_reader :worker, :n, :actions # n: the last number used

    def initialize(worker)
      @worker = worker
      @n = 0
      @sent_ms = {} # by n
      @actions = []
    end

    def add(action)
      @actions << action
    end

    def log(level, event, **facts)
      @actions << Log.new(level, event, facts)
    end

    def send_body(topic, body)
      @actions << Send.new(topic, body)
    end

    def send_to(peer, type, members)
      @actions << Send.new(peer.topic, Codec.encode(type, @worker, members))
    end

    def send_to_all(type, members)
      @actions << Send.new(Topics::WORKERS, Codec.encode(type, @worker, members))
    end

    # The actions decided since the last call.
    def take
      actions = @actions
      @actions = []
      actions
    end

    def next_n
      @n += 1
    end

    # The next number, for a message that brokers echo. The lease starts at the send time of this message.
    def next_timed_n(now_ms)
      n = next_n
      @sent_ms[n] = now_ms
      @sent_ms.shift if @sent_ms.size > SENT_MAX
      n
    end

    # The send time of the hello or heartbeat with this number; nil if unknown or too old.
    def sent_ms(n)
      @sent_ms[n]
    end

    # Split the items into lists that fit into one message.
    def self.parts(items)
      items.size <= Limits::BATCH_ITEMS_MAX ? [items] : items.each_slice(Limits::BATCH_ITEMS_MAX)
    end
  end
end
