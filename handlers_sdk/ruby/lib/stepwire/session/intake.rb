# frozen_string_literal: true

module Stepwire
  # Receives steps, and sends `accept` and `refuse`. A repeated `steps` message is answered again, or the broker would
  # resend it forever.
  class Intake
    MAJOR = Limits::PROTOCOL_LEVEL_1.split(".").first

    attr_reader :accept_at_ms

    def initialize(offers, accept_delay_ms, brokers, holdings, credit, outbox, out)
      @accept_at_ms = NEVER
      @offers = offers
      @accept_delay_ms = accept_delay_ms
      @brokers = brokers
      @holdings = holdings
      @credit = credit
      @outbox = outbox
      @out = out
      @unaccepted = {} # `name_of` a batch → [time of its accept, broker, batch]
    end

    # `size`: the bytes of the message.
    def on_steps(peer, message, size, now_ms)
      peer.promises.use(message.steps.size)
      if message.protocol_version.partition(".")[0] != MAJOR
        items = message.steps.map { |step| [step.step_id, step.delivery] }
        refuse_unread(peer, message.session, message.batch_id, items, "bad_message", now_ms)
        return
      end
      batch = HeldBatch.new(message.batch_id, peer.session, message.steps.size)
      @credit.note_size(size.to_f / [1, message.steps.size].max)
      number = batch.number
      accepted = []
      refused = {}
      is_repeated = false
      tombstones = @holdings.tombstones
      places = @credit.places
      peer.steps_ms = now_ms
      message.steps.each do |step|
        key = Item.key(step.step_id, step.delivery)
        if (held = @holdings.get(key))
          is_repeated = true if answer_again(peer, held, refused, now_ms)
          next
        end
        if tombstones.include?(key) || (number >= 0 && number <= peer.floor)
          code = "stale"
        elsif (offer = @offers.find(step.handler_class)).nil?
          code = "unknown_handler"
        elsif @credit.is_draining
          code = "draining"
        elsif places <= 0 || @holdings.orphan?(key)
          code = "busy"
        else
          accepted << @holdings.add(HeldDelivery.new(key, step, peer, batch, offer, now_ms))
          places -= 1
          next
        end
        (refused[code] ||= []) << [step.step_id, step.delivery]
        tombstones.add(key, peer, batch, now_ms) if code != "stale"
      end
      @holdings.queue(accepted, peer, batch, now_ms) unless accepted.empty?
      if is_repeated || !accepted.empty?
        at_ms = is_repeated ? now_ms : now_ms + @accept_delay_ms
        @unaccepted[name_of(peer, message.session, message.batch_id)] = [at_ms, peer, batch]
        @accept_at_ms = at_ms if at_ms < @accept_at_ms
      end
      refused.each { |refusal, refused_items| refuse(peer, message.batch_id, refused_items, refusal, now_ms) }
    end

    # Send no accept for this batch, because its results were sent and are an answer, too.
    def cancel_accept(peer, session, batch_id)
      @unaccepted.delete(name_of(peer, session, batch_id))
    end

    def accept_due(now_ms)
      at_ms = NEVER
      @unaccepted.to_a.each do |name, (due_ms, peer, batch)|
        if due_ms > now_ms
          at_ms = due_ms if due_ms < at_ms
          next
        end
        @unaccepted.delete(name)
        session = peer.session
        next unless session == batch.session

        free, slots_free = @credit.offer(peer, now_ms)
        @out.send_body(peer.topic, Codec.encode_accept(@out.worker, session, batch.id, free, slots_free))
      end
      @accept_at_ms = at_ms
    end

    # End these deliveries, whose runs have not begun and never will, and return the steps to their brokers.
    def give_back(withdrawn, code, now_ms)
      by_batch = {}
      withdrawn.each do |held|
        (by_batch[[held.peer, held.batch.id]] ||= []) << held.item
        @holdings.bury(held, now_ms)
      end
      by_batch.each { |(peer, batch_id), items| refuse(peer, batch_id, items, code, now_ms, is_return: true) }
    end

    # Refuse these items. `is_return`: they were accepted before.
    def refuse(peer, batch_id, items, code, now_ms, is_return: false)
      return if peer.session.nil?

      free, slots_free = @credit.offer(peer, now_ms)
      Outgoing.parts(items.uniq).each do |part| # a broker may list an item twice, a worker may not
        members = { session: peer.session, batch_id: batch_id, items: part, code: code }
        members[:free] = free unless free.zero?
        members[:slots_free] = slots_free
        @out.send_to(peer, "refuse", members)
      end
      return if code == "stale"

      # Returns keep the queues short, and many may be sent in a second: no operator has to act.
      level = is_return ? :debug : code == "draining" ? :info : :warning # rubocop:disable Style/NestedTernaryOperator
      @out.log(level, :steps_refused, broker: peer.id, batch_id: batch_id, code: code, steps: items.size)
    end

    # Refuse the steps of a message that cannot be read, or its broker would resend it forever.
    def on_unreadable(body, code, why, now_ms)
      @out.log(:error, :message_unreadable, code: code, why: why)
      type, broker, session, batch_id, items = Codec.decode_remains(body)
      peer = @brokers.get(broker)
      return unless type == "steps" && peer && peer.session == session && !batch_id.empty? && !items.empty?

      refuse_unread(peer, session, batch_id, items, code, now_ms)
    end

    private

    # Two brokers may have sessions, and batches, of the same name. As a key, one text is twice as fast as a list.
    def name_of(peer, session, batch_id)
      "#{peer.id} #{session} #{batch_id}"
    end

    # Answer a delivery that is held already. True: its batch is accepted again.
    def answer_again(peer, held, refused, now_ms)
      if !held.peer.equal?(peer)
        (refused["stale"] ||= []) << held.item # another broker has adopted the delivery meanwhile
        false
      elsif held.message
        @outbox.hasten(held.message, now_ms)
        false
      else
        !held.state.equal?(DONE)
      end
    end

    def refuse_unread(peer, session, batch_id, items, code, now_ms)
      @holdings.bury_unread(peer, HeldBatch.new(batch_id, session, items.size), items, now_ms)
      refuse(peer, batch_id, items, code, now_ms)
    end
  end
end
