# frozen_string_literal: true

require_relative "helper"

class CodecTest < Minitest::Test
  Codec = Stepwire::Codec

  # The bytes of a vector after its topic.
  def bytes(vector)
    return vector["text"].dup if vector.key?("text")
    return vector["base64"].unpack1("m") if vector.key?("base64")

    vector["parts"].map { |part| bytes(part) * part.fetch("times", 1) }.join
  end

  def test_every_message_of_a_broker_is_read
    vectors = Helper.vectors("accepted.json")["messages"].select { |v| v["sender"] == "broker" && v["level"] == 1 }
    assert_operator vectors.size, :>=, 20
    vectors.each do |vector|
      message = Codec.decode_broker(bytes(vector))
      value = vector["value"]
      assert_equal value["broker"], message.broker, vector["name"]
      assert_members(value, message, vector["name"])
    end
  end

  # Compare each member of the vector that the decoded message has.
  def assert_members(value, message, name)
    members = message.members.map(&:to_s) - %w[steps brokers]
    members.each do |member|
      assert_equal [value[member]], [message[member]], "#{name}: #{member}" if value.key?(member)
    end
    if message.is_a?(Stepwire::Messages::Steps)
      value["steps"].zip(message.steps).each { |expected, step| assert_step(expected, step, name) }
    elsif value["brokers"]
      assert_equal value["brokers"], message.brokers.map { |entry| entry.to_h.transform_keys(&:to_s) }, name
    end
  end

  def assert_step(expected, step, name)
    metadata = expected.delete("metadata")
    expected.merge(metadata).each { |member, value| assert_equal [value], [step[member]], "#{name}: #{member}" }
    assert_same Stepwire::ABSENT, step.input, name unless expected.key?("input")
  end

  def test_every_invalid_message_to_a_worker_is_refused_with_its_code
    vectors = Helper.vectors("refused.json")["messages"].select { |vector| vector["to"] == "worker" }
    assert_operator vectors.size, :>=, 9
    vectors.each do |vector|
      refusal = assert_raises(Stepwire::InvalidMessage, vector["name"]) { Codec.decode_broker(bytes(vector)) }
      assert_equal vector["code"], refusal.code, vector["name"]
    end
  end

  def test_a_type_of_a_later_version_is_unknown
    Helper.vectors("accepted.json")["ignored"].select { |vector| vector["sender"] == "broker" }.each do |vector|
      refusal = assert_raises(Stepwire::InvalidMessage) { Codec.decode_broker(vector["text"]) }
      assert_equal "unknown_type", refusal.code
    end
  end

  def test_a_frame_is_split_at_its_first_space
    assert_equal ["@a ", '{"b": 1}'], Codec.split('@a {"b": 1}')
    assert_equal "no_topic", assert_raises(Stepwire::InvalidMessage) { Codec.split("brokers") }.code
    assert_equal "empty", assert_raises(Stepwire::InvalidMessage) { Codec.split(+"") }.code
  end

  def test_names_match_patterns_as_the_vectors_state
    Helper.vectors("patterns.json")["patterns"].each do |vector|
      assert_equal vector["matches"], Stepwire::Patterns.match?(vector["pattern"], vector["path"]), vector
    end
  end

  def test_a_results_message_has_the_bytes_of_the_python_codec
    vector = Helper.vectors("accepted.json")["messages"].find do |v|
      v["exact"] && v["text"].start_with?('{"type":"results"') && v["value"]["free"]
    end
    value = vector["value"]
    results = value["results"].map do |r|
      Stepwire::Result.new(r["step_id"], r["delivery"], r["status"], JSON.generate(r["output"]),
                           compact(r["error"]), compact(r["metadata"]))
    end
    start = Codec.results_start(*value.values_at("worker", "session", "deployment"))
    head = value.values_at("batch_id", "rid", "n", "free", "slots_free")
    assert_equal vector["text"], Codec.encode_results(start, *head, results)
  end

  def compact(members)
    members&.reject { |_, value| value.nil? }
  end
end
