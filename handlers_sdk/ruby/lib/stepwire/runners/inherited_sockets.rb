# frozen_string_literal: true

require "socket"
require_relative "native"

module Stepwire
  # Drops the connections to brokers that a forked process has inherited. libzmq does not tell their descriptors, so
  # they are found by their peer: a broker's endpoint. Other descriptors, such as those of a database driver, stay.
  module InheritedSockets
    module_function

    def close(links)
      endpoints = links.flat_map(&:to_a)
      own = ObjectSpace.each_object(IO).filter_map { |io| own_descriptor(io) }
      File.open(File::NULL, File::RDWR) do |null|
        descriptors.each do |descriptor|
          next if own.include?(descriptor) || descriptor == null.fileno || !socket?(descriptor)

          Native.replace_with_null(descriptor, null) if broker?(descriptor, endpoints)
        end
      end
    end

    def own_descriptor(io)
      io.closed? ? nil : io.fileno
    rescue IOError
      nil # never opened
    end

    def descriptors
      Dir.children("/proc/self/fd").map(&:to_i)
    rescue SystemCallError
      []
    end

    def socket?(descriptor)
      File.readlink("/proc/self/fd/#{descriptor}").start_with?("socket:")
    rescue SystemCallError
      false # the descriptor of the listing itself
    end

    # True if the peer is a broker, or if there is none yet: a connection that libzmq is just making.
    def broker?(descriptor, endpoints)
      socket = BasicSocket.for_fd(descriptor)
      socket.autoclose = false
      return false unless [Socket::AF_UNIX, Socket::AF_INET, Socket::AF_INET6].include?(socket.local_address.afamily)

      peer = socket.remote_address
      endpoints.any? { |endpoint| at?(peer, endpoint) }
    rescue Errno::ENOTCONN
      true
    rescue SystemCallError
      false
    end

    def at?(peer, endpoint)
      scheme, _, rest = endpoint.partition("://")
      if peer.unix?
        scheme == "ipc" && peer.unix_path == rest
      else
        scheme == "tcp" && peer.ip_port == rest[/[0-9]+\z/].to_i
      end
    end
  end
end
