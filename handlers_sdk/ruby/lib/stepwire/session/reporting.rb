# frozen_string_literal: true

module Stepwire
  # Sends the results of finished runs, and ends their deliveries when a broker acknowledges or refuses the message.
  #
  # A message holds results of one batch, so a result waits at most HOLD_MS for others of its batch: until the batch is
  # whole, or nothing runs, or the observed pace promises none in that time.
  class ResultsReporting
    HOLD_MS = 1.0
    MIB = 1024 * 1024

    # With these codes the broker does not refuse the content of a results message, so other content would not help.
    HOPELESS = %w[wrong_batch wrong_sender unknown_delivery unknown_session unknown_type].freeze

    attr_reader :send_at_ms

    def initialize(holdings, credit, intake, outbox, out)
      @holdings = holdings
      @credit = credit
      @intake = intake
      @outbox = outbox
      @out = out
      @send_at_ms = NEVER
      @ready = {}.compare_by_identity # batches with results that are not sent
      @whole = [] # those of them whose steps have all ended
      @rid = 0
    end

    def add(held, result, now_ms)
      batch = held.batch
      held.result = result
      batch.add_ready(held)
      batch.open -= 1
      @whole << batch if batch.open.zero?
      @ready[batch] = true
      @send_at_ms = now_ms + HOLD_MS if @send_at_ms == NEVER
    end

    # True if all steps of a batch have ended, so its results can be sent.
    def whole?
      !@whole.empty?
    end

    # True if results must be sent now. `runs`: the number of steps that could still add to them.
    def due?(now_ms, runs)
      return false if @send_at_ms == NEVER

      now_ms >= @send_at_ms || runs.zero? || !@whole.empty? || @holdings.pace.steps_in(HOLD_MS, now_ms) < 1
    end

    # Send the results of whole batches; all results, if none is expected in time. Called if `due?`.
    def send_due(now_ms, runs)
      whole = @whole
      @whole = []
      if now_ms < @send_at_ms && !runs.zero? && @holdings.pace.steps_in(HOLD_MS, now_ms) >= 1
        whole.each { |batch| @ready.delete(batch) }
        ready = whole
      else
        ready = @ready.keys
        @ready = {}.compare_by_identity
      end
      @send_at_ms = NEVER if @ready.empty?
      ready.each do |batch|
        done = batch.take_ready
        if one_owner?(done) && done.size <= Limits::BATCH_ITEMS_MAX # nearly always
          send_results(done[0].peer, batch, done, now_ms)
          next
        end
        by_owner(done).each do |peer, own|
          Outgoing.parts(own).each { |part| send_results(peer, batch, part, now_ms) }
        end
      end
    end

    def on_ack(message, now_ms)
      message.rids.each do |rid|
        acknowledged = @outbox.remove(rid)
        @holdings.bury_all(acknowledged.done, now_ms) if acknowledged
      end
    end

    def on_refused(message, now_ms)
      @out.log(:error, :message_refused, broker: message.broker, refused: message.refused, code: message.code,
                                         message: message.message)
      refused = message.rid && @outbox.remove(message.rid)
      return unless refused

      if refused.is_replacement || HOPELESS.include?(message.code)
        refused.done.each { |held| @holdings.bury(held, now_ms) }
        return
      end
      # The broker will never accept these results. If they were only dropped, the steps would run again.
      refused.done.each do |held|
        held.result = sdk_failure(held, "result_refused", "#{message.code}: #{message.message}")
        send_results(refused.peer, refused.batch, [held], now_ms, is_replacement: true)
      end
    end

    # Move results to the broker that now owns their deliveries. Results for the previous owner get a separate message.
    def change_owner(message, adopted, peer, now_ms)
      items = adopted.map(&:item)
      rest = message.done.reject { |held| items.include?(held.item) }
      if rest.empty?
        message.peer = peer
        return
      end
      @outbox.remove(message.rid)
      [[message.peer, rest], [peer, adopted]].each do |owner, deliveries|
        send_results(owner, message.batch, deliveries, now_ms, is_replacement: message.is_replacement)
      end
    end

    # The result without a verdict on an at_most_once step: a failure after a request to stop does not prove that the
    # step had no effect.
    def self.without_verdict(held, result)
      return result if !held.is_at_most_once || result.error.nil?

      result.dup.tap { |unknown| unknown.error = with_code(result.error, OUTCOME_UNKNOWN) }
    end

    # The error with this code, its members in their order.
    def self.with_code(error, code)
      Result.error_detail(**{ code: nil, message: "" }.merge(error), code: code)
    end

    private

    # True if there are deliveries, all of them are still done, and one broker owns them.
    def one_owner?(deliveries)
      owner = deliveries[0]&.peer
      !owner.nil? && deliveries.all? { |held| held.peer.equal?(owner) && held.state.equal?(DONE) }
    end

    # The deliveries that are still done, by the broker that owns them.
    def by_owner(deliveries)
      deliveries.select { |held| held.state.equal?(DONE) }.group_by(&:peer)
    end

    # Send one results message, or two halves if the broker does not accept its size.
    def send_results(peer, batch, done, now_ms, is_replacement: false)
      session = peer.session || batch.session
      rid = @rid + 1
      free, slots_free = @credit.offer(peer, now_ms)
      n = @out.next_n
      start = peer.results_start(@out.worker, session)
      body = Codec.encode_results(start, batch.id, rid, n, free, slots_free, done.map(&:result))
      return if body.bytesize > peer.bytes_max && split(peer, batch, done, now_ms, is_replacement, body.bytesize)

      @rid = rid
      kept = ResultsMessage.new(rid, peer, batch, session, body, done, now_ms, is_replacement, n, free, slots_free)
      done.each do |held|
        batch.unsent -= 1 if held.message.nil? # a replacement counts once
        held.message = kept
        held.run&.forget_step
      end
      @outbox.send_message(kept)
      @intake.cancel_accept(peer, session, batch.id) if batch.unsent.zero?
    end

    # Send what is too large for one message in another form. False: there is none, and it is sent as it is.
    def split(peer, batch, done, now_ms, is_replacement, size)
      if done.size > 1
        half = done.size / 2
        send_results(peer, batch, done[0...half], now_ms, is_replacement: is_replacement)
        send_results(peer, batch, done[half..], now_ms, is_replacement: is_replacement)
        return true
      end
      return false if is_replacement

      held = done.first
      result = held.result
      if result.stderr? # for people only, and must not cost the outcome
        held.result = result.dup.tap { |without| without.metadata = result.metadata.except(:stderr) }
        send_results(peer, batch, done, now_ms)
        return true
      end
      held.result = too_large(held, size, peer.bytes_max)
      # A result that was sent before to another broker has no step any more: then only the failure is reported.
      @out.add(ResultTooLarge.new(held.run.step, held.result)) if held.run.step
      send_results(peer, batch, done, now_ms, is_replacement: true)
      true
    end

    def too_large(held, message_bytes, bytes_max)
      text = "the output has #{size(message_bytes)}; the limit is #{size(bytes_max)}: " \
             "store it elsewhere and return a reference"
      sdk_failure(held, "too_large", text)
    end

    # Rounded up, so that a size above a limit also reads as one.
    def size(size_bytes)
      return "#{size_bytes} bytes" if size_bytes < MIB

      format("%g MiB", (size_bytes.to_f / MIB * 10).ceil / 10.0)
    end

    # The result of a step that ran, but whose result cannot be delivered.
    def sdk_failure(held, code, text)
      error = if held.is_at_most_once
                Result.error_detail(message: "#{code}: #{text}", code: OUTCOME_UNKNOWN)
              else
                Result.error_detail(message: text, code: code, retryable: false)
              end
      step_id, delivery = held.item
      Result.new(step_id, delivery, "error", nil, error)
    end
  end
end
