# frozen_string_literal: true

require_relative "helper"
require "stepwire/driver"

# The small parts beside the session: slots of the runner, signals, log lines, diagnosis.
class PartsTest < Minitest::Test
  Call = Struct.new(:name, :offer)

  def slots(number, *concurrencies)
    Stepwire::RunSlots.new(number, concurrencies.map { |limit| Stepwire::Offer.new("h", limit) })
  end

  def test_calls_get_slots_in_their_order
    calls = %w[a b c].map { |name| Call.new(name, 0) }
    slots = slots(2, nil)
    assert_equal %w[a b], slots.add(calls).map(&:name)
    assert_equal "c", slots.release(calls[0]).name
    assert_nil slots.release(calls[1])
    assert_equal %w[d], slots.add([Call.new("d", 0)]).map(&:name)
  end

  def test_a_call_waits_for_its_handler_and_lets_others_pass
    a = Call.new("a", 0)
    b = Call.new("b", 0)
    c = Call.new("c", 1)
    slots = slots(3, 1, nil)
    assert_equal [a, c], slots.add([a, b, c])
    assert_equal b, slots.release(a)
  end

  def test_a_run_that_was_taken_back_never_begins
    lease = Stepwire::Lease.new
    lease.until_ms = 100
    run = Stepwire::Run.new([1, 1], nil, 0, lease)
    assert run.take_back
    refute run.begin(1)
    begun = Stepwire::Run.new([1, 2], nil, 0, lease)
    assert begun.begin(1)
    refute begun.take_back
    refute Stepwire::Run.new([1, 3], nil, 0, lease).begin(100), "the lease is over"
  end

  def test_a_result_that_was_sent_may_be_too_large_for_the_broker_that_adopts_it
    driver = Stepwire::Driver.new
    now_ms = 0
    op = lambda do |name, **members|
      reply = driver.handle({ op: name, now_ms: now_ms += 0.1, **members }.transform_keys(&:to_s))
      assert_nil reply[:error], reply[:backtrace]
      reply[:actions].filter_map { |action| JSON.parse(action[:frame].split(" ", 2)[1]) if action[:action] == "send" }
    end
    receive = lambda do |type, broker, **members|
      op.call("receive", frame: "@w:0123456789abcdef #{JSON.generate(
        { type: type, v: '2.0', broker: broker, epoch: 7, **members }
      )}")
    end
    op.call("start", worker: "w:0123456789abcdef", offers: [{ "pattern" => "h" }], slots: 100)
    { "b1" => 4_000_000, "b2" => 1_000 }.each do |broker, bytes|
      receive.call("here", broker, deployment: "d", versions: ["2.0"])
      now_ms += 300
      hello = op.call("tick").find { |message| message["type"] == "hello" }
      receive.call("welcome", broker, session: "7.1", deployment: "d", n: hello["n"], lease_ms: 100_000,
                                      heartbeat_ms: 2_000, max_message_bytes: bytes)
    end
    metadata = { attempt: 0, retry_limit: 0, timeout_ms: 0, idempotency_key: "k" }
    steps = [1, 2].map do |id|
      { step_id: id, task_id: 1, step_name: "s", handler_class: "h", delivery: 1, metadata: metadata }
    end
    receive.call("steps", "b1", session: "7.1", batch_id: "b_1", protocol_version: "2.0", steps: steps)
    op.call("complete", step_id: 1, delivery: 1, output: "x" * 2_000)
    op.call("complete", step_id: 2, delivery: 1, output: 2)
    sent = receive.call("adopt", "b2", session: "7.1", items: [[1, 1]])
    codes = sent.filter_map { |message| message["results"] }.flatten(1).map { |result| result.dig("error", "code") }
    assert_includes codes, "too_large"
  end

  def test_a_request_to_stop_wakes_a_handler_that_waits_for_it
    context = Stepwire::Context.new(Stepwire::Run.new([1, 1], nil, 0, nil), nil)
    refute context.cancelled.wait(0.01)
    waiting = Thread.new { context.cancelled.wait(5) }
    sleep(0.02)
    context.request_stop("lease_lost")
    refute context.cancelled?
    context.request_stop("timeout")
    context.request_stop("shutdown")
    assert waiting.value
    assert_equal [true, true, "timeout"], [context.cancelled.wait, context.lease_lost.set?, context.cancel_reason]
  end

  def test_a_slow_broker_search_reports_with_the_reason
    Dir.mktmpdir do |directory|
      Dir.chdir(directory) do
        diagnosis = Stepwire::Reachability.method(:diagnosis)
        assert_equal ["ipc://#{Dir.pwd}/a.sock",
                      "there is no such socket. The path is relative to this directory: start the worker where the " \
                      "broker runs, or set STEPWIRE_STEPS and STEPWIRE_RESULTS to what `stepwire serve` prints"],
                     diagnosis.call(Stepwire::Link.new("ipc://a.sock", "ipc://b.sock"))
        File.write("file", "")
        assert_match(/this is not a socket/, diagnosis.call(Stepwire::Link.new("ipc://file", "ipc://b"))[1])
        UNIXServer.new("dead").close
        assert_match(/no process listens there/, diagnosis.call(Stepwire::Link.new("ipc://dead", "ipc://b"))[1])
      end
    end
    assert_match(/no process listens on port 9\./, Stepwire::Reachability.fault("tcp://127.0.0.1:9"))
    assert_match(/the host name 'no\.invalid' cannot be resolved/, Stepwire::Reachability.fault("tcp://no.invalid:1"))
  end

  def test_a_failed_run_is_logged_with_its_step_and_its_own_frames
    worker = Stepwire::Worker.new(name: "t")
    worker.handler("pay") { |ctx| ctx.log.info("charging") && {}.fetch("nope") }
    log = Helper.logged { Stepwire::Testing.run(worker, handler_class: "pay") }
    assert_match(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO    task 1 step 2 step: charging$/, log)
    assert_match(/ERROR   task 1 step 2 step attempt 1 of 4 failed: KeyError: key not found: "nope"\n\S+_test\.rb:\d+/,
                 log)
    refute_match(%r{lib/stepwire/}, log)
  end

  def test_what_a_handler_reports_on_purpose_is_one_line
    worker = Stepwire::Worker.new(name: "t")
    worker.handler("pay") { |_| raise Stepwire::Permanent, "card declined" }
    log = Helper.logged { Stepwire::Testing.run(worker, handler_class: "pay") }
    line = /\A.*WARNING task 1 step 2 step attempt 1 of 4 failed: Stepwire::Permanent: card declined; no retry\n\z/
    assert_match(line, log)
  end

  def test_texts_are_cut_at_characters_and_cleaned
    assert_equal "ä…", Stepwire::Texts.shortened("äää", 2)
    assert_equal "a\uFFFD", Stepwire::Texts.clean("a\xFF")
    assert_equal "\uFFFD", Stepwire::Texts.clean("\0")
    assert_equal "é", Stepwire::Texts.clean("é".encode("ISO-8859-1"))
  end

  def test_an_older_ruby_is_refused_in_one_sentence
    entry = File.expand_path("../lib/stepwire.rb", __dir__)
    out = IO.popen(["ruby", "-e", "Object.send(:remove_const, :RUBY_VERSION); RUBY_VERSION = '3.0.7'; load '#{entry}'",
                    { err: %i[child out] }], &:read)
    assert_equal "Stepwire needs Ruby 3.1 or newer, and this is Ruby 3.0.7: install a newer Ruby\n", out
  end
end
