# frozen_string_literal: true

module Stepwire
  # Passes outcomes of calls and requests from other threads to the socket thread, and wakes it. Any thread may add
  # them, also from a signal handler; only the socket thread removes them. `push` and `shift` of an Array are atomic.
  class Mailbox
    def initialize
      @outcomes = [] # of each call two elements: its run and its result
      @requests = []
      @is_awake = true # the socket thread reads the mailbox soon without being woken
      @reader, @writer = IO.pipe
    end

    # A descriptor that is readable when the socket thread must wake up.
    def fileno
      @reader.fileno
    end

    def put_request(&request)
      @requests.push(request)
      wake
    end

    def put_outcome(run, result)
      @outcomes.push(run, result)
      wake unless @is_awake
    end

    def next_request
      @requests.shift
    end

    # Yield each run with its result, and remove them.
    def take_outcomes
      while (run = @outcomes.shift)
        yield run, @outcomes.shift
      end
    end

    # Called by the socket thread before it sleeps: from now on, additions wake it. False if there are some now.
    def may_sleep?
      @is_awake = false
      @is_awake = true unless @outcomes.empty? && @requests.empty?
      !@is_awake
    end

    # Called by the socket thread after it slept: additions need not wake it.
    def wake_up(is_readable)
      @is_awake = true
      @reader.read_nonblock(4096, exception: false) if is_readable
    end

    def close
      @reader.close
      @writer.close
    end

    private

    def wake
      return if @is_awake

      @is_awake = true
      @writer.write_nonblock("\0", exception: false)
    rescue IOError
      nil # the thread has ended
    end
  end
end
