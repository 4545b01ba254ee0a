# frozen_string_literal: true

require_relative "helper"

# Workers in this process, on real sockets, against a played broker.
class WorkerTest < Minitest::Test
  def setup
    @directory = Dir.mktmpdir
    @brokers = []
  end

  def teardown
    @worker&.stop(0)
    @brokers.each(&:close)
    FileUtils.remove_entry(@directory)
  end

  def ipc_broker(**options)
    PlayedBroker.ipc(@directory, **options).tap { |broker| @brokers << broker }
  end

  def tcp_broker(**options)
    PlayedBroker.tcp(**options).tap { |broker| @brokers << broker }
  end

  # A worker that is connected to this broker.
  def start(broker, **options)
    @worker = Stepwire::Worker.new(steps: broker.steps_endpoint, results: broker.results_endpoint, name: "t", **options)
    yield @worker
    @worker.start
    broker.wait_for_session
    @worker
  end

  def test_a_step_runs_over_ipc_and_over_tcp
    [ipc_broker, tcp_broker].each do |broker|
      start(broker) { |worker| worker.handler("echo") { |_, input| input } }
      broker.send_steps(broker.step(1, "echo", { a: ["é", 1.5, nil] }))
      result = broker.wait_for_result(1)
      assert_equal ["completed", { "a" => ["é", 1.5, nil] }], result.values_at("status", "output")
      @worker.stop(0)
    end
  end

  def test_hello_has_what_a_broker_needs_for_a_proof_of_death
    broker = ipc_broker
    start(broker, handler_version: "7.1", labels: { region: "eu" }) { |worker| worker.handler("echo") { |_| 1 } }
    hello = broker.all("hello").first
    assert_equal [Process.pid, true, "7.1", { "region" => "eu" }, "ruby"],
                 hello.values_at("pid", "proof", "handler_version", "labels", "lang")
    assert_match(/\A[0-9a-f-]{36}:\d+:\d+\z/, hello["host"])
    assert_equal File.read("/proc/self/stat").rpartition(") ").last.split[19].to_i, hello["pid_started"]
  end

  def test_a_payload_of_one_mebibyte_passes_both_ways
    broker = tcp_broker
    start(broker) { |worker| worker.handler("echo") { |_, input| input } }
    text = "é" * (512 * 1024)
    broker.send_steps(broker.step(1, "echo", { text: text }))
    assert_equal text, broker.wait_for_result(1)["output"]["text"]
  end

  def test_a_thousand_steps_run_once_each
    broker = ipc_broker
    runs = Thread::Queue.new
    start(broker, slots: 4) { |worker| worker.handler("count") { |ctx| runs << ctx.step_id } }
    (1..1000).each_slice(10) { |ids| broker.send_steps(*ids.map { |id| broker.step(id, "count") }) }
    Helper.eventually("1000 results", within_s: 20) { broker.results.size == 1000 || resend(broker) }
    assert_equal (1..1000).to_a, Array.new(runs.size) { runs.pop }.sort
  end

  # Steps above the credit are refused as busy: as a real broker, send those again, in a new delivery.
  def resend(broker)
    refused = broker.all("refuse").flat_map { |message| message["items"] }
    new = refused.uniq - (@resent ||= [])
    @resent += new
    new.each_slice(10) do |items|
      broker.send_steps(*items.map { |id, delivery| broker.step(id, "count", delivery: delivery + 1) })
    end
    nil
  end

  def test_an_unacknowledged_result_is_sent_again_and_to_every_broker_from_the_third_try_on
    broker = ipc_broker
    broker.acks_results = false
    start(broker) { |worker| worker.handler("echo") { |_| 1 } }
    broker.send_steps(broker.step(1, "echo"))
    Helper.eventually("three tries on two topics") { broker.all("results").size >= 4 }
    assert_equal [1], broker.all("results").map { |message| message["rid"] }.uniq
  end

  def test_an_at_most_once_step_runs_after_its_go_only
    broker = ipc_broker
    runs = Thread::Queue.new
    start(broker) { |worker| worker.handler("pay") { |ctx| runs << ctx.delivery } }
    broker.send_steps(broker.step(1, "pay", delivery_mode: "at_most_once"))
    Helper.eventually("start") { broker.all("start").any? }
    assert runs.empty?
    2.times { broker.post("go", session: broker.all("start").last["session"], items: [[1, 1]]) }
    broker.wait_for_result(1)
    assert_equal 1, runs.size
  end

  def test_a_cancelled_run_is_told_and_its_thread_is_not_killed
    broker = ipc_broker
    start(broker) { |worker| worker.handler("wait") { |ctx| ctx.cancelled.wait(5) && ctx.cancel_reason } }
    broker.send_steps(broker.step(1, "wait"))
    session = Helper.eventually("the run") do
      broker.all("heartbeat").last&.then { |m| m["sessions"]["b1"] if m.to_s.include?("running") }
    end
    broker.post("cancel", session: session, items: [[1, 1]], reason: "task_cancelled")
    assert_equal "task_cancelled", broker.wait_for_result(1)["output"]
  end

  def test_a_run_is_asked_to_stop_at_its_timeout
    broker = ipc_broker
    start(broker) { |worker| worker.handler("wait", timeout_ms: 50) { |ctx| ctx.sleep(5) } }
    broker.send_steps(broker.step(1, "wait"))
    assert_equal "timeout", broker.wait_for_result(1).dig("error", "code")
  end

  def test_a_handler_that_ends_its_thread_costs_its_step_and_no_slot
    broker = ipc_broker
    start(broker, slots: 1) do |worker|
      worker.handler("exit") { |_| Thread.exit }
      worker.handler("echo") { |_| "alive" }
    end
    broker.send_steps(broker.step(1, "exit"), broker.step(2, "echo"))
    assert_equal "thread_ended", broker.wait_for_result(1).dig("error", "code")
    assert_equal "alive", broker.wait_for_result(2)["output"]
  end

  def test_a_drain_returns_what_has_not_started_and_finishes_what_runs
    broker = ipc_broker
    start(broker, slots: 1, prefetch: 5) { |worker| worker.handler("wait") { |ctx| ctx.cancelled.wait(0.3).to_s } }
    broker.send_steps(*(1..3).map { |id| broker.step(id, "wait") })
    Helper.eventually("the first run") { broker.all("heartbeat").last.to_s.include?("running") }
    @worker.stop
    assert_equal "completed", broker.results[1]["status"]
    refused = broker.all("refuse").select { |message| message["code"] == "draining" }
    assert_equal [[2, 1], [3, 1]], refused.flat_map { |message| message["items"] }.sort
    assert broker.all("bye").any?
  end

  def test_a_worker_finds_a_broker_that_starts_later_and_one_that_restarts
    directory = @directory
    @worker = Stepwire::Worker.new(steps: "ipc://#{directory}/steps.sock", results: "ipc://#{directory}/results.sock")
    @worker.handler("echo") { |_, input| input }
    @worker.start
    sleep(0.3)
    first = PlayedBroker.ipc(directory)
    first.wait_for_session
    first.close
    second = ipc_broker(epoch: 8)
    second.wait_for_session
    second.send_steps(second.step(1, "echo", { a: 1 }))
    assert_equal({ "a" => 1 }, second.wait_for_result(1)["output"])
  end

  def test_a_broker_that_another_one_lists_is_connected
    listed = tcp_broker(id: "b2")
    first = ipc_broker
    first.brokers = [{ broker: "b1", steps: first.steps_endpoint, results: first.results_endpoint },
                     { broker: "b2", steps: listed.steps_endpoint, results: listed.results_endpoint }]
    start(first) { |worker| worker.handler("echo") { |_, input| input } }
    listed.wait_for_session
    listed.send_steps(listed.step(5, "echo", { a: 2 }))
    assert_equal({ "a" => 2 }, listed.wait_for_result(5)["output"])
  end

  def test_with_curve_the_keys_decide
    server_public, server_secret = ZMQ::Util.curve_keypair
    public_key, secret_key = ZMQ::Util.curve_keypair
    broker = tcp_broker(server_secret: server_secret)
    keys = { curve_server_key: server_public, curve_public_key: public_key, curve_secret_key: secret_key }
    start(broker, **keys) { |worker| worker.handler("echo") { |_, input| input } }
    broker.send_steps(broker.step(1, "echo", { a: 1 }))
    assert_equal "completed", broker.wait_for_result(1)["status"]
    @worker.stop(0)

    silent = tcp_broker(server_secret: server_secret)
    keys[:curve_server_key] = public_key
    @worker = Stepwire::Worker.new(steps: silent.steps_endpoint, results: silent.results_endpoint, **keys)
    @worker.handler("echo") { |_| 1 }
    @worker.start
    sleep(0.5)
    assert_empty silent.messages
  end

  def test_one_failing_log_pipe_does_not_stop_the_heartbeats
    reader, writer = IO.pipe
    before = Stepwire.logger
    Stepwire.logger = Logger.new(writer)
    broker = ipc_broker
    start(broker) { |worker| worker.handler("noisy") { |_| raise "x" * 400 } }
    fill(writer)
    broker.send_steps(broker.step(1, "noisy", metadata: { retry_limit: 0 }))
    heartbeats = broker.all("heartbeat").size
    Helper.eventually("more heartbeats") { broker.all("heartbeat").size > heartbeats + 5 }
  ensure
    Stepwire.logger = before
    Thread.new { nil while reader.read(65_536) }
    @worker.stop(0)
    @worker = nil
    writer.close
  end

  # Until nobody could write another byte.
  def fill(pipe)
    loop { pipe.write_nonblock("x" * 4096) }
  rescue IO::WaitWritable
    nil
  end
end
