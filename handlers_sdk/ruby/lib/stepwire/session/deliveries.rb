# frozen_string_literal: true

# Records of what a worker holds: deliveries, the batches that contained them, and the messages with their results.
module Stepwire
  # A delivery passes through these states in this order. In any of them it can end, and then becomes a tombstone.
  QUEUED = :queued # waits in the session
  ASKING = :asking # at_most_once: has a slot, and waits for the broker's go
  RUNNING = :running # handed to the runner: its run begins when a slot is free
  DONE = :done # its result is kept until a broker acknowledges it

  # The steps of one message. Their results are reported together if possible.
  class HeldBatch
    NUMBER_CHARS_MAX = 16

    attr_reader :id, :number, :session
    attr_accessor :open, # accepted steps that have not ended
                  :unsent # steps without a sent result

    def initialize(id, session, size)
      @id = id
      @session = session
      @number = HeldBatch.number_of(id)
      @open = 0
      @unsent = size
      @ready = nil
    end

    # Add a delivery with a result that is in no message yet.
    def add_ready(held)
      (@ready ||= []) << held
    end

    # Remove and return these deliveries.
    def take_ready
      ready = @ready || []
      @ready = nil
      ready
    end

    # The increasing number n of `batch_<nonce>_<n>`. An id of another form has -1, and is never refused as stale by
    # its number.
    def self.number_of(batch_id)
      mark = batch_id.rindex("_")
      number = mark ? batch_id[mark + 1, NUMBER_CHARS_MAX + 1] : batch_id
      number.match?(/\A[0-9]{1,16}\z/) ? number.to_i : -1
    end
  end

  # One delivery in this process.
  class HeldDelivery
    attr_reader :key, :offer, :received_ms, :batch, :is_at_most_once
    attr_accessor :step, # nil after the run has ended, when only the result is needed
                  :peer, # the broker that owns the delivery; changed by an adoption
                  :run, # since its hand-over to the runner
                  :result, # since the end of the run
                  :state, # nil: no longer held
                  :is_stopping, # was asked to stop
                  :is_interrupted, # the same, or lost its broker: a failure of an at_most_once step proves nothing
                  :ask_at_ms, :ask_wait_ms, :message

    def initialize(key, step, peer, batch, offer, now_ms)
      @key = key
      @step = step
      @peer = peer
      @batch = batch
      @offer = offer
      @received_ms = now_ms
      @run = nil
      @result = nil
      @state = QUEUED
      @is_at_most_once = step.at_most_once?
      @is_stopping = false
      @is_interrupted = false
      @message = nil
    end

    def item
      Item.of(@key)
    end

    def timeout_at_ms
      @run ? @run.timeout_at_ms : NEVER
    end

    # The state for brokers, for which a step runs from its start. A granted step counts as running at once.
    def reported_state
      return QUEUED if @state.equal?(RUNNING) && !@is_at_most_once && (@run.nil? || @run.started_ms.nil?)

      @state
    end

    # Milliseconds since the start of the run, or since the receipt if the run has not started. A granted run that
    # begins now has no age: the time for which it waited for its go is not part of its timeout.
    def age_ms(now_ms)
      started_ms = @run&.started_ms
      return 0 if started_ms.nil? && reported_state.equal?(RUNNING)

      [0, (now_ms - (started_ms || @received_ms)).to_i].max
    end

    # True if the run has not begun, and now never will. The caller then ends the delivery.
    def withdraw
      case @state
      when RUNNING then !@run.nil? && @run.take_back
      when QUEUED, ASKING then true
      else false
      end
    end
  end

  # A results message that no broker has acknowledged yet, with the results of the deliveries in `done`.
  class ResultsMessage
    attr_reader :rid, :batch, :done, :is_replacement, :n, :free, :slots_free
    attr_accessor :peer, :session, :body, :tries, :wait_ms, :at_ms

    def initialize(rid, peer, batch, session, body, done, now_ms, is_replacement, n, free, slots_free)
      @rid = rid
      @peer = peer
      @batch = batch
      @session = session
      @body = body
      @done = done
      @is_replacement = is_replacement # carries an error in place of a result that no broker accepts
      @n = n
      @free = free
      @slots_free = slots_free
      @tries = 1
      @wait_ms = Limits::RESULTS_RETRANSMIT_MS.to_f
      @at_ms = now_ms + @wait_ms
    end
  end
end
