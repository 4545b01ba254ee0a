# frozen_string_literal: true

module Stepwire
  # The session with each broker: opened by hello and welcome, valid during its lease, dropped after it.
  #
  # A lease begins when the echoed hello or heartbeat was sent, on the worker's own clock. Therefore the lease ends at
  # the worker before the broker may consider the worker dead, and their clocks need not agree.
  class Leases
    PERMANENT = %w[version unauthorized].freeze # resets that a hello does not change

    attr_reader :check_at_ms

    def initialize(brokers, announcements, credit, holdings, runs, outbox, out)
      @check_at_ms = NEVER
      @brokers = brokers
      @announcements = announcements
      @credit = credit
      @holdings = holdings
      @runs = runs
      @outbox = outbox
      @out = out
    end

    # Drop sessions whose lease is over: no step may start in them, and their messages are ignored.
    def check(now_ms)
      return if now_ms < @check_at_ms

      @brokers.to_a.each do |peer|
        until_ms = peer.lease.until_ms
        drop(peer, "lease_over", now_ms) if until_ms != 0 && now_ms >= until_ms
      end
      @check_at_ms = @brokers.map { |peer| peer.lease.until_ms }.reject(&:zero?).min || NEVER
    end

    def on_here(peer, message, now_ms)
      if !peer.deployment.nil? && peer.deployment != message.deployment
        replace(peer, message.deployment, message.epoch, now_ms)
        return
      end
      return if message.epoch < peer.epoch

      if message.epoch > peer.epoch
        # The broker restarted. Its deliveries continue with the current lease; the new session will adopt them.
        peer.epoch = message.epoch
        peer.session = nil
      end
      peer.deployment = message.deployment
      peer.n_after = @out.n
      @announcements.request_hello(now_ms)
    end

    # Open or extend a session. True if the message answers a hello with the current session number, and its lease is
    # not over yet.
    def on_welcome(peer, message, now_ms)
      epoch, k = Topics.session_parts(message.session)
      sent_ms = @out.sent_ms(message.n)
      return false if epoch != message.epoch || k != peer.next || message.n <= peer.n_after || sent_ms.nil?

      if !peer.deployment.nil? && peer.deployment != message.deployment
        replace(peer, message.deployment, message.epoch, now_ms)
        return false
      end
      until_ms = sent_ms + (message.lease_ms * Limits::LEASE_WORKER_FACTOR)
      # Sent before a restart, or its lease is over; the broker answers the next hello, too.
      return false if epoch < peer.epoch || until_ms <= now_ms

      is_new = message.session != peer.session
      peer.epoch = epoch
      peer.deployment = message.deployment
      peer.bytes_max = message.max_message_bytes
      peer.lease_ms = message.lease_ms
      wanted_ms = message.heartbeat_ms.zero? ? Limits::HEARTBEAT_MS : message.heartbeat_ms
      peer.heartbeat_ms = [wanted_ms, message.lease_ms / 5].min
      peer.promises.acknowledge(message.n)
      peer.lease.until_ms = 0.0 if is_new # a restarted broker may have a shorter lease, which then applies
      extend_lease(peer, until_ms, now_ms)
      open_session(peer, message.session, now_ms) if is_new
      true
    end

    def on_heartbeat_ack(peer, message, now_ms)
      sent_ms = @out.sent_ms(message.n)
      extend_lease(peer, sent_ms + (peer.lease_ms * Limits::LEASE_WORKER_FACTOR), now_ms) if sent_ms
      @announcements.move_credit(now_ms) if peer.promises.acknowledge(message.n) && @credit.moves?(peer)
      return if message.quiet == peer.is_quiet

      peer.is_quiet = message.quiet
      @announcements.request_heartbeat(now_ms)
    end

    def on_reset(peer, message, now_ms)
      return unless message.next == peer.next && message.epoch >= peer.epoch

      drop(peer, message.code, now_ms, PERMANENT.include?(message.code) ? :error : :warning)
    end

    private

    def open_session(peer, session, now_ms)
      peer.session = session
      peer.opened_ms = now_ms
      peer.begin_floor
      peer.is_quiet = false
      @announcements.request_heartbeat(now_ms) # carries the credit
      @outbox.hasten_all(peer, now_ms)
      @runs.hasten(peer, now_ms)
      @announcements.stop_hello_if_welcomed
      @out.log(:info, :session_opened, broker: peer.id, session: session)
    end

    def extend_lease(peer, until_ms, now_ms)
      peer.answered_ms = now_ms
      return unless until_ms > peer.lease.until_ms

      peer.lease.until_ms = until_ms
      @check_at_ms = until_ms if until_ms < @check_at_ms
    end

    # End the session. Deliveries that have not started here never start, because another worker may get them.
    def drop(peer, why, now_ms, level = :warning)
      dropped = 0
      @holdings.of_broker(peer).each do |held|
        next if held.state.equal?(DONE)

        if held.withdraw
          @holdings.bury(held, now_ms)
          dropped += 1
        else
          @runs.interrupt(held, "lease_lost")
        end
      end
      session = peer.session
      peer.session = nil
      peer.next += 1
      peer.lease.until_ms = 0.0
      peer.n_after = @out.n
      @out.log(level, :session_dropped, broker: peer.id, session: session, why: why, not_started: dropped)
      request_hello(peer, session, why, now_ms)
    end

    # Send hello at once after a drop, and after a growing pause if the broker keeps ending the session.
    def request_hello(peer, session, why, now_ms)
      peer.drop_wait_ms = 0.0 if session && now_ms - peer.opened_ms >= peer.lease_ms / 2.0
      if PERMANENT.include?(why)
        wait_ms = peer.drop_wait_ms = Limits::DROP_WAIT_MAX_MS.to_f
      else
        wait_ms = peer.drop_wait_ms
        peer.drop_wait_ms = [Limits::DROP_WAIT_MAX_MS, [Limits::DROP_WAIT_MS, 2 * wait_ms].max].min.to_f
      end
      if wait_ms.zero?
        @announcements.request_hello(now_ms)
      else
        @announcements.request_hello_after(wait_ms, peer, now_ms)
      end
    end

    # Discard everything of a broker that has another database: earlier deliveries have no owner, and their ids now
    # belong to other steps.
    def replace(peer, deployment, epoch, now_ms)
      discarded = @outbox.discard(peer)
      @holdings.of_broker(peer).each do |held|
        if !held.state.equal?(RUNNING) || held.withdraw
          @holdings.bury(held, now_ms)
        else
          @runs.interrupt(held, "superseded")
          @holdings.orphan(held, now_ms)
        end
      end
      @out.log(:error, :deployment_replaced, broker: peer.id, deployment: deployment, results_discarded: discarded)
      drop(peer, "deployment_replaced", now_ms)
      @holdings.tombstones.forget_broker(peer)
      peer.deployment = deployment
      peer.epoch = epoch
    end
  end
end
