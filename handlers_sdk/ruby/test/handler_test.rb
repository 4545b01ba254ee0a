# frozen_string_literal: true

require_relative "helper"

class HandlerTest < Minitest::Test
  Testing = Stepwire::Testing

  class ShipOrder
    include Stepwire::Handler
    handles "ship_order", concurrency: 8, input: { order_id: Integer, note: [String, nil] }
    handles "shipping::*"

    def call(ctx, order_id:, note: "none", **)
      @runs = (@runs || 0) + 1
      { tracking: "T#{order_id}", note: note, runs: @runs, paid: ctx.results.dig("pay", "id") }
    end
  end

  class Declined < Stepwire::Permanent; end

  def run_block(input = {}, **options, &)
    worker = Stepwire::Worker.new(name: "t")
    worker.handler("tested", **options.slice(:input, :timeout_ms), &)
    Testing.run(worker, input, handler_class: "tested", **options.slice(:delivery_mode, :attempt, :config))
  end

  # -- input ----------------------------------------------------------------------------------------------------------

  def test_the_members_of_the_input_are_keywords
    outcome = Testing.run(ShipOrder, { order_id: 7, more: 1 }, results: { pay: { id: "p1" } })
    assert outcome.completed?
    assert_equal({ "tracking" => "T7", "note" => "none", "runs" => 1, "paid" => "p1" }, outcome.output)
  end

  def test_each_run_has_its_own_instance
    2.times { assert_equal 1, Testing.run(ShipOrder, { order_id: 7 }).output["runs"] }
  end

  def test_an_input_that_does_not_fit_is_bad_input_and_not_retried
    {
      {} => /the member `order_id` is missing/,
      { order_id: "7" } => /`order_id` is "7": it needs to be Integer/,
      { order_id: 7, note: 1 } => /`note` is 1: it needs to be String or null/,
      [1] => /it is an array, and the keywords need an object/,
      7 => /it is a number/
    }.each do |input, message|
      outcome = Testing.run(ShipOrder, input)
      assert_equal ["error", "bad_input", false], [outcome.status, outcome.error.code, outcome.error.retryable]
      assert_match message, outcome.error.message
    end
  end

  def test_an_unknown_member_is_bad_input_unless_the_handler_ignores_further_ones
    assert_match(/member `b`: add \*\* to ignore/, run_block({ a: 1, b: 2 }) { |_, a:| a }.error.message)
    assert_equal 1, run_block({ a: 1, b: 2 }) { |_, a:, **| a }.output
  end

  def test_a_second_parameter_takes_the_whole_input
    assert_equal [1, 2], run_block([1, 2]) { |_, input| input }.output
  end

  def test_a_handler_may_take_only_the_context
    assert_equal 2, run_block([1], attempt: 2) { |ctx| ctx.attempt }.output
  end

  # -- outcomes -------------------------------------------------------------------------------------------------------

  def test_an_ordinary_error_is_a_failure_with_its_class_and_its_own_frames
    outcome = run_block { |_| {}.fetch("nope") }
    assert_equal "failed", outcome.status
    assert_equal "KeyError", outcome.error.code
    assert_nil outcome.error.retryable
    assert_equal 'KeyError: key not found: "nope"', outcome.error.message
    assert_match(/handler_test\.rb:\d+:in `fetch'/, outcome.error.backtrace.first)
    assert(outcome.error.backtrace.none? { |frame| frame.include?("lib/stepwire/") })
  end

  def test_a_step_error_is_as_the_handler_says
    {
      Stepwire::StepError.new("m", code: "c", category: "unavailable") => ["m", "c", "unavailable", true, nil],
      Stepwire::Permanent.new("m") => ["m", nil, nil, false, nil],
      Stepwire::Retry.new("m", after: 1.5, code: "busy") => ["m", "busy", nil, true, 1500],
      Stepwire::OutcomeUnknown.new("m") => ["m", "outcome_unknown", nil, nil, nil],
      Declined.new("m") => ["m", "HandlerTest::Declined", nil, false, nil]
    }.each do |error, members|
      outcome = run_block { |_| raise error }
      assert_equal "failed", outcome.status
      assert_equal members, outcome.error.to_h.values_at(:message, :code, :category, :retryable, :retry_after_ms)
    end
  end

  def test_errors_that_are_no_standard_error_fail_the_step_and_not_the_worker
    [SystemExit.new(3), NotImplementedError.new("later"), Interrupt.new, NoMemoryError.new].each do |error|
      assert_equal error.class.name, run_block { |_| raise error }.error.code
    end
    assert_equal "SystemStackError", run_block { |_| endless }.error.code
  end

  def endless
    endless
  end

  def test_an_error_without_a_readable_message_fails_the_step
    error = Class.new(StandardError) { def message = raise("no message") }.new
    assert_equal "failed", run_block { |_| raise error }.status
  end

  def test_texts_of_errors_are_made_acceptable
    outcome = run_block { |_| raise "a\0b\xFF" }
    assert_equal "RuntimeError: a\uFFFDb\uFFFD", outcome.error.message
  end

  def test_an_output_that_is_no_json_is_an_error
    outcome = run_block { |_| { at: Time.now } }
    assert_equal ["error", "bad_output", false], [outcome.status, outcome.error.code, outcome.error.retryable]
    assert_match(/'tested' cannot be sent as JSON: it holds a value of the type Time/, outcome.error.message)
  end

  def test_after_an_at_most_once_handler_was_called_a_failure_of_the_sdk_is_no_verdict
    outcome = run_block(delivery_mode: "at_most_once") { |_| Float::NAN }
    assert_equal ["error", "outcome_unknown", nil], [outcome.status, outcome.error.code, outcome.error.retryable]
  end

  def test_a_run_that_stops_at_its_timeout_is_a_timeout
    outcome = run_block(timeout_ms: 30) { |ctx| ctx.sleep(5) }
    assert_equal "failed", outcome.status
    assert_equal ["timeout", "the run exceeded its timeout"], outcome.error.to_h.values_at(:code, :message)
  end

  def test_progress_is_recorded_and_its_note_is_cut
    outcome = run_block { |ctx| ctx.progress(1, 2, "n" * 300) }
    assert_equal [1, 2, "#{'n' * 199}…"], outcome.progress.first.to_a
    assert_equal "Stepwire::ConfigurationError", run_block { |ctx| ctx.progress(Float::NAN) }.error.code
  end

  def test_a_long_backtrace_keeps_the_innermost_frames
    outcome = run_block { |_| deep(500) }
    assert_operator outcome.error.backtrace.sum { |line| line.bytesize + 1 }, :<=, 8192
    assert_match(/more lines\)\z/, outcome.error.backtrace.last)
  end

  def deep(levels)
    levels.zero? ? raise("bottom") : deep(levels - 1)
  end

  # -- registration ---------------------------------------------------------------------------------------------------

  def test_mistakes_of_a_registration_end_in_a_sentence
    worker = Stepwire::Worker.new(name: "t")
    worker.handler("known") { |_| 1 }
    no_call = Class.new do
      include Stepwire::Handler
      handles "x"
    end
    {
      -> { worker.handler("known") { |_| 1 } } => /handler 'known' is registered twice/,
      -> { worker.handler("no block") } => /has no block/,
      -> { worker.handler("a b") { |_| 1 } } => /handler name 'a b': it needs 1 to 128/,
      -> { worker.handler("x") { 1 } } => /handler 'x' takes no parameter/,
      -> { worker.handler("x") { |_, a, b:| [a, b] } } => /either keywords .* or one parameter/,
      -> { worker.handler("x", concurrency: 0) { |_| 1 } } => /concurrency is 0: it needs to be at least 1/,
      -> { worker.handler("x", colour: 1) { |_| 1 } } => /handler 'x': unknown keyword: :colour/,
      -> { worker.add(String) } => /String is no handler: write `include Stepwire::Handler`/,
      -> { worker.add(no_call) } => /has no method `call`/,
      -> { Stepwire::Worker.new(name: "t").start } => /the worker has no handlers/
    }.each do |mistake, sentence|
      assert_match sentence, assert_raises(Stepwire::ConfigurationError, &mistake).message
    end
  end

  def test_a_pattern_offers_every_name_that_it_matches
    worker = Stepwire::Worker.new(name: "t").add(ShipOrder)
    assert Testing.run(worker, { order_id: 1 }, handler_class: "shipping::fast").completed?
    error = assert_raises(Stepwire::ConfigurationError) { Testing.run(worker, {}, handler_class: "other") }
    assert_equal "the worker does not offer 'other'; it offers ship_order, shipping::*", error.message
  end
end
