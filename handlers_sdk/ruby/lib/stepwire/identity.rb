# frozen_string_literal: true

require "securerandom"
require "socket"

module Stepwire
  # The identity of this process as a worker, and the clock that measures leases.
  module Identity
    # The clock also counts sleep: after an hour of sleep, a laptop's lease is over.
    CLOCK = Process.const_defined?(:CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC

    STARTED = 19 # field 22 of /proc/<pid>/stat, counted after the name, which may contain any character

    # The facts with which a broker on the same host can prove the death of this process. `pid_started` is in clock
    # ticks after boot; 0 where there is no /proc.
    ThisProcess = Struct.new(:host, :pid, :pid_started, :is_provable)

    module_function

    def now_ms
      Process.clock_gettime(CLOCK, :float_millisecond)
    end

    def this_process
      known = host
      started = pid_started
      shown = known.empty? ? "#{RUBY_PLATFORM[/[a-z]+\z/] || 'unknown'}:#{Socket.gethostname}" : known
      ThisProcess.new(shown, Process.pid, started, !known.empty? && started.positive?)
    end

    # `hello.host`: boot id, pid namespace and time namespace. Empty if /proc cannot be trusted.
    def host
      return "" unless File.readlink("/proc/self") == Process.pid.to_s # this /proc belongs to another pid namespace

      boot = File.read("/proc/sys/kernel/random/boot_id").strip
      "#{boot}:#{File.stat('/proc/self/ns/pid').ino}:#{inode('/proc/self/ns/time')}"
    rescue SystemCallError
      ""
    end

    # `hello.pid_started`: the start time of this process in clock ticks after boot; 0 when unknown.
    def pid_started
      stat = File.binread("/proc/#{Process.pid}/stat")
      stat[(stat.rindex(")") + 2)..].split[STARTED].to_i
    rescue SystemCallError, NoMethodError
      0
    end

    # Returns a new id at every call, because a process that restarts or forks is another worker.
    def new_worker_id(name)
      "#{name}:#{SecureRandom.hex(8)}"
    end

    def inode(path)
      File.stat(path).ino
    rescue SystemCallError
      0 # a kernel without time namespaces
    end
  end
end
