# frozen_string_literal: true

module Stepwire
  # The messages to every broker: hello (until every broker has sent welcome), heartbeats, and bye. `random` returns
  # numbers in [0, 1), for the jitter of the intervals.
  class Announcements
    attr_reader :hello_at_ms, :heartbeat_at_ms,
                :is_for_credit # the next heartbeat was requested only because places move

    def initialize(config, random, brokers, holdings, credit, out)
      @hello_at_ms = NEVER
      @heartbeat_at_ms = NEVER
      @config = config
      @random = random
      @brokers = brokers
      @holdings = holdings
      @credit = credit
      @out = out
      @hello_wait_ms = Limits::HELLO_RETRY_MS.to_f
      @hello_sent_ms = -NEVER
      @hello_n = 0
      @may_move_credit = true
      @is_for_credit = false
    end

    def start(now_ms)
      @hello_at_ms = now_ms
      @heartbeat_at_ms = now_ms + heartbeat_every_ms
    end

    # Begin to send hello again. The pause since the last hello is at least that of the first retry.
    def request_hello(now_ms)
      @hello_wait_ms = Limits::HELLO_RETRY_MS.to_f
      soonest_ms = @hello_sent_ms + spread(Limits::HELLO_RETRY_MS, Limits::HELLO_JITTER)
      @hello_at_ms = [@hello_at_ms, [now_ms, soonest_ms].max].min
    end

    # Begin to send hello again after this pause, because this broker keeps ending the session. Another broker that has
    # no session either does not wait for it.
    def request_hello_after(wait_ms, peer, now_ms)
      @hello_wait_ms = Limits::HELLO_RETRY_MS.to_f
      at_ms = now_ms + wait_ms
      others_are_open = @brokers.all? { |other| other.equal?(peer) || other.session }
      @hello_at_ms = others_are_open ? at_ms : [@hello_at_ms, at_ms].min
    end

    # Send a heartbeat with the next actions, because the brokers must be informed at once.
    def request_heartbeat(now_ms)
      @heartbeat_at_ms = now_ms
    end

    # Send a heartbeat with the next actions, because a broker is no longer idle, and its share was lent. The remainder
    # of the split does not rotate with it.
    def recall_credit(now_ms)
      @may_move_credit = true
      request_credit(now_ms)
    end

    # Send a heartbeat with the next actions, because places have become free for another broker. At most once between
    # two other heartbeats: each ack of one could cause the next.
    def move_credit(now_ms)
      return unless @may_move_credit

      @may_move_credit = false
      request_credit(now_ms)
    end

    # Stop sending hello, if every broker has answered a hello that was sent after its last drop or `here`.
    def stop_hello_if_welcomed
      return if @brokers.empty?

      @hello_at_ms = NEVER if @brokers.all? { |peer| peer.session && peer.n_after < @hello_n }
    end

    def hello(now_ms)
      c = @config
      n = @out.next_timed_n(now_ms)
      free, slots_free = @credit.offer_all(n, now_ms)
      shadow_safe = c.offers.select(&:shadow_safe).map(&:pattern)
      members = { n: n, versions: Limits::VERSIONS_SUPPORTED }
      add(members, :next, @brokers.next_numbers)
      add(members, :sessions, @brokers.sessions)
      members[:handlers] = c.offers.map(&:pattern)
      add(members, :shadow_safe, shadow_safe)
      add(members, :labels, c.labels)
      members[:slots] = c.slots
      add(members, :prefetch, c.queue_max, 0)
      add(members, :free, free)
      add(members, :slots_free, slots_free)
      add(members, :holding, @holdings.report(now_ms))
      add(members, :heartbeat_ms, c.heartbeat_ms, Limits::HEARTBEAT_MS)
      add(members, :lang, c.lang)
      add(members, :sdk, c.sdk)
      add(members, :handler_version, c.handler_version)
      add(members, :host, c.host)
      add(members, :pid, c.pid, 0)
      add(members, :pid_started, c.pid_started, 0)
      add(members, :proof, c.proof, false)
      add(members, :max_message_bytes, c.max_message_bytes, Limits::MESSAGE_BYTES_MAX)
      @out.send_to_all("hello", members)
      @hello_sent_ms = now_ms
      @hello_n = n
      @hello_at_ms = now_ms + spread(@hello_wait_ms, Limits::HELLO_JITTER)
      @hello_wait_ms = [@hello_wait_ms * 2, Limits::HELLO_RETRY_MAX_MS.to_f].min
      stop_hello_if_welcomed
    end

    # Send a heartbeat; while draining, also a bye.
    def heartbeat(now_ms)
      n = @out.next_timed_n(now_ms)
      free, slots_free = @credit.offer_all(n, now_ms)
      members = { n: n }
      add(members, :next, @brokers.next_numbers)
      add(members, :sessions, @brokers.sessions)
      add(members, :free, free)
      add(members, :slots_free, slots_free)
      add(members, :holding, @holdings.report(now_ms))
      @out.send_to_all("heartbeat", members)
      @out.send_to_all("bye", { n: @out.next_timed_n(now_ms) }) if @credit.is_draining
      @heartbeat_at_ms = now_ms + spread(heartbeat_every_ms, Limits::HEARTBEAT_JITTER)
      @may_move_credit ||= !@is_for_credit
      @is_for_credit = false
    end

    private

    def request_credit(now_ms)
      return unless @heartbeat_at_ms > now_ms

      @heartbeat_at_ms = now_ms
      @is_for_credit = true
    end

    # Add a member, unless it has its default.
    def add(members, name, value, default = nil)
      members[name] = value unless value == default || (default.nil? && value.empty?)
    end

    def heartbeat_every_ms
      every_ms = [@config.heartbeat_ms, Limits::LEASE_MS].min
      @brokers.each { |peer| every_ms = peer.heartbeat_ms if peer.session && peer.heartbeat_ms < every_ms }
      [Limits::HEARTBEAT_MIN_MS, every_ms].max.to_f
    end

    def spread(ms, jitter)
      ms * (1 + (jitter * ((2 * @random.call) - 1)))
    end
  end
end
