# frozen_string_literal: true

require "socket"

module Stepwire
  # Why no broker answers at an endpoint: ZeroMQ reports nothing, so this module looks itself.
  module Reachability
    CONNECT_S = 1.0
    ELSEWHERE = "set STEPWIRE_STEPS and STEPWIRE_RESULTS to what `stepwire serve` prints"
    NOT_A_BROKER = "a process accepts connections there, but does not answer as a broker. Check that STEPWIRE_STEPS " \
                   "and STEPWIRE_RESULTS name the broker's `bus.steps` and `bus.results`, in this order, and not its " \
                   "HTTP address."

    module_function

    # The endpoint with an absolute path.
    def shown(endpoint)
      path = path_of(endpoint)
      path ? "ipc://#{File.expand_path(path)}" : endpoint
    end

    # The endpoint at fault, and why no broker answers there. Waits at most CONNECT_S for each connection.
    def diagnosis(link, public_key: nil)
      link.to_a.each do |endpoint|
        fault = fault(endpoint)
        return [shown(endpoint), fault] if fault
      end
      keys = "A broker with CURVE needs keys, STEPWIRE_CURVE_FILE"
      if public_key
        keys = "Check also the three CURVE keys: #{WorkerEvents.key_of(public_key)}, and its log for the code " \
               "(connection_refused)"
      end
      [shown(link.steps), "#{NOT_A_BROKER} #{keys}"]
    end

    # The path of an ipc endpoint; nil for other transports and for abstract names.
    def path_of(endpoint)
      scheme, _, rest = endpoint.partition("://")
      scheme == "ipc" && !rest.start_with?("@") ? rest : nil
    end

    def fault(endpoint)
      scheme, _, rest = endpoint.partition("://")
      path = path_of(endpoint)
      return fault_of_path(path) if path
      return unless scheme == "tcp"

      host, _, port = rest.rpartition(":")
      fault_of_address(host.delete("[]"), port.to_i)
    end

    def fault_of_path(path)
      return "this is not a socket. Remove it, or #{ELSEWHERE}" unless File.stat(path).socket?

      UNIXSocket.new(path).close
      nil
    rescue Errno::EACCES
      return "this user may not read the directory" unless File.exist?(path)

      "this user may not connect to the socket: run worker and broker as the same user"
    rescue Errno::ENOENT, Errno::ENOTDIR
      return "there is no such socket. Start the broker, or #{ELSEWHERE}" if path.start_with?("/")

      "there is no such socket. The path is relative to this directory: start the worker where the broker runs, or " \
        "#{ELSEWHERE}"
    rescue SystemCallError
      "the socket exists, but no process listens there. Start the broker"
    end

    def fault_of_address(host, port)
      Socket.tcp(host, port, connect_timeout: CONNECT_S).close
      nil
    rescue SocketError
      "the host name '#{host}' cannot be resolved: check its spelling, and the name service of this machine"
    rescue Errno::ETIMEDOUT
      "no answer: the host is down, or a firewall drops the connection"
    rescue Errno::ECONNREFUSED
      "no process listens on port #{port}. Start the broker with this endpoint, or #{ELSEWHERE}"
    rescue SystemCallError => e
      e.message.partition(" - ").first
    end
  end
end
