# frozen_string_literal: true

require_relative "helper"

# Sealed payloads: the handler works with plaintext, and nothing readable leaves the worker.
class SealedTest < Minitest::Test
  VECTORS = Helper.vectors("sealed.json")
  TASK = Stepwire::SealedTask.new("shop", "claim", "claim-7")
  CONTEXT = { "patient" => "A. Lovelace", "total" => 12.5, "clear" => { "region" => "eu" } }.freeze
  MESSAGE = "the error is sealed: stepwire task show --unseal prints it"

  def self.keys(first = "2026-11")
    pairs = VECTORS["keys"].sort_by { |vector| vector["kid"] == first ? 0 : 1 }
    Stepwire::SealKeys.new(pairs.to_h { |vector| [vector["kid"], vector["key"].unpack1("m0")] })
  end

  KEYS = keys

  def task_of(vector)
    Stepwire::SealedTask.new(*vector.values_at("namespace", "workflow", "key"))
  end

  # -- the vectors ----------------------------------------------------------------------------------------------------

  def test_two_keys_are_derived_from_each_key
    VECTORS["keys"].each do |vector|
      key = vector["key"].unpack1("m0")
      derived = [Stepwire::SealKeys::ENCRYPTION, Stepwire::SealKeys::NONCE].map do |purpose|
        Stepwire::SealKeys.derived(key, purpose).unpack1("H*")
      end
      assert_equal vector.values_at("encryption_key", "nonce_key"), derived
    end
  end

  VECTORS["sealed"].each do |vector|
    define_method("test_#{vector['name']} is sealed byte for byte, and unsealed") do
      kind, step, plaintext, payload = vector.values_at("kind", "step", "plaintext", "payload")
      keys = SealedTest.keys(payload["kid"])
      aad = Stepwire::SealKeys.associated_data(kind, payload["kid"], task_of(vector), step)
      assert_equal vector["aad"], [aad].pack("m0")
      assert_equal JSON.generate(payload), keys.seal(kind, task_of(vector), step, plaintext)
      assert_equal plaintext, keys.unseal(kind, task_of(vector), step, payload)
    end
  end

  VECTORS["refused"].each do |vector|
    define_method("test_#{vector['name']} is not unsealed") do
      error = assert_raises(Stepwire::NotUnsealed) do
        KEYS.unseal(vector["kind"], task_of(vector), vector["step"], vector["payload"])
      end
      assert_equal vector["sentence"], error.message
    end
  end

  VECTORS["key_files"].each do |vector|
    define_method("test_a_file_of_keys: #{vector['name']}") do
      Dir.mktmpdir do |directory|
        path = File.join(directory, "seal.keys")
        text = vector["text"]
        if text
          File.write(path, text.is_a?(Integer) ? "#" * text : text)
          File.chmod(vector["mode"].to_i(8), path)
        end
        next assert_equal(vector["kids"], Stepwire::SealKeyFile.read(path).keys) if vector["sentence"].nil?

        error = assert_raises(Stepwire::ConfigurationError) { Stepwire::Worker.new(seal_keys_file: path) }
        assert_equal vector["sentence"].gsub("{path}", path), error.message
      end
    end
  end

  # -- in a worker ----------------------------------------------------------------------------------------------------

  def setup
    @directory = Dir.mktmpdir
    @broker = PlayedBroker.ipc(@directory)
    @keys_file = File.join(@directory, "seal.keys")
    lines = VECTORS["keys"].map { |vector| "#{vector['kid']}=#{vector['key']}\n" }
    File.write(@keys_file, lines.join, perm: 0o600)
  end

  def teardown
    @worker&.stop(0)
    @broker.close
    FileUtils.remove_entry(@directory)
  end

  def start(**options)
    @worker = Stepwire::Worker.new(steps: @broker.steps_endpoint, results: @broker.results_endpoint, name: "t",
                                   seal_keys_file: @keys_file, **options)
    yield @worker
    @worker.start
    @broker.wait_for_session
  end

  def run_step(id, handler, context, **members)
    @broker.send_steps(@broker.step(id, handler, context, **members))
    @broker.wait_for_result(id)
  end

  def sealed(kind, step, value)
    JSON.parse(KEYS.seal(kind, TASK, step, JSON.generate(value)))
  end

  def unsealed(kind, payload)
    JSON.parse(KEYS.unseal(kind, TASK, "s", payload))
  end

  [false, true].each do |process|
    define_method("test_a_handler_works_with_plaintext, process: #{process}") do
      start(secrets: ->(_) { "sk_live_5eb6" }) do |worker|
        worker.handler("assess", process: process) do |ctx, input|
          { of: input, before: ctx.results, clear: { review: true } }
        end
      end
      before = { "before" => sealed("output", "before", { "score" => 3 }), "skipped" => nil }
      context = CONTEXT.merge("key" => { "$secret" => "k" })
      output = run_step(1, "assess", sealed("context", nil, context), previous_results: before)["output"]
      assert_equal %w[$sealed kid nonce data clear], output.keys
      assert_equal({ "review" => true }, output["clear"])
      expected = { "of" => CONTEXT.merge("key" => "[secret k]"),
                   "before" => { "before" => { "score" => 3 }, "skipped" => nil },
                   "clear" => { "review" => true } }
      assert_equal expected, unsealed("output", output)
    end

    define_method("test_an_error_is_sealed_and_neither_log_nor_progress_has_its_text, process: #{process}") do
      read, write = IO.pipe
      before = Stepwire.logger
      Stepwire.logger = Logger.new(write)
      start do |worker|
        worker.handler("fail", process: process) do |ctx, input|
          ctx.progress(1, 2, input["patient"])
          sleep(0.3)
          raise Stepwire::StepError.new("#{input['patient']} #{'x' * 9_000}", code: input["patient"])
        end
      end
      error = run_step(1, "fail", sealed("context", nil, CONTEXT))["error"]
      assert_equal [MESSAGE, nil], error.values_at("message", "code")
      detail = unsealed("error", JSON.parse(error["backtrace"].first))
      assert_match(/\AA\. Lovelace xxx/, detail["message"])
      assert_equal([nil], @broker.all("progress").map { |message| message["items"][0][4] })
      @worker.stop(0)
      write.close
      logged = read.read
      assert_includes logged, "failed: Stepwire::StepError; the text of the error is sealed"
      refute_includes logged, "Lovelace"
    ensure
      Stepwire.logger = before
    end
  end

  def test_a_worker_without_the_key_does_not_run_the_step
    called = []
    start(seal_keys_file: nil) { |worker| worker.handler("assess") { |_, _| called << 1 } }
    result = run_step(1, "assess", sealed("context", nil, CONTEXT))
    assert_equal ["error", "not_unsealed", true],
                 [result["status"], result["error"]["code"], result["error"]["retryable"]]
    assert_equal "the step is sealed, and this worker has no keys: set STEPWIRE_SEAL_KEYS_FILE",
                 result["error"]["message"]
    assert_empty called
  end

  def test_a_sealed_context_without_its_task_is_not_unsealed
    start { |worker| worker.handler("assess") { |_, input| input } }
    error = run_step(1, "assess", sealed("context", nil, CONTEXT).except("task"))["error"]
    assert_equal "the context is sealed, and does not name its task", error["message"]
  end

  def test_the_text_of_a_long_error_fits_into_its_limit
    error = { message: "ä" * 1_000, backtrace: Array.new(100) { |n| "line #{n} #{'x' * 80}" } }
    text = Stepwire::SealedSteps.text_of(error)
    assert_operator text.bytesize, :<=, 5_000
    assert_equal "line 0 #{'x' * 80}", JSON.parse(text)["backtrace"].first
    assert_operator Stepwire::SealedSteps.text_of({ message: "\u{1}" * 1_000 }).bytesize, :<=, 5_000
  end
end
