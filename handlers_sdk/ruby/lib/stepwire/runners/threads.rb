# frozen_string_literal: true

module Stepwire
  # At most `threads_max` threads, which are started on demand. A handler that hangs only occupies its slot.
  #
  # Only one thread computes at a time in Ruby, so a thread that takes a run wakes at most one other, and does so
  # before it runs the handler. If the handler waits for anything, the other thread takes the next run. If it only
  # computes for some microseconds, the same thread takes the next one, and no switch between threads is lost on it.
  class ThreadRunner
    PASS_EVERY_MS = 1.0 # threads that run short handlers let the socket thread run this often

    # `call_of` makes the call of a run, and `perform` performs it in the current thread. `report` gets the run and the
    # outcome. `next_run` releases the slot of a run, and returns the run that this runner must start in its place.
    def initialize(threads_max, name, call_of, report, next_run, perform)
      @threads_max = threads_max
      @name = name
      @call_of = call_of
      @report = report
      @next_run = next_run
      @perform = perform
      @runs = []
      @threads = []
      @idle = 0
      @is_waking = false # a thread was woken or started, and has not looked for a run yet
      @is_stopped = false
      @lock = Mutex.new
      @changed = ConditionVariable.new
    end

    # Start these runs, which have slots.
    def submit(runs)
      @lock.synchronize do
        @runs.concat(runs)
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

    # Let another thread look for a run, if there is one to take. Called with the lock.
    def wake_another
      return if @is_waking || @runs.empty?

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
      while (run = take(following, is_new))
        is_new = false
        now = Identity.now_ms
        if now - passed_ms >= PASS_EVERY_MS
          Thread.pass
          passed_ms = now = Identity.now_ms
        end
        following = perform(run, now)
      end
    end

    # Queue the run that got the slot of the last one, and take the oldest run. Waits for one; nil at the end.
    #
    # `push` and `shift` of an Array are atomic. If another thread was woken, and will look for a run and wake the next
    # thread, or if no run is left, this thread needs no lock.
    def take(following, is_new)
      @runs.push(following) if following
      unless is_new
        run = @runs.shift
        return run if run && (@is_waking || @runs.empty?)

        @runs.unshift(run) if run
      end
      @lock.synchronize do
        @is_waking = false if is_new
        while @runs.empty?
          return if @is_stopped

          @idle += 1
          @changed.wait(@lock)
          @idle -= 1
          @is_waking = false
        end
        run = @runs.shift
        wake_another
        run
      end
    end

    # Perform a run, and report it. Returns the run that has its slot now.
    def perform(run, now)
      begin
        call = @call_of.call(run)
        outcome = call.begin(now) ? @perform.call(call) : GIVE_BACK
        is_alive = true
      ensure
        replace_thread(call) unless is_alive
      end
      following = @next_run.call(run)
      @report.call(run, outcome)
      following
    end

    # A handler has ended its thread (`Thread.exit`): report the run, and let another thread take the place.
    def replace_thread(call)
      run = call.run
      text = "handler '#{call.handler.name}' ended its thread: return a value or raise an error"
      result = Outcomes.sdk_failure(run.step, "thread_ended", text, retryable: true)
      RunLog.not_reported(run.step, result)
      result = call.closed(result)
      following = @next_run.call(run)
      @report.call(run, result)
      @lock.synchronize { @threads.delete(Thread.current) }
      submit([following].compact)
    end
  end
end
