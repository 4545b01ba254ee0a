# frozen_string_literal: true

# The worker program of the tests that kill it, or that need a process of its own:
# `ruby program.rb STEPS RESULTS [SLOTS]`.
$LOAD_PATH.unshift(File.expand_path("../../lib", __dir__))
require "stepwire"

# Runs in a process of its own.
class Isolated
  include Stepwire::Handler
  handles "isolated.pid", process: true
  handles "isolated.wait", process: true

  def call(ctx, seconds: 0, **)
    ctx.progress(1, 2, "half") if ctx.handler_class == "isolated.wait"
    sleep(seconds)
    { pid: Process.pid, parent: Process.ppid, sockets: sockets }
  end

  # The peers of this process's sockets.
  def sockets
    Dir.children("/proc/self/fd").filter_map do |descriptor|
      next unless File.readlink("/proc/self/fd/#{descriptor}").start_with?("socket:")

      socket = BasicSocket.for_fd(descriptor.to_i)
      socket.autoclose = false
      address = socket.remote_address
      address.unix? ? address.unix_path : address.inspect_sockaddr
    rescue SystemCallError
      nil
    end
  end
end

worker = Stepwire::Worker.new(steps: ARGV[0], results: ARGV[1], name: "program", slots: Integer(ARGV[2] || "4"))
worker.add(Isolated)
worker.handler("isolated.fail", process: true) { |_| raise Stepwire::Permanent.new("no", code: "never") }
worker.handler("isolated.end", process: true) { |_| exit!(3) }
worker.handler("isolated.short", process: true, timeout_ms: 200) { |_| sleep(30) }
worker.handler("echo") { |_, input| input }
worker.handler("compute") do |_, ms:|
  until_ms = Stepwire::Identity.now_ms + ms
  nil while Stepwire::Identity.now_ms < until_ms
  { ms: ms }
end
worker.run
