# frozen_string_literal: true

require "ffi-rzmq"
require "json"

# A broker on real sockets, without state: welcomes workers, acknowledges heartbeats and results, and records every
# message. A test sends it steps. Runs in a thread of its own.
class PlayedBroker
  CURVE_SERVER = 47
  CURVE_SECRETKEY = 49

  attr_reader :steps_endpoint, :results_endpoint, :messages, :session
  attr_accessor :acks_results, :acks_heartbeats, :brokers, :epoch

  def initialize(steps, results, id: "b1", epoch: 7, lease_ms: 2_000, heartbeat_ms: 100, server_secret: nil)
    @steps_endpoint = steps
    @results_endpoint = results
    @id = id
    @epoch = epoch
    @lease_ms = lease_ms
    @heartbeat_ms = heartbeat_ms
    @server_secret = server_secret
    @messages = []
    @outgoing = Thread::Queue.new
    @acks_results = true
    @acks_heartbeats = true
    @batches = 0
    @is_closing = false
    @ready = Thread::Queue.new
    @thread = Thread.new { serve }
    @ready.pop
  end

  def self.ipc(directory, **options)
    new("ipc://#{directory}/steps.sock", "ipc://#{directory}/results.sock", **options)
  end

  def self.tcp(**options)
    ports = Array.new(2) { TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] } }
    new(*ports.map { |port| "tcp://127.0.0.1:#{port}" }, **options)
  end

  # Send a batch to the worker that said hello last. Returns the id of the batch.
  def send_steps(*steps)
    batch_id = "batch_5e1d_#{@batches += 1}"
    post("steps", session: @session, batch_id: batch_id, protocol_version: "2.0", steps: steps)
    batch_id
  end

  def post(type, **members)
    @outgoing << ["@#{@worker} ", { type: type, v: "2.0", broker: @id, epoch: @epoch, **members }]
  end

  def step(id, handler_class, context = {}, **members)
    metadata = { attempt: 0, retry_limit: 3, timeout_ms: 30_000, idempotency_key: "k#{id}/s" }
    metadata.merge!(members.delete(:metadata) || {})
    { step_id: id, task_id: 1, step_name: "s", handler_class: handler_class, task_context: context, delivery: 1,
      metadata: metadata, **members }
  end

  def all(type)
    @messages.select { |message| message["type"] == type }
  end

  # The results of all messages, by step id.
  def results
    all("results").flat_map { |message| message["results"] }.to_h { |result| [result["step_id"], result] }
  end

  def wait_for_result(step_id, within_s: 10)
    Helper.eventually("a result of step #{step_id}", within_s: within_s) { results[step_id] }
  end

  def wait_for_session
    Helper.eventually("a heartbeat in the session") do
      all("heartbeat").any? { |message| @session && message.dig("sessions", @id) == @session }
    end
  end

  def close
    @is_closing = true
    @thread.join
  end

  private

  def serve
    @context = ZMQ::Context.new
    @pub = bind(ZMQ::PUB, @steps_endpoint)
    @sub = bind(ZMQ::SUB, @results_endpoint)
    @sub.setsockopt(ZMQ::SUBSCRIBE, "")
    @ready << true
    until @is_closing
      pump
      sleep(0.001)
    end
  ensure
    [@pub, @sub].compact.each(&:close)
    @context.terminate
  end

  def bind(kind, endpoint)
    socket = @context.socket(kind)
    socket.setsockopt(ZMQ::LINGER, 0)
    socket.setsockopt(ZMQ::SNDHWM, 0) if kind == ZMQ::PUB
    if @server_secret
      socket.setsockopt(CURVE_SERVER, 1)
      socket.setsockopt(CURVE_SECRETKEY, @server_secret)
    end
    raise "cannot bind #{endpoint}: #{ZMQ::Util.error_string}" unless socket.bind(endpoint).zero?

    socket
  end

  def pump
    frame = +""
    while @sub.recv_string(frame, ZMQ::DONTWAIT) >= 0
      answer(JSON.parse(frame.split(" ", 2).last))
      frame = +""
    end
    until @outgoing.empty?
      topic, message = @outgoing.pop
      @pub.send_string(topic + JSON.generate(message))
    end
  end

  def answer(message)
    message["at"] = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    @messages << message
    case message["type"]
    when "hello" then welcome(message)
    when "heartbeat" then acknowledge(message)
    when "results" then post("ack", rids: [message["rid"]]) if @acks_results
    end
  end

  # A worker that does not know this broker yet gets `here`, as from the welcome message of an XPUB socket.
  def acknowledge(heartbeat)
    return unless @acks_heartbeats

    @worker = heartbeat["worker"]
    return post("here", deployment: "d", versions: ["2.0"]) unless heartbeat.dig("next", @id)

    post("heartbeat_ack", session: @session, n: heartbeat["n"]) if @session
  end

  def welcome(hello)
    @worker = hello["worker"]
    k = hello.dig("next", @id)
    return post("here", deployment: "d", versions: ["2.0"]) if k.nil?

    @session = "#{@epoch}.#{k}"
    post("welcome", session: @session, deployment: "d", n: hello["n"], lease_ms: @lease_ms,
                    heartbeat_ms: @heartbeat_ms, max_message_bytes: 4_194_304, brokers: @brokers || [])
  end
end
