# frozen_string_literal: true

require "socket"
require_relative "native"
require_relative "inherited_sockets"

module Stepwire
  # A handler process and its pipe, owned by one thread of the runner. The first call, and the next call after a kill,
  # fork a process.
  #
  # A handler process cannot outlive the worker: the kernel kills it when the thread that forked it ends. It is killed
  # when its step times out or is cancelled, so such a step has certainly ended. It has none of the worker's connections
  # to brokers: they would stay open after the worker's death.
  class ChildProcess
    POLL_S = 0.05 # the longest delay of a cancel; a result or the end of the process is noticed at once
    HEADER = "N" # the length of a message, 32 bits

    # `siblings` are the worker's ends of all pipes, which a new process must not keep open.
    def initialize(handlers, links, siblings)
      @handlers = handlers
      @links = links
      @siblings = siblings
      @pid = nil
      @pipe = nil
    end

    def perform(call)
      started_ms = Identity.now_ms
      step = call.step
      begin
        pipe = connected
        left_ms = call.run.timeout_at_ms - started_ms
        ChildProcess.write(pipe, [call.offer, step.to_a, left_ms == NEVER ? nil : left_ms, call.context.sealed?,
                                  call.secrets])
        answer_of(call, pipe, started_ms)
      rescue EOFError, SystemCallError
        text = "the process of '#{call.handler.name}' ended with #{ending(kill)} while it ran the step"
        result = Outcomes.sdk_failure(step, "process_died", text, retryable: true,
                                                                  took_ms: Identity.now_ms - started_ms)
        RunLog.not_reported(step, result)
        result
      end
    end

    # Kill the process. Returns its status; nil if there was none.
    def kill
      pid = @pid
      @pid = nil
      if @pipe
        @siblings.delete(@pipe)
        @pipe.close
        @pipe = nil
      end
      return if pid.nil?

      Process.kill(:KILL, pid)
      Process.wait2(pid)[1]
    rescue SystemCallError
      nil
    end

    def self.write(pipe, message)
      body = Marshal.dump(message)
      pipe.write([body.bytesize].pack(HEADER), body)
    end

    # Read one message. Raises EOFError.
    def self.read(pipe)
      size = pipe.read(4)
      raise EOFError if size.nil? || size.bytesize < 4

      size = size.unpack1(HEADER)
      body = pipe.read(size)
      raise EOFError if body.nil? || body.bytesize < size

      Marshal.load(body) # rubocop:disable Security/MarshalLoad -- written by this program's own process
    end

    private

    # The result, or what a kill at a timeout or a cancel makes of it.
    def answer_of(call, pipe, started_ms)
      loop do
        left_s = (call.run.timeout_at_ms - Identity.now_ms) / 1000
        reason = call.context.cancel_reason
        if reason.nil? && left_s.positive?
          next unless pipe.wait_readable([POLL_S, left_s].min)
        elsif !pipe.wait_readable(0)
          return stop(call, reason || "timeout", started_ms)
        end
        kind, *rest = ChildProcess.read(pipe)
        return result_of(rest) if kind == :result
        return GIVE_BACK if kind == :give_back

        call.context.progress(*rest)
      end
    end

    def stop(call, reason, started_ms)
      kill
      step = call.run.step
      return GIVE_BACK if reason == "shutdown" && !step.at_most_once?

      Outcomes.stopped(step, reason, Identity.now_ms - started_ms, call.handler.version)
    end

    def result_of(parts)
      Result.new(*parts)
    end

    def ending(status)
      return "an unknown status" if status.nil?

      status.signaled? ? "signal #{status.termsig}" : "exit code #{status.exitstatus}"
    end

    def connected
      kill if @pid && Process.wait2(@pid, Process::WNOHANG)
      return @pipe if @pid

      ours, theirs = UNIXSocket.pair
      parent = Process.pid
      $stdout.flush
      $stderr.flush
      @pid = Process.fork { child(ours, theirs, parent) }
      theirs.close
      @siblings << ours
      @pipe = ours
    end

    def child(ours, theirs, parent)
      Native.die_with_parent
      exit!(0) if Process.ppid != parent # the worker ended before the call
      ours.close
      @siblings.each { |pipe| pipe.close unless pipe.closed? }
      InheritedSockets.close(@links)
      ChildLoop.new(@handlers, theirs).serve
    rescue StandardError => e
      warn "a handler process has failed: #{e.full_message}"
    ensure
      exit!(0)
    end
  end

  # The life of a handler process: read steps and write results until the pipe closes.
  class ChildLoop
    def initialize(handlers, pipe)
      @handlers = handlers
      @pipe = pipe
      @lock = Mutex.new # threads of the handler may report progress
    end

    def serve
      # Ctrl-C and Ctrl-Z reach all processes of a terminal; the worker decides when its processes stop.
      trap("INT", "IGNORE")
      trap("TSTP", "IGNORE")
      trap("TERM", "DEFAULT")
      Process.setproctitle("stepwire handlers of #{Process.ppid}")
      loop { answer(*ChildProcess.read(@pipe)) }
    rescue EOFError, Errno::EPIPE, Errno::ECONNRESET
      nil
    end

    private

    # `secrets`: the values that the step holds, by name, to remove from the texts of this process.
    def answer(offer, members, left_ms, is_sealed, secrets)
      Redaction.remember(secrets)
      step = StepRequest.new(*members)
      # `ABSENT` is one object; its copy in this process is another.
      step.input = ABSENT if step.input.instance_of?(Object)
      at_ms = Identity.now_ms
      lease = Lease.new
      lease.until_ms = NEVER
      run = Run.new([step.step_id, step.delivery], step, offer, lease, left_ms || NEVER)
      context = Context.new(run, method(:report))
      context.open(step, is_sealed: true) if is_sealed
      call = HandlerCall.new(run, @handlers[offer], context)
      call.begin(at_ms)
      send_result(call.perform)
    end

    def send_result(result)
      return write([:give_back]) if result.nil?

      write([:result, *result])
    end

    def report(_item, done, total, note)
      write([:progress, done, total, note])
    end

    def write(message)
      @lock.synchronize { ChildProcess.write(@pipe, message) }
    end
  end

  # One handler process for each thread that performs a call.
  class ChildProcesses
    def initialize(handlers, links)
      @handlers = handlers
      @links = links
      @siblings = []
      @all = []
    end

    def perform(call)
      child = Thread.current[:stepwire_child]
      if child.nil?
        child = Thread.current[:stepwire_child] = ChildProcess.new(@handlers, @links, @siblings)
        @all << child
      end
      call.opened_and_closed { child.perform(call) }
    end

    # Kill all processes, because the program may continue without the worker.
    def kill
      @all.each(&:kill)
    end

    # True if this system guarantees that no handler process outlives the worker.
    def self.die_with_worker?
      Native::HAS_PRCTL
    end
  end
end
