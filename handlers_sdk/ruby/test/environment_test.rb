# frozen_string_literal: true

require_relative "helper"

class EnvironmentTest < Minitest::Test
  Environment = Stepwire::Environment
  PAIR = ZMQ::Util.curve_keypair.freeze
  KEYS = { "STEPWIRE_CURVE_SERVER_KEY" => "S" * 40, "STEPWIRE_CURVE_PUBLIC_KEY" => PAIR[0],
           "STEPWIRE_CURVE_SECRET_KEY" => PAIR[1] }.freeze
  CURVE = %i[curve_server_key curve_public_key curve_secret_key].freeze

  def mistake(&)
    assert_raises(Stepwire::ConfigurationError, &).message
  end

  def test_without_variables_the_defaults_apply
    settings = Environment.read({})
    assert_equal [["ipc://.stepwire/steps.sock"], ["ipc://.stepwire/results.sock"], nil, 10, {}, "", nil, nil, nil],
                 settings.values_at(:steps, :results, :name, :slots, :labels, :handler_version, *CURVE)
    assert_instance_of Stepwire::Worker, Stepwire::Worker.new(**settings)
  end

  def test_every_variable_is_read
    environ = {
      "STEPWIRE_STEPS" => "tcp://a:1, tcp://b:1", "STEPWIRE_RESULTS" => "tcp://a:2,tcp://b:2",
      "STEPWIRE_NAME" => "shop-1", "STEPWIRE_SLOTS" => "4", "STEPWIRE_LABELS" => "region=eu, gpu=true",
      "STEPWIRE_HANDLER_VERSION" => "7.1", **KEYS
    }
    settings = Environment.read(environ)
    assert_equal [%w[tcp://a:1 tcp://b:1], %w[tcp://a:2 tcp://b:2], "shop-1", 4,
                  { "region" => "eu", "gpu" => "true" }, "7.1"],
                 settings.values_at(:steps, :results, :name, :slots, :labels, :handler_version)
    assert_equal KEYS.values, settings.values_at(*CURVE)
  end

  def test_mistakes_end_in_one_sentence_with_what_to_do
    {
      { "STEPWIRE_SLOTS" => "four" } => "STEPWIRE_SLOTS is 'four': it needs a whole number, 1 to 10000",
      { "STEPWIRE_SLOTS" => "0" } => "slots is 0: it needs to be 1 to 10000 (STEPWIRE_SLOTS)",
      { "STEPWIRE_LABELS" => "eu" } => "STEPWIRE_LABELS has 'eu': it needs a form like region=eu,gpu=true",
      { "STEPWIRE_NAME" => "a b" } =>
        "worker name 'a b': it needs 1 to 48 of letters, digits, . _ - (STEPWIRE_NAME)",
      { "STEPWIRE_HANDLER_VERSION" => "x" * 65 } =>
        "handler_version has 65 characters: it needs at most 64 (STEPWIRE_HANDLER_VERSION)",
      { "STEPWIRE_STEPS" => "tcp//:1" } =>
        "the steps endpoint 'tcp//:1' needs a form like tcp://127.0.0.1:7411 or ipc://.stepwire/steps.sock",
      { "STEPWIRE_STEPS" => "tcp://127.0.0.1" } =>
        "the steps endpoint 'tcp://127.0.0.1' has no port: it needs a form like tcp://127.0.0.1:7411",
      { "STEPWIRE_STEPS" => "tcp://*:7411" } =>
        "the steps endpoint 'tcp://*:7411' names no host: a worker connects, and only a broker may bind to *",
      { "STEPWIRE_STEPS" => "http://127.0.0.1:7410" } =>
        "the steps endpoint 'http://127.0.0.1:7410': http:// is not supported; use tcp:// or ipc://",
      { "STEPWIRE_STEPS" => "inproc://steps" } =>
        "the steps endpoint 'inproc://steps' reaches only a broker in this process: use ipc:// or tcp://",
      { "STEPWIRE_STEPS" => "ipc:///#{'x' * 107}" } =>
        "the steps endpoint 'ipc:///#{'x' * 107}': the path has 108 bytes, and the system allows 107: " \
        "use a relative path",
      { "STEPWIRE_STEPS" => "tcp://a:1,tcp://b:1" } =>
        "2 endpoints for steps and 1 for results: each broker needs one of each, in the same order " \
        "(STEPWIRE_STEPS, STEPWIRE_RESULTS; separate several with commas)"
    }.each do |environ, sentence|
      assert_equal sentence, mistake { Stepwire::Worker.new(**Environment.read(environ)) }
    end
  end

  # -- CURVE ----------------------------------------------------------------------------------------------------------

  def test_a_missing_key_a_wrong_form_and_two_pairs_are_mistakes
    sentences = {
      KEYS.reject { |name, _| name.end_with?("SECRET_KEY") } =>
        "STEPWIRE_CURVE_SECRET_KEY is missing: CURVE needs STEPWIRE_CURVE_SERVER_KEY, STEPWIRE_CURVE_PUBLIC_KEY and " \
        "STEPWIRE_CURVE_SECRET_KEY, as variables or in the file that STEPWIRE_CURVE_FILE names",
      KEYS.merge("STEPWIRE_CURVE_SERVER_KEY" => "short") =>
        "STEPWIRE_CURVE_SERVER_KEY is no key: it needs 40 characters of Z85, and has 5 characters",
      KEYS.merge("STEPWIRE_CURVE_PUBLIC_KEY" => "S" * 40) =>
        "STEPWIRE_CURVE_PUBLIC_KEY does not belong to STEPWIRE_CURVE_SECRET_KEY: take both from one key pair"
    }
    sentences.each do |environ, sentence|
      assert_equal sentence, mistake { Stepwire::Worker.new(**Environment.read(environ)) }
    end
  end

  def test_a_file_holds_the_keys_and_a_variable_wins_over_it
    Dir.mktmpdir do |directory|
      path = File.join(directory, "shop.key")
      lines = KEYS.zip(["export %s='%s'", "%s = \"%s\"", "%s=%s"]).map { |pair, form| format(form, *pair) }
      File.write(path, "# the keys of shop\n#{lines.join("\n")}\n", perm: 0o600)
      environ = { "STEPWIRE_CURVE_FILE" => path, "STEPWIRE_CURVE_SERVER_KEY" => "T" * 40 }
      assert_equal ["T" * 40, *PAIR], Environment.read(environ).values_at(*CURVE)
      File.chmod(0o640, path)
      assert_equal "STEPWIRE_CURVE_FILE is '#{path}': its group or others may use this file, and it holds a secret " \
                   "key: chmod 600 #{path}", mistake { Environment.read(environ) }
    end
    assert_equal "STEPWIRE_CURVE_FILE is '/no/file': it cannot be read: No such file or directory",
                 mistake { Environment.read({ "STEPWIRE_CURVE_FILE" => "/no/file" }) }
  end
end
