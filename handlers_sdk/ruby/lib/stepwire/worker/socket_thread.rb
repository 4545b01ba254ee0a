# frozen_string_literal: true

module Stepwire
  # The thread that owns both sockets, and runs a worker from its first hello until it has quit. No handler runs on this
  # thread, so heartbeats continue while handlers run. It passes frames and outcomes of calls to the session, and the
  # session's actions to sockets and runners.
  class SocketThread
    EXPEL_MS = 2_000 # time for runs to end after a request to stop
    RECEIVE_MAX = 500 # frames received before actions are performed
    RECEIVE_BYTES_MAX = 64 * 1024 # the same in bytes: the first steps run while the next are received
    POLL_MAX_MS = 60_000
    LOG_CLOSE_S = 1.0

    attr_reader :worker_id

    def initialize(config, handlers, curve, edge)
      @worker_id = config.worker
      @config = config
      @handlers = handlers
      @curve = curve
      @edge = edge
      random = Random.new
      @session = Session.new(config, random.method(:rand))
      @log = Logs::Writer.new
      @events = WorkerEvents.new(@log, @session.endpoints.method(:link_of), curve&.public)
      @search = BrokerSearch.new(@events)
      @mailbox = Mailbox.new
      @report_progress = method(:report_progress)
      @expel_at_ms = @leave_at_ms = NEVER
      @has_quit = false
      @fault = nil
    end

    # -- called by other threads --------------------------------------------------------------------------------------

    def start
      @thread = Thread.new do
        Thread.current.name = "stepwire-sockets"
        Thread.current.report_on_exception = false
        main
      end
    end

    def ended?
      !@thread.alive?
    end

    # Wait for the end of the thread. True if it has ended. Raises if a fault ended the thread.
    def wait(timeout_s)
      return false if @thread.join(timeout_s).nil?
      raise Error, "the worker's socket thread has failed: #{@fault.class}: #{@fault.message}" if @fault

      true
    end

    def quiet
      @mailbox.put_request { @session.quiet(Identity.now_ms) }
    end

    def drain(drain_ms)
      @mailbox.put_request do
        @session.drain(Identity.now_ms)
        limit_drain(drain_ms)
      end
    end

    def report_progress(item, done, total, note)
      @mailbox.put_request { @session.progressed(item, done, total, note, Identity.now_ms) }
    end

    private

    # -- the thread ---------------------------------------------------------------------------------------------------

    def main
      @runners = Runners.new(@handlers, @config.slots, @config.links, method(:call_of), @mailbox.method(:put_outcome))
      @wire = Wire.new(@worker_id, @config.links, @curve, @mailbox.fileno, @events)
      begin
        work
      ensure
        @wire.close
        @runners.stop
      end
      @events.log(:info, :worker_ended, { unacknowledged: @session.held })
    rescue Exception => e # rubocop:disable Lint/RescueException -- `wait` raises it in the program's own thread
      @events.failure(e)
      @fault = e
    ensure
      @mailbox.close
      @log.close(LOG_CLOSE_S)
    end

    def work
      @session.start(Identity.now_ms)
      name = @worker_id.partition(":")[0]
      @events.log(:info, :worker_started, { name: name, handlers: @config.offers.map(&:pattern), slots: @config.slots,
                                            pid: @config.pid })
      look_for_brokers
      until @has_quit
        @session.actions(Identity.now_ms).each { |action| perform(action) }
        @runners.flush
        wait_for_work
        now = Identity.now_ms
        receive(now)
        read_mailbox(Identity.now_ms)
        check_drain(now)
        look_for_brokers if now >= @search.report_at_ms
      end
    end

    # Wait for a frame, an addition to the mailbox, or the time at which the session has to act.
    def wait_for_work
      at_ms = [@session.wake_at, @expel_at_ms, @leave_at_ms, @search.report_at_ms].min
      wait_ms = at_ms - Identity.now_ms
      return if wait_ms <= 0 || @has_quit

      if @session.awaits_results?
        # Results wait for others that end within this millisecond. No outcome needs to wake this thread meanwhile.
        @wire.poll_frames(1)
      elsif @mailbox.may_sleep?
        @mailbox.wake_up(@wire.poll([wait_ms, POLL_MAX_MS].min.to_i + 1))
      end
    end

    def receive(now)
      left_bytes = RECEIVE_BYTES_MAX
      RECEIVE_MAX.times do
        break if left_bytes <= 0

        frame = @wire.receive
        break if frame.nil?

        left_bytes -= frame.bytesize
        begin
          topic, body = Codec.split(frame)
        rescue InvalidMessage
          next
        end
        @session.receive(topic, body.force_encoding(Encoding::UTF_8), now)
      end
    end

    def read_mailbox(now)
      while (request = @mailbox.next_request)
        request.call
      end
      @mailbox.take_outcomes do |run, result|
        run.call = nil
        if result.nil?
          @session.give_back(run.key, now)
        else
          @session.finished(run.key, result, now)
        end
      end
    end

    def limit_drain(drain_ms)
      @expel_at_ms = [@expel_at_ms, Identity.now_ms + drain_ms].min
    end

    # After the time to drain, ask runs to stop. After EXPEL_MS, quit without waiting for them.
    def check_drain(now)
      if now >= @expel_at_ms
        @expel_at_ms = NEVER
        @leave_at_ms = now + (@session.expel.zero? ? 0 : EXPEL_MS)
      end
      @has_quit = true if now >= @leave_at_ms
    end

    # -- actions of the session ---------------------------------------------------------------------------------------

    def perform(action)
      case action
      when Run then @runners.submit(action)
      when Send then @wire.send_frame(action.topic, action.body)
      when CancelRun then cancel(action)
      when Connect then @wire.connect(action.link, action.server_key)
      when Disconnect then @wire.disconnect(action.link)
      when Rebuild then @wire.rebuild(action.link)
      when ResultTooLarge then RunLog.not_reported(action.step, action.result)
      when Log
        @events.log(action.level, action.event, action.facts)
        # A broker's `quit` begins a drain, too.
        limit_drain(Worker::DRAIN_MS) if action.event == :worker_drains && @expel_at_ms == NEVER
        look_for_brokers
      when Quit then @has_quit = true
      end
    end

    # The call of a run. Made by the handler's thread just before it begins: objects of steps that wait are a burden for
    # the garbage collector.
    def call_of(run)
      context = Context.new(run, @report_progress)
      handler = @handlers[run.offer]
      run.call = if run.step.needs_opening? then CallToOpen.new(run, handler, context, @edge)
                 else
                   HandlerCall.new(run, handler, context)
                 end
    end

    def look_for_brokers
      @search.update(@session.endpoints.without_session, Identity.now_ms)
    end

    def cancel(action)
      call = action.run.call
      return if call.nil?

      @events.line(*RunLog.interrupted(call.run.step, action.reason))
      call.context.request_stop(action.reason)
    end
  end
end
