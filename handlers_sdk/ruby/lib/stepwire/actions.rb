# frozen_string_literal: true

# The actions that a session returns. Its caller performs them: a worker with sockets, or a driver of tests.
module Stepwire
  NEVER = Float::INFINITY

  # An item is [step_id, delivery]. As the key of a Hash it is one number where that is possible: a Hash finds a number
  # five times as fast as an array.
  module Item
    DELIVERY_BITS = 9
    DELIVERIES = 1 << DELIVERY_BITS

    module_function

    def key(step_id, delivery)
      return (step_id << DELIVERY_BITS) | delivery if delivery >= 0 && delivery < DELIVERIES && step_id >= 0

      [step_id, delivery]
    end

    def key_of(item)
      key(item[0], item[1])
    end

    # The item that has this key.
    def of(key)
      key.is_a?(Integer) ? [key >> DELIVERY_BITS, key & (DELIVERIES - 1)] : key
    end
  end

  # One broker's pair of endpoints.
  Link = Struct.new(:steps, :results)

  # The time until which steps of one broker may start. The session sets it; runners read it before each start.
  class Lease
    attr_accessor :until_ms

    def initialize
      @until_ms = 0.0
    end
  end

  # Send this frame: the topic, then the body.
  Send = Struct.new(:topic, :body)

  # Run this step as soon as a slot is free. If `begin` returns false, report that the step is given back.
  #
  # The session and a runner share this object. The runner begins the run; until then, the session may take it back.
  # Each writes its own decision before it reads the other's, so a run that was taken back never begins.
  class Run
    attr_reader :key, :step, :offer, :timeout_ms, :deadline_ms, :started_ms, :timeout_at_ms
    attr_accessor :lease,
                  :call # the runner's call of the handler, from just before its begin until its outcome

    # `key`: of the item. `offer`: the number of the offer that handles the step. `deadline_ms`: the time at which the
    # run must end, whenever it begins.
    def initialize(key, step, offer, lease, timeout_ms = NEVER, deadline_ms = NEVER)
      @key = key
      @step = step
      @offer = offer
      @lease = lease
      @timeout_ms = timeout_ms
      @deadline_ms = deadline_ms
      @call = nil
      @is_taken_back = false
      @started_ms = nil
      @timeout_at_ms = NEVER # the earlier of timeout and deadline, once the run has begun
    end

    def item
      Item.of(@key)
    end

    # Called by the runner when it has a slot: may the handler be called? Not after the end of the lease.
    def begin(now_ms)
      @started_ms = now_ms
      if @is_taken_back || now_ms >= @lease.until_ms
        @started_ms = nil
        return false
      end
      ends_ms = now_ms + @timeout_ms
      @timeout_at_ms = ends_ms < @deadline_ms ? ends_ms : @deadline_ms
      true
    end

    # The run has ended, and its result is sent. Until the acknowledgement, only that is kept.
    def forget_step
      @step = nil
    end

    # Called by the session: true if the run has not begun, and therefore never will.
    def take_back
      @is_taken_back = true
      @started_ms.nil?
    end
  end

  # Ask a run that has begun to stop. `lease_lost` only informs the handler: the run continues.
  CancelRun = Struct.new(:run, :reason)

  # Connect to a broker that another broker has listed. `server_key`: its CURVE key; nil: the configured one.
  Connect = Struct.new(:link, :server_key)

  # Disconnect from a broker that is no longer listed.
  Disconnect = Struct.new(:link)

  # Disconnect this pair of endpoints and connect it again, because the pair was silent for too long.
  Rebuild = Struct.new(:link)

  # End the worker, which has drained and holds nothing.
  Quit = Class.new

  # Log that a run has failed, because no message can carry its output. `result` is the failure that was sent.
  ResultTooLarge = Struct.new(:step, :result)

  # Log this event with its facts.
  Log = Struct.new(:level, :event, :facts)
end
