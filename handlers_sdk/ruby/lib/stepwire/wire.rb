# frozen_string_literal: true

require "ffi-rzmq"

module Stepwire
  # The worker's two sockets: SUB receives from brokers, PUB sends to brokers. The worker connects, brokers bind. One
  # thread must create, use and close them. `protocol/SDK_GUIDE.md` §13 explains each option.
  class Wire
    # The functions of libzmq that this SDK calls, from the library that ffi-rzmq has loaded. ffi-rzmq itself releases
    # Ruby's lock in each call, and a handler that computes would get the lock for 100 ms every time. Here only `poll`
    # and `ctx_term` release it. ffi-rzmq's `setsockopt` also refuses some of the options below.
    module LibZmq
      extend FFI::Library
      ffi_lib(*::LibZMQ.ffi_libraries.map(&:name))

      attach_function :ctx_new, :zmq_ctx_new, [], :pointer
      attach_function :ctx_term, :zmq_ctx_term, [:pointer], :int, blocking: true
      attach_function :open, :zmq_socket, %i[pointer int], :pointer
      attach_function :close, :zmq_close, [:pointer], :int
      attach_function :setsockopt, :zmq_setsockopt, %i[pointer int pointer size_t], :int
      attach_function :connect, :zmq_connect, %i[pointer string], :int
      attach_function :disconnect, :zmq_disconnect, %i[pointer string], :int
      attach_function :send, :zmq_send, %i[pointer buffer_in size_t int], :int
      attach_function :msg_init, :zmq_msg_init, [:pointer], :int
      attach_function :msg_recv, :zmq_msg_recv, %i[pointer pointer int], :int
      attach_function :msg_data, :zmq_msg_data, [:pointer], :pointer
      attach_function :msg_more, :zmq_msg_more, [:pointer], :int
      attach_function :msg_close, :zmq_msg_close, [:pointer], :int
      attach_function :poll, :zmq_poll, %i[pointer int long], :int, blocking: true
      attach_function :strerror, :zmq_strerror, [:int], :string
      attach_function :has, :zmq_has, [:string], :int
      attach_function :curve_public, :zmq_curve_public, %i[pointer string], :int
    end

    PUB = 1
    SUB = 2
    DONTWAIT = 1
    POLLIN = 1
    POLL_ITEM_BYTES = 16
    MESSAGE_BYTES = 64

    # name → [number, type]
    OPTIONS = {
      subscribe: [6, :text], linger: [17, :int], reconnect_ivl: [18, :int], reconnect_ivl_max: [21, :int],
      maxmsgsize: [22, :int64], sndhwm: [23, :int], rcvhwm: [24, :int], tcp_keepalive: [34, :int],
      tcp_keepalive_cnt: [35, :int], tcp_keepalive_idle: [36, :int], tcp_keepalive_intvl: [37, :int],
      immediate: [39, :int], ipv6: [42, :int], curve_publickey: [48, :text], curve_secretkey: [49, :text],
      curve_serverkey: [50, :text], handshake_ivl: [66, :int], heartbeat_ivl: [75, :int], tcp_maxrt: [80, :int]
    }.freeze

    BOTH = {
      linger: 0, immediate: 0, heartbeat_ivl: 0, tcp_keepalive: 1, tcp_keepalive_idle: 15, tcp_keepalive_intvl: 5,
      tcp_keepalive_cnt: 3, reconnect_ivl: 100, reconnect_ivl_max: 1000, handshake_ivl: 5000, ipv6: 1
    }.freeze
    # Credit limits the number of messages to the SUB, and a finite mark can abort the process.
    OF_SUB = { rcvhwm: 0, maxmsgsize: Limits::FRAME_BYTES_MAX }.freeze
    OF_PUB = { sndhwm: 10_000, maxmsgsize: 64 * 1024, tcp_maxrt: 20_000 }.freeze

    LINGER_MS = 2_000

    # A call of libzmq has failed.
    class Failure < Error; end

    # `events` logs endpoints that cannot be connected. `wake` is a descriptor that also ends a poll.
    def initialize(worker_id, links, curve, wake, events)
      @events = events
      @curve = curve
      @server_keys = {} # of links
      @context = LibZmq.ctx_new
      @sub = LibZmq.open(@context, SUB)
      @pub = LibZmq.open(@context, PUB)
      raise Failure, "no socket: #{LibZmq.strerror(FFI.errno)}" if @sub.null? || @pub.null?

      @message = FFI::MemoryPointer.new(:uint8, MESSAGE_BYTES)
      check(LibZmq.msg_init(@message), "zmq_msg_init")
      @items = poll_items(wake)
      configure(worker_id)
      links.each { |link| connect(link) }
    end

    # The next frame, or nil if there is none. A message of several frames is dropped.
    def receive
      loop do
        size = LibZmq.msg_recv(@message, @sub, DONTWAIT)
        return if size.negative?

        return LibZmq.msg_data(@message).get_bytes(0, size) if LibZmq.msg_more(@message).zero?

        skip_the_rest
      end
    end

    # Send one frame. PUB never blocks; at a broker's high-water mark the frame is lost, and its sender resends it.
    def send_frame(topic, body)
      frame = topic + body
      rc = LibZmq.send(@pub, frame, frame.bytesize, DONTWAIT)
      @events.log(:error, :send_failed, error: LibZmq.strerror(FFI.errno)) if rc.negative?
    end

    # Wait until a frame or a wake-up arrives, at most `timeout_ms`. True if there is a wake-up.
    def poll(timeout_ms)
      @items.put_int16(14, 0)
      @items.put_int16(POLL_ITEM_BYTES + 14, 0)
      LibZmq.poll(@items, 2, timeout_ms) # a signal ends it early, with -1
      @items.get_int16(POLL_ITEM_BYTES + 14) != 0
    end

    # Wait for a frame only.
    def poll_frames(timeout_ms)
      @items.put_int16(14, 0)
      LibZmq.poll(@items, 1, timeout_ms)
    end

    # `server_key`: the broker's own CURVE key, if another broker has listed it with one.
    def connect(link, server_key = nil)
      @server_keys[link] = server_key
      { @sub => link.steps, @pub => link.results }.each do |socket, endpoint|
        set(socket, :curve_serverkey, server_key || @curve.server) if @curve
        next unless LibZmq.connect(socket, endpoint).negative?

        @events.log(:error, :connect_failed, endpoint: endpoint, error: LibZmq.strerror(FFI.errno))
      end
    end

    # An error only says that libzmq has dropped the connection already.
    def disconnect(link)
      LibZmq.disconnect(@sub, link.steps)
      LibZmq.disconnect(@pub, link.results)
    end

    def rebuild(link)
      disconnect(link)
      connect(link, @server_keys[link])
    end

    def close
      LibZmq.close(@sub)
      set(@pub, :linger, LINGER_MS)
      LibZmq.close(@pub)
      LibZmq.msg_close(@message)
      LibZmq.ctx_term(@context)
    end

    private

    def configure(worker_id)
      { @sub => OF_SUB, @pub => OF_PUB }.each do |socket, own|
        BOTH.merge(own).each { |name, value| set(socket, name, value) }
        next unless @curve

        set(socket, :curve_publickey, @curve.public)
        set(socket, :curve_secretkey, @curve.secret)
      end
      set(@sub, :subscribe, Topics.to_worker(worker_id))
      set(@sub, :subscribe, Topics::BROKERS)
    end

    def set(socket, name, value)
      number, type = OPTIONS.fetch(name)
      memory = case type
               when :int then FFI::MemoryPointer.new(:int).write_int(value)
               when :int64 then FFI::MemoryPointer.new(:int64).write_int64(value)
               else FFI::MemoryPointer.from_string(value)
               end
      size = type == :text ? value.bytesize : memory.size
      check(LibZmq.setsockopt(socket, number, memory, size), "the socket option #{name}")
    end

    def check(code, what)
      raise Failure, "#{what}: #{LibZmq.strerror(FFI.errno)}" if code.negative?
    end

    # Two items of zmq_pollitem_t: the SUB socket, and the descriptor of the wake-up.
    def poll_items(wake)
      items = FFI::MemoryPointer.new(:uint8, 2 * POLL_ITEM_BYTES)
      items.put_pointer(0, @sub)
      items.put_int16(12, POLLIN)
      items.put_int(POLL_ITEM_BYTES + 8, wake)
      items.put_int16(POLL_ITEM_BYTES + 12, POLLIN)
      items
    end

    def skip_the_rest
      loop { break if LibZmq.msg_recv(@message, @sub, DONTWAIT).negative? || LibZmq.msg_more(@message).zero? }
    end
  end
end
