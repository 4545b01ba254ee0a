# frozen_string_literal: true

require_relative "helper"

# A worker program in a process of its own: handler processes, kills, signals, and heartbeats beside busy handlers.
class ProgramTest < Minitest::Test
  PROGRAM = File.expand_path("support/program.rb", __dir__)

  def setup
    @directory = Dir.mktmpdir
    @broker = nil
    @pid = nil
  end

  def teardown
    if @pid
      Process.kill(:KILL, @pid)
      Process.wait(@pid)
    end
    @broker&.close
    FileUtils.remove_entry(@directory)
  end

  def start(broker, slots: 4)
    @broker = broker
    @pid = spawn("ruby", PROGRAM, broker.steps_endpoint, broker.results_endpoint, slots.to_s, err: "#{@directory}/log")
    broker.wait_for_session
  end

  def start_over_ipc(**options)
    start(PlayedBroker.ipc(@directory), **options)
  end

  def run_step(id, handler_class, context = {}, **members)
    @broker.send_steps(@broker.step(id, handler_class, context, **members))
    @broker.wait_for_result(id)
  end

  def alive?(pid)
    Process.kill(0, pid)
    File.read("/proc/#{pid}/stat").rpartition(") ").last[0] != "Z"
  rescue Errno::ESRCH, Errno::ENOENT
    false
  end

  def log
    File.read("#{@directory}/log")
  end

  # -- handler processes ----------------------------------------------------------------------------------------------

  def test_a_handler_process_is_a_child_and_serves_many_steps
    start_over_ipc(slots: 1)
    outputs = (1..3).map { |id| run_step(id, "isolated.pid")["output"] }
    assert_equal [@pid], outputs.map { |output| output["parent"] }.uniq
    assert_equal 1, outputs.map { |output| output["pid"] }.uniq.size
    refute_equal @pid, outputs[0]["pid"]
  end

  def test_a_handler_process_has_no_connection_to_a_broker
    [PlayedBroker.ipc(@directory), PlayedBroker.tcp].each_with_index do |broker, index|
      start(broker)
      sockets = run_step(index + 1, "isolated.pid")["output"]["sockets"]
      assert_equal [""], sockets, "only the pipe to the worker"
      teardown
      setup
    end
  end

  def test_a_handler_process_reports_its_progress_and_its_errors
    start_over_ipc
    run_step(1, "isolated.wait", { seconds: 0.3 })
    assert_equal [1, 1, 1, 2, "half"], @broker.all("progress").first["items"][0]
    error = run_step(2, "isolated.fail")["error"]
    assert_equal ["no", "never", false], error.values_at("message", "code", "retryable")
  end

  def test_a_killed_handler_process_is_process_died_and_the_next_step_gets_another
    start_over_ipc(slots: 1)
    first = run_step(1, "isolated.pid")["output"]["pid"]
    @broker.send_steps(@broker.step(2, "isolated.wait", { seconds: 20 }))
    Helper.eventually("progress") { @broker.all("progress").any? }
    Process.kill(:KILL, first)
    error = @broker.wait_for_result(2)
    assert_equal ["error", "process_died", true],
                 [error["status"], error["error"]["code"], error["error"].fetch("retryable", true)]
    assert_match(/the process of 'isolated\.wait' ended with signal 9/, error["error"]["message"])
    refute_equal first, run_step(3, "isolated.pid")["output"]["pid"]
  end

  def test_a_handler_process_that_ends_itself_is_process_died
    start_over_ipc
    result = run_step(1, "isolated.end", delivery_mode: "at_least_once")
    assert_match(/ended with exit code 3/, result["error"]["message"])
  end

  def test_a_handler_process_that_exceeds_its_timeout_is_killed
    start_over_ipc(slots: 1)
    result = run_step(1, "isolated.short")
    assert_equal %w[failed timeout], [result["status"], result["error"]["code"]]
    assert_operator result["metadata"]["execution_time_ms"], :<, 2_000
    assert_equal "completed", run_step(2, "isolated.pid")["status"]
  end

  def test_no_handler_process_outlives_a_killed_worker
    start_over_ipc
    child = run_step(1, "isolated.pid")["output"]["pid"]
    @broker.send_steps(@broker.step(2, "isolated.wait", { seconds: 20 }))
    Helper.eventually("progress") { @broker.all("progress").any? }
    assert alive?(child)
    Process.kill(:KILL, @pid)
    Process.wait(@pid)
    @pid = nil
    Helper.eventually("the end of the child", within_s: 1) { !alive?(child) }
  end

  # -- heartbeats and signals -----------------------------------------------------------------------------------------

  def test_heartbeats_go_on_while_every_slot_computes
    start_over_ipc(slots: 3)
    @broker.send_steps(*(1..3).map { |id| @broker.step(id, "compute", { ms: 2_500 }) })
    (1..3).each { |id| @broker.wait_for_result(id, within_s: 30) }
    gaps = @broker.all("heartbeat").map { |message| message["at"] }.each_cons(2).map { |a, b| b - a }
    assert_operator gaps.max, :<, 1.2, "the lease is 2 s"
    assert_equal 1, @broker.all("hello").map { |message| message.dig("next", "b1") }.compact.max
  end

  def test_term_drains_and_ends_with_success
    start_over_ipc
    @broker.send_steps(@broker.step(1, "isolated.wait", { seconds: 0.3 }))
    Helper.eventually("progress") { @broker.all("progress").any? }
    Process.kill(:TERM, @pid)
    _, status = Process.wait2(@pid)
    @pid = nil
    assert_predicate status, :success?
    assert_equal "completed", @broker.results[1]["status"]
    assert_match(/INFO    stopping: 1 step may still finish\n.*INFO    the worker has ended\n\z/m, log)
  end

  def test_tstp_offers_no_credit_and_a_second_int_exits_with_130
    start_over_ipc
    @broker.send_steps(@broker.step(1, "isolated.wait", { seconds: 20 }))
    Helper.eventually("progress") { @broker.all("progress").any? }
    Process.kill(:TSTP, @pid)
    Helper.eventually("no credit") { @broker.all("heartbeat").last.dig("free", "b1").to_i.zero? }
    Process.kill(:INT, @pid)
    Helper.eventually("bye") { @broker.all("bye").any? }
    Process.kill(:INT, @pid)
    _, status = Process.wait2(@pid)
    @pid = nil
    assert_equal 130, status.exitstatus
  end
end
