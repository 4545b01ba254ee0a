# frozen_string_literal: true

module Stepwire
  # The worker's half of the protocol, as pure logic: without sockets, clock, threads or its own randomness.
  #
  # The caller passes the time with every call, in milliseconds of a clock that counts sleep. It passes all facts that
  # have arrived, then calls `actions`, and calls it again at `wake_at` at the latest. Results of one batch that
  # finished in the meantime are sent in one message. `random` returns numbers in [0, 1).
  #
  # The guarantees: a process runs a delivery at most once. No step starts after its broker may consider this worker
  # dead. An at_most_once step starts only after the broker's go. A result is kept until a broker has committed it.
  class Session
    attr_reader :endpoints

    def initialize(config, random)
      @inbox = Topics.to_worker(config.worker)
      @bytes_max = config.max_message_bytes
      @has_quit = false
      offers = Offers.new(config.offers)
      @out = Outgoing.new(config.worker)
      @brokers = Brokers.new
      @slots = Slots.new(config.slots, offers)
      @holdings = HeldDeliveries.new(@slots, Pace.new(config.queue_max))
      @outbox = ResultsOutbox.new(@out)
      @runs = Runs.new(offers, @slots, @holdings, @out)
      @credit = Credit.new(config, @brokers, @holdings, @outbox)
      @intake = Intake.new(offers, config.accept_delay_ms, @brokers, @holdings, @credit, @outbox, @out)
      @reporting = ResultsReporting.new(@holdings, @credit, @intake, @outbox, @out)
      @progress = ProgressReports.new(@holdings, @out)
      @announcements = Announcements.new(config, random, @brokers, @holdings, @credit, @out)
      @leases = Leases.new(@brokers, @announcements, @credit, @holdings, @runs, @outbox, @out)
      @endpoints = BrokerLinks.new(config, @brokers, @holdings, @out)
    end

    # -- facts in -----------------------------------------------------------------------------------------------------

    def start(now_ms)
      @announcements.start(now_ms)
      @endpoints.start(now_ms)
    end

    # Receive a frame of the SUB socket, split at its first space.
    def receive(topic, body, now_ms)
      @leases.check(now_ms)
      return unless topic == @inbox || topic == Topics::BROKERS # rubocop:disable Style/MultipleComparison -- fast

      if body.bytesize > @bytes_max
        @intake.on_unreadable(body, "too_large", "#{body.bytesize} bytes", now_ms)
        return
      end
      begin
        message = Codec.decode_broker(body)
      rescue InvalidMessage => e
        @intake.on_unreadable(body, "bad_message", e.message, now_ms) if e.code != "unknown_type"
        return
      end
      dispatch(message, body.bytesize, now_ms) if topic == @inbox || message.is_a?(Messages::Here)
    end

    # Report the end of a run that `Run` started, by its key. The first report of a run counts.
    def finished(key, result, now_ms)
      held = @holdings.get(key)
      unless held && held.state.equal?(RUNNING)
        @holdings.release_orphan(key, now_ms)
        return
      end
      if result.status != "completed" && (held.is_interrupted || now_ms >= held.timeout_at_ms)
        result = ResultsReporting.without_verdict(held, result)
      end
      @reporting.add(held, result, now_ms)
      @progress.forget(held) if @progress.send_at_ms != NEVER
      @holdings.finish(held, now_ms)
    end

    # Return a step to its broker: its run did not start, or had no effect, so another worker may run the step.
    def give_back(key, now_ms)
      held = @holdings.get(key)
      unless held && held.state.equal?(RUNNING)
        @holdings.release_orphan(key, now_ms)
        return
      end
      @intake.give_back([held], @credit.is_draining ? "draining" : "busy", now_ms)
    end

    def progressed(item, done, total, note, now_ms)
      held = @holdings.get(Item.key_of(item))
      @progress.add(held, done, total, note, now_ms) if held && held.state.equal?(RUNNING)
    end

    # Accept no new steps, and finish those that are held.
    def quiet(now_ms)
      @credit.is_quiet = true
      @announcements.request_heartbeat(now_ms)
    end

    # Report whether the runner accepts no steps at the moment, although slots are free.
    def full(is_full, now_ms)
      return if is_full == @credit.is_full

      @credit.is_full = is_full
      @announcements.request_heartbeat(now_ms)
    end

    # Return steps that have not started, finish those that run, then `Quit`.
    def drain(now_ms)
      return if @credit.is_draining

      @credit.is_draining = true
      @leases.check(now_ms)
      @intake.give_back(@holdings.withdraw, "draining", now_ms)
      @out.log(:info, :worker_drains, running: @holdings.running.size)
      @announcements.request_heartbeat(now_ms)
    end

    # Ask every run to stop, because the time to drain is over. Returns the number of runs.
    def expel
      @runs.interrupt_all("shutdown")
    end

    # -- actions out --------------------------------------------------------------------------------------------------

    # All actions that are due now, in their order. Called for every frame and every end of a run, so a part that is
    # not due costs only a comparison.
    def actions(now_ms)
      @leases.check(now_ms) if now_ms >= @leases.check_at_ms
      @runs.stop_overdue(now_ms) if now_ms >= @runs.timeout_at_ms
      hand_over(now_ms)
      return_excess(now_ms) if now_ms >= @credit.return_at_ms
      @reporting.send_due(now_ms, @slots.taken) if @reporting.due?(now_ms, @slots.taken)
      @outbox.resend(now_ms) if now_ms >= @outbox.resend_at_ms
      @runs.ask(now_ms) if now_ms >= @runs.ask_at_ms
      @intake.accept_due(now_ms) if now_ms >= @intake.accept_at_ms
      @progress.send_due(now_ms) if now_ms >= @progress.send_at_ms
      @announcements.hello(now_ms) if now_ms >= @announcements.hello_at_ms
      heartbeat(now_ms) if now_ms >= @announcements.heartbeat_at_ms
      @endpoints.check(now_ms) if now_ms >= @endpoints.check_at_ms
      if may_quit?
        @has_quit = true
        heartbeat(now_ms)
        @out.add(Quit.new)
      end
      @out.take
    end

    # The latest time for the next call of `actions`; minus infinity: now. At that time, nothing may be due.
    def wake_at
      return -NEVER if !@out.actions.empty? || @slots.next? || @reporting.whole?
      return -NEVER if @reporting.send_at_ms != NEVER && @slots.taken.zero?
      return -NEVER if may_quit?

      [
        @leases.check_at_ms, @runs.timeout_at_ms, @credit.return_at_ms, @reporting.send_at_ms, @outbox.resend_at_ms,
        @runs.ask_at_ms, @intake.accept_at_ms, @progress.send_at_ms, @announcements.hello_at_ms,
        @announcements.heartbeat_at_ms, @endpoints.check_at_ms
      ].min
    end

    # True if results wait for others that are about to end. Then the caller need not report each end at once: within
    # the next millisecond is soon enough.
    def awaits_results?
      @reporting.send_at_ms != NEVER && @slots.taken >= @holdings.load
    end

    # True if nothing is held: no step, and no result that a broker has not acknowledged.
    def idle?
      @holdings.empty?
    end

    # The number of steps that are held, and of results that no broker has acknowledged.
    def held
      @holdings.size
    end

    def holding(now_ms)
      @holdings.report(now_ms)
    end

    private

    # -- messages -----------------------------------------------------------------------------------------------------

    def dispatch(message, size, now_ms)
      case message
      when Messages::Ack then @reporting.on_ack(message, now_ms)
      when Messages::Here then @leases.on_here(@brokers.get_or_add(message.broker, now_ms), message, now_ms)
      when Messages::Welcome
        peer = @brokers.get_or_add(message.broker, now_ms)
        @endpoints.learn(peer, message.brokers, now_ms) if @leases.on_welcome(peer, message, now_ms)
      when Messages::Reset then @leases.on_reset(@brokers.get_or_add(message.broker, now_ms), message, now_ms)
      when Messages::Refused then @reporting.on_refused(message, now_ms)
      else
        peer = @brokers.get(message.broker)
        # In no other session than the current one: the next heartbeat informs the sender.
        return if peer.nil? || peer.session != message.session || peer.epoch != message.epoch

        dispatch_in_session(peer, message, size, now_ms)
      end
    end

    def dispatch_in_session(peer, message, size, now_ms)
      case message
      when Messages::Steps
        is_waking = @credit.waking?(peer, now_ms)
        @intake.on_steps(peer, message, size, now_ms)
        @announcements.recall_credit(now_ms) if is_waking
      when Messages::HeartbeatAck
        @leases.on_heartbeat_ack(peer, message, now_ms)
        @endpoints.learn(peer, message.brokers, now_ms) if message.brokers
        drain(now_ms) if message.quit
      when Messages::Go then @runs.on_go(peer, message.items, now_ms)
      when Messages::Cancel then on_cancel(peer, message, now_ms)
      when Messages::Adopt then on_adopt(peer, message, now_ms)
      else raise "no branch for #{message.class}"
      end
    end

    def on_cancel(peer, message, now_ms)
      not_started = []
      message.items.each do |item|
        key = Item.key_of(item)
        held = @holdings.get(key)
        if held.nil?
          @holdings.tombstones.disown(key, peer, now_ms)
        elsif held.peer.equal?(peer) && !held.state.equal?(DONE)
          held.withdraw ? not_started << held : @runs.interrupt(held, message.reason)
        end
      end
      @intake.give_back(not_started, "stale", now_ms)
    end

    # Move deliveries to another broker, or to the same one after a restart. Unknown ones will never start here.
    def on_adopt(peer, message, now_ms)
      answers = []
      moved = {}.compare_by_identity
      message.items.uniq.each do |item|
        key = Item.key_of(item)
        held = @holdings.get(key)
        if held.nil? || held.state.nil?
          @holdings.tombstones.disown(key, peer, now_ms)
          answers << [item[0], item[1], "unknown", 0]
          next
        end
        answers << [item[0], item[1], held.reported_state, held.age_ms(now_ms)]
        if held.message
          @outbox.hasten(held.message, now_ms)
          (moved[held.message] ||= []) << held unless held.message.peer.equal?(peer)
        end
        @holdings.move(held, peer)
      end
      Outgoing.parts(answers).each { |part| @out.send_to(peer, "adopted", { session: peer.session, items: part }) }
      moved.each { |results_message, deliveries| @reporting.change_owner(results_message, deliveries, peer, now_ms) }
    end

    # -- helpers ------------------------------------------------------------------------------------------------------

    # Hand steps to the runner, as far as slots and pace permit, and watch those that still wait.
    def hand_over(now_ms)
      if @slots.queue?
        @slots.ahead = @credit.ahead(now_ms)
        @runs.start_queued(now_ms) if @slots.next?
      end
      @credit.watch(now_ms)
    end

    # Return the newest steps that no longer fit, because steps have become longer.
    def return_excess(now_ms)
      count, peers = @credit.excess(now_ms)
      @intake.give_back(@holdings.withdraw_newest(count, peers), "busy", now_ms) if count.positive?
    end

    def may_quit?
      @credit.is_draining && @holdings.empty? && !@has_quit
    end

    def heartbeat(now_ms)
      @holdings.tombstones.sweep(now_ms)
      @credit.rotate unless @announcements.is_for_credit
      @announcements.heartbeat(now_ms)
    end
  end
end
