# frozen_string_literal: true

module Stepwire
  # Runs, from their slot to their end: permission for at_most_once steps, start, timeouts, cancels.
  class Runs
    RECHECK_MS = 50.0 # a run that has not begun by its deadline is checked again after this time

    attr_reader :ask_at_ms, :timeout_at_ms

    def initialize(offers, slots, holdings, out)
      @ask_at_ms = NEVER
      @timeout_at_ms = NEVER
      @offers = offers.by_number
      @slots = slots
      @holdings = holdings
      @out = out
    end

    def start_queued(now_ms)
      while (held = @slots.take_next(now_ms))
        if held.is_at_most_once
          held.state = ASKING
          held.ask_at_ms = now_ms
          held.ask_wait_ms = Limits::START_RETRANSMIT_MS.to_f
          @slots.asking[held.key] = held
          @ask_at_ms = now_ms
        else
          start(held, now_ms)
        end
      end
    end

    # Send `start` for the at_most_once steps that are due. Resent until the broker answers go or cancel.
    def ask(now_ms)
      due = {}
      at_ms = NEVER
      @slots.asking.each_value do |held|
        if held.ask_at_ms <= now_ms
          (due[held.peer] ||= []) << held.item
          held.ask_at_ms = now_ms + held.ask_wait_ms
          held.ask_wait_ms = [held.ask_wait_ms * 2, Limits::START_RETRANSMIT_MAX_MS.to_f].min
        end
        at_ms = held.ask_at_ms if held.ask_at_ms < at_ms
      end
      @ask_at_ms = at_ms
      due.each do |peer, items|
        next if peer.session.nil?

        Outgoing.parts(items).each { |part| @out.send_to(peer, "start", { session: peer.session, items: part }) }
      end
    end

    # Ask this broker with the next actions, because its session has just opened.
    def hasten(peer, now_ms)
      @slots.asking.each_value { |held| held.ask_at_ms = @ask_at_ms = now_ms if held.peer.equal?(peer) }
    end

    def on_go(peer, items, now_ms)
      items.each do |item|
        key = Item.key_of(item)
        held = @slots.asking[key]
        next unless held&.peer.equal?(peer)

        @slots.asking.delete(key)
        start(held, now_ms)
      end
    end

    # Ask a run that has begun to stop. The first reason counts, and a run is asked once, although a broker repeats its
    # cancel at every heartbeat that lists the run. `lease_lost` informs the handler, and stops nothing.
    def interrupt(held, reason)
      held.is_interrupted = true
      return if held.is_stopping

      held.is_stopping = reason != "lease_lost"
      @out.add(CancelRun.new(held.run, reason))
    end

    # Ask every run to stop. Returns their number.
    def interrupt_all(reason)
      running = @holdings.running
      running.each { |held| interrupt(held, reason) }
      running.size
    end

    def stop_overdue(now_ms)
      at_ms = NEVER
      @holdings.running.each do |held|
        run = held.run
        if run.started_ms.nil? # may begin at any time
          at_ms = [at_ms, now_ms + run.timeout_ms, [run.deadline_ms, now_ms + RECHECK_MS].max].min
        elsif run.timeout_at_ms > now_ms
          at_ms = [at_ms, run.timeout_at_ms].min
        else
          interrupt(held, "timeout")
        end
      end
      @timeout_at_ms = at_ms
    end

    private

    def start(held, now_ms)
      step = held.step
      raise "a step must not start after its broker's lease" unless now_ms < held.peer.lease.until_ms

      held.state = RUNNING
      timeout_ms = step.timeout_ms.zero? ? NEVER : step.timeout_ms
      own_ms = @offers[held.offer].timeout_ms
      timeout_ms = own_ms if own_ms && own_ms < timeout_ms
      ends_ms = step.deadline_ms.nil? ? NEVER : held.received_ms + step.deadline_ms
      soonest_ms = now_ms + timeout_ms # if the run begins at once
      soonest_ms = ends_ms if ends_ms < soonest_ms
      @timeout_at_ms = soonest_ms if soonest_ms < @timeout_at_ms
      held.run = Run.new(held.key, step, held.offer, held.peer.lease, timeout_ms, ends_ms)
      @out.add(held.run)
    end
  end
end
