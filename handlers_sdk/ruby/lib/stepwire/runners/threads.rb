# frozen_string_literal: true

module Stepwire
  # At most `threads_max` threads, which are started on demand. A handler that hangs only occupies its slot.
  #
  # Only one thread computes at a time in Ruby, so a thread that takes a call wakes at most one other, and does so
  # before it runs the handler. If the handler waits for anything, the other thread takes the next call. If it only
  # computes for some microseconds, the same thread takes the next one, and no switch between threads is lost on it.
  class ThreadRunner
    PASS_EVERY_MS = 1.0 # threads that run short handlers let the socket thread run this often

    # `report` gets the run and the outcome of each call. `next_call` releases a call's slot, and returns the call that
    # this runner must start in its place. `perform` runs one call in the current thread.
    def initialize(threads_max, name, report, next_call, perform)
      @threads_max = threads_max
      @name = name
      @report = report
      @next_call = next_call
      @perform = perform
      @calls = []
      @threads = []
      @idle = 0
      @is_waking = false # a thread was woken or started, and has not looked for a call yet
      @is_stopped = false
      @lock = Mutex.new
      @changed = ConditionVariable.new
    end

    # Start these calls, which have slots.
    def submit(calls)
      @lock.synchronize do
        @calls.concat(calls)
        wake_another
      end
    end

    # End the threads. Wait at most `wait_s` for threads that are in a handler.
    def stop(wait_s)
      @lock.synchronize do
        @is_stopped = true
        @changed.broadcast
      end
      until_ms = Identity.now_ms + (wait_s * 1000)
      @threads.each { |thread| thread.join([0.0, (until_ms - Identity.now_ms) / 1000].max) }
    end

    private

    # Let another thread look for a call, if there is one to take. Called with the lock.
    def wake_another
      return if @is_waking || @calls.empty?

      if @idle.positive?
        @changed.signal
      elsif @threads.size < @threads_max
        start_thread
      else
        return
      end
      @is_waking = true
    end

    def start_thread
      number = @threads.size + 1
      @threads << Thread.new do
        Thread.current.name = "#{@name}-#{number}"
        serve
      end
    end

    def serve
      passed_ms = Identity.now_ms
      following = nil
      is_new = true
      while (call = take(following, is_new))
        is_new = false
        now = Identity.now_ms
        if now - passed_ms >= PASS_EVERY_MS
          Thread.pass
          passed_ms = now = Identity.now_ms
        end
        following = run(call, now)
      end
    end

    # Queue the call that got the slot of the last one, and take the oldest call. Waits for one; nil at the end.
    def take(following, is_new)
      @lock.synchronize do
        @is_waking = false if is_new
        @calls << following if following
        while @calls.empty?
          return if @is_stopped

          @idle += 1
          @changed.wait(@lock)
          @idle -= 1
          @is_waking = false
        end
        call = @calls.shift
        wake_another
        call
      end
    end

    # Run one call, and report it. Returns the call that has its slot now.
    def run(call, now)
      begin
        outcome = call.begin(now) ? @perform.call(call) : GIVE_BACK
        is_alive = true
      ensure
        replace_thread(call) unless is_alive
      end
      following = @next_call.call(call)
      @report.call(call.run, outcome)
      following
    end

    # A handler has ended its thread (`Thread.exit`): report the run, and let another thread take the place.
    def replace_thread(call)
      text = "handler '#{call.handler.name}' ended its thread: return a value or raise an error"
      result = Outcomes.sdk_failure(call.run.step, "thread_ended", text, retryable: true)
      RunLog.not_reported(call.run.step, result)
      result = call.closed(result)
      following = @next_call.call(call)
      @report.call(call.run, result)
      @lock.synchronize { @threads.delete(Thread.current) }
      submit([following].compact)
    end
  end
end
