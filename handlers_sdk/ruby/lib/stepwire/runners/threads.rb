# frozen_string_literal: true

module Stepwire
  # At most `threads_max` threads, which are started on demand. A handler that hangs only occupies its slot.
  class ThreadRunner
    # `report` gets the item and the outcome of each call. `next_call` releases a call's slot, and returns the call that
    # has the slot now. `perform` runs one call in the current thread.
    def initialize(threads_max, name, report, next_call, perform)
      @threads_max = threads_max
      @name = name
      @report = report
      @next_call = next_call
      @perform = perform
      @calls = Thread::Queue.new
      @threads = []
      @waiting = 0 # calls without a thread
      @idle = 0
      @lock = Mutex.new
    end

    def submit(call)
      @lock.synchronize do
        @waiting += 1
        start_thread if @waiting > @idle && @threads.size < @threads_max
      end
      @calls << call
    end

    # End the threads. Wait at most `wait_s` for threads that are in a handler.
    def stop(wait_s)
      @calls.close
      until_ms = Identity.now_ms + (wait_s * 1000)
      @threads.each { |thread| thread.join([0.0, (until_ms - Identity.now_ms) / 1000].max) }
    end

    private

    def start_thread
      @idle += 1
      @threads << Thread.new do
        Thread.current.name = "#{@name}-#{@threads.size}"
        Thread.current.report_on_exception = true
        serve
      end
    end

    def serve
      while (call = @calls.pop)
        @lock.synchronize do
          @waiting -= 1
          @idle -= 1
        end
        call = run(call) while call
        @lock.synchronize { @idle += 1 }
      end
    end

    # Run one call, and report it. Returns the call that has its slot now.
    def run(call)
      begin
        outcome = call.begin(Identity.now_ms) ? @perform.call(call) : GIVE_BACK
        is_alive = true
      ensure
        replace_thread(call) unless is_alive
      end
      following = @next_call.call(call)
      @report.call(call.run.item, outcome)
      following
    end

    # A handler has ended its thread (`Thread.exit`): report the run, and let another thread take the place.
    def replace_thread(call)
      @lock.synchronize { @threads.delete(Thread.current) }
      text = "handler '#{call.handler.name}' ended its thread: return a value or raise an error"
      result = Outcomes.sdk_failure(call.run.step, "thread_ended", text, retryable: true)
      RunLog.not_reported(call.run.step, result)
      following = @next_call.call(call)
      @report.call(call.run.item, result)
      submit(following) if following
    end
  end
end
