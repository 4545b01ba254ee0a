# frozen_string_literal: true

require_relative "helper"

# References to secrets: resolved before the handler, and absent from all that leaves the worker.
class SecretsTest < Minitest::Test
  KEY = "sk_live_5eb63bbbe01eeed0"
  CARD = "4929-7654-0001"
  CONFIG = { "key" => { "$secret" => "stripe/live" } }.freeze
  CONTEXT = { "card" => { "$secret" => "card" }, "n" => 1 }.freeze
  VECTORS = Helper.vectors("secrets.json")

  def setup
    @directory = Dir.mktmpdir
    @secrets = File.join(@directory, "secrets")
    FileUtils.mkdir_p(File.join(@secrets, "stripe"), mode: 0o700)
    { "stripe/live" => "#{KEY}\n", "card" => CARD }.each do |name, value|
      File.write(File.join(@secrets, name), value, perm: 0o600)
    end
    @broker = PlayedBroker.ipc(@directory)
  end

  def teardown
    @worker&.stop(0)
    @broker.close
    FileUtils.remove_entry(@directory)
  end

  def start(**options)
    @worker = Stepwire::Worker.new(steps: @broker.steps_endpoint, results: @broker.results_endpoint, name: "t",
                                   secrets: @secrets, **options)
    yield @worker
    @worker.start
    @broker.wait_for_session
  end

  def run_step(id, handler, context = {}, **members)
    @broker.send_steps(@broker.step(id, handler, context, **members))
    @broker.wait_for_result(id)
  end

  # -- the vectors ----------------------------------------------------------------------------------------------------

  def test_a_name_is_a_relative_path_of_plain_file_names
    VECTORS["names"].each do |vector|
      assert_equal vector["valid"], Stepwire::SecretReferences.name?(vector["name"]), vector["name"]
    end
  end

  def test_one_line_end_is_not_part_of_a_value
    VECTORS["contents"].each do |vector|
      value = begin
        Stepwire::SecretFiles.value_of("card", vector["content"])
      rescue Stepwire::SecretUnavailable
        nil
      end
      vector["value"].nil? ? assert_nil(value) : assert_equal(vector["value"], value)
    end
  end

  VECTORS["files"].each do |vector|
    define_method("test_a_file: #{vector['name']}") do
      skip "only root can give a file away" if vector["needs_root"] && Process.euid != 0
      directory = made(vector)
      if vector["sentence"]
        error = assert_raises(Stepwire::SecretUnavailable) { Stepwire::SecretFiles.read(directory, "card") }
        assert_equal [vector["sentence"].gsub("{directory}", directory), nil], [error.message, error.category]
      elsif vector["value"]
        assert_equal vector["value"], Stepwire::SecretFiles.read(directory, "card")
      else
        assert_equal vector["value_bytes"], Stepwire::SecretFiles.read(directory, "card").bytesize
      end
    end
  end

  # The directory of secrets that a vector describes.
  def made(vector)
    directory = File.join(@directory, "made")
    mode = vector.fetch("directory", "0700")
    if mode == "file" then File.write(directory, "")
    elsif mode != "none"
      Dir.mkdir(directory)
      File.chmod(mode.to_i(8), directory)
      File.chown(vector["directory_owner"], -1, directory) if vector["directory_owner"]
    end
    file = vector["file"]
    place(directory, file) if file
    directory
  end

  def place(directory, file)
    path = File.join(directory, file.fetch("link", "card"))
    File.symlink(file["link"], File.join(directory, "card")) if file["link"]
    return Dir.mkdir(path, 0o700) if file["folder"]
    return File.mkfifo(path, 0o600) if file["pipe"]

    content = file["content"] || file.fetch("base64", "").unpack1("m")
    File.binwrite(path, content.empty? ? "x" * file.fetch("bytes", 0) : content)
    File.chmod(file["mode"].to_i(8), path)
    File.chown(file["owner"], -1, path) if file["owner"]
  end

  VECTORS["resolve"].each do |vector|
    define_method("test_references: #{vector['name']}") do
      values = Stepwire::SecretValues.new(vector["secrets"].method(:[]))
      replaced = -> { Stepwire::SecretReferences.replace(vector["value"]) { |name| values.value_of(name) } }
      if vector["sentence"]
        assert_equal vector["sentence"], assert_raises(Stepwire::SecretUnavailable, &replaced).message
      else
        assert_equal vector["resolved"], replaced.call
      end
    end
  end

  VECTORS["resolver"].each do |vector|
    define_method("test_a_resolver: #{vector['name']}") do
      resolver = lambda do |_|
        raise KeyError, vector["raises"] if vector["raises"]

        vector["returns"]
      end
      values = Stepwire::SecretValues.new(vector["source"] == false ? nil : resolver)
      error = assert_raises(Stepwire::SecretUnavailable) { values.value_of("card") }
      sentence = vector["sentence"].sub("{error}", "KeyError").sub("{argument}", "Worker.new(secrets: ...)")
      assert_equal [sentence, vector["category"]], [error.message, error.category]
    end
  end

  def test_texts_and_outputs_lose_the_values
    VECTORS["redact"].each do |vector|
      redactor = Stepwire::Redactor.new
      vector["secrets"].each { |name, value| redactor.add(name, value) }
      assert_equal vector["redacted"], redactor.redact(vector["text"]), vector["name"]
    end
    VECTORS["output"].each do |vector|
      output = Stepwire::SecretValues.without(vector["secrets"], JSON.generate(vector["output"]))
      assert_equal vector["redacted"], JSON.parse(output), vector["name"]
    end
  end

  def test_a_redactor_keeps_the_latest_values_and_is_bounded
    redactor = Stepwire::Redactor.new
    (0..Stepwire::Redactor::VALUES_MAX).each { |n| redactor.add("n#{n}", format("value-%06d", n)) }
    assert_equal "value-000000 [secret n1]", redactor.redact("value-000000 value-000001")
  end

  # -- in a worker ----------------------------------------------------------------------------------------------------

  [false, true].each do |process|
    define_method("test_a_handler_receives_the_values, process: #{process}") do
      start do |worker|
        worker.handler("length", process: process) do |ctx, input|
          { key: ctx.config["key"].length, card: input["card"].length, before: ctx.results }
        end
      end
      result = run_step(1, "length", CONTEXT, handler_config: CONFIG, previous_results: CONTEXT)
      assert_equal({ "key" => KEY.length, "card" => CARD.length, "before" => CONTEXT }, result["output"])
      result = run_step(2, "length", {}, handler_config: CONFIG, input: CONTEXT)
      assert_equal CARD.length, result["output"]["card"]
    end

    define_method("test_nothing_that_leaves_the_worker_has_a_value, process: #{process}") do
      read, write = IO.pipe
      before = Stepwire.logger
      Stepwire.logger = Logger.new(write)
      start do |worker|
        worker.handler("tell", process: process) do |ctx, input|
          ctx.progress(1, 2, "using #{ctx.config['key']}")
          ctx.log.info("has #{input['card']}")
          sleep(0.3)
          begin
            raise KeyError, input["card"]
          rescue KeyError
            raise ArgumentError, "refused: #{input['card']} and #{ctx.config['key']}"
          end
        end
        worker.handler("leak", process: process) { |_, input| { input["card"] => [input["card"]] } }
      end
      error = run_step(1, "tell", CONTEXT, handler_config: CONFIG)["error"]
      assert_equal "ArgumentError: refused: [secret card] and [secret stripe/live]", error["message"]
      assert_equal({ "[secret card]" => ["[secret card]"] }, run_step(2, "leak", CONTEXT)["output"])
      @worker.stop(0)
      write.close
      logged = read.read
      assert_includes logged, "has [secret card]"
      assert_equal(["using [secret stripe/live]"], @broker.all("progress").map { |m| m["items"][0][4] })
      everything = logged + JSON.generate(@broker.messages)
      refute_includes everything, KEY
      refute_includes everything, CARD
    ensure
      Stepwire.logger = before
    end
  end

  def test_a_reference_with_an_escaped_key_is_a_reference
    body = JSON.generate({ type: "steps", v: "2.0", broker: "b1", epoch: 7, session: "7.1", batch_id: "b",
                           protocol_version: "2.0", steps: [@broker.step(1, "x", CONTEXT)] })
    [body, body.gsub("$secret", "\\u0024secret")].each do |text|
      assert_equal [true], Stepwire::Codec.decode_broker(text).steps.map(&:needs_opening?)
    end
    plain = body.gsub("$secret", "secret")
    assert_equal [false], Stepwire::Codec.decode_broker(plain).steps.map(&:needs_opening?)
  end

  def test_a_rotated_secret_is_used_for_the_next_step
    start { |worker| worker.handler("length") { |ctx| ctx.config["key"].length } }
    assert_equal KEY.length, run_step(1, "length", handler_config: CONFIG)["output"]
    File.write(File.join(@secrets, "stripe/live"), "rotated")
    assert_equal 7, run_step(2, "length", handler_config: CONFIG)["output"]
  end

  def test_a_step_whose_secret_is_missing_fails_and_its_handler_is_not_called
    called = []
    start(secrets: ->(_) {}) { |worker| worker.handler("pay") { |_| called << 1 } }
    result = run_step(1, "pay", handler_config: CONFIG)
    assert_equal ["error", "secret_unavailable", true],
                 [result["status"], result["error"]["code"], result["error"]["retryable"]]
    assert_equal "secret 'stripe/live': the resolver of this worker does not know it", result["error"]["message"]
    assert_empty called
  end

  def test_a_lease_that_ends_while_a_secret_is_read_gives_the_step_back
    called = []
    gate = Thread::Queue.new
    start(secrets: ->(_) { gate.pop }) { |worker| worker.handler("pay") { |_| called << 1 } }
    @broker.send_steps(@broker.step(1, "pay", {}, handler_config: CONFIG))
    Helper.eventually("the resolver is asked") { gate.num_waiting == 1 }
    first = @broker.session
    @broker.acks_heartbeats = false # the lease of 2 s ends
    Helper.eventually("the session is lost") { @broker.session != first }
    @broker.acks_heartbeats = true
    @broker.wait_for_session # the broker may have given the step to another worker in between
    gate << "4929-late"
    Helper.eventually("the step is given back") { @broker.all("refuse").any? { |m| m["items"] == [[1, 1]] } }
    assert_empty called
    assert_empty @broker.results
  end

  def test_a_tested_handler_receives_the_values_that_the_test_passes
    handler = Class.new do
      include Stepwire::Handler
      handles "leak"

      def call(ctx, **)
        { ctx.config["key"] => [ctx.config["pin"], "Bearer #{ctx.config['key']}"] }
      end
    end
    config = { key: { "$secret": "stripe/live" }, pin: { "$secret": "pin" } }
    outcome = Stepwire::Testing.run(handler, config: config, secrets: { "stripe/live" => KEY, "pin" => "4-9" })
    assert_equal({ "[secret stripe/live]" => ["4-9", "Bearer [secret stripe/live]"] }, outcome.output)
  end
end
