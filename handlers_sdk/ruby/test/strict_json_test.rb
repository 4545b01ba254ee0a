# frozen_string_literal: true

require_relative "helper"

class StrictJsonTest < Minitest::Test
  StrictJson = Stepwire::StrictJson

  def refusal(value)
    assert_raises(Stepwire::InvalidMessage, value.inspect) { StrictJson.encode(value) }
  end

  def test_plain_data_is_an_output
    value = { "a" => [1, -2.5, nil, true, "ü 😀"], b: { c: :d }, "e" => (2**53) - 1 }
    assert_equal '{"a":[1,-2.5,null,true,"ü 😀"],"b":{"c":"d"},"e":9007199254740991}', StrictJson.encode(value)
  end

  def test_what_no_broker_accepts_is_refused_with_its_code
    {
      "not_a_number" => [Float::NAN, Float::INFINITY, [-Float::INFINITY]],
      "integer_out_of_range" => [2**53, -(2**53), { a: 10**40 }],
      "nul_character" => ["a\0b", { "a\0" => 1 }, :"a\x00"],
      "lone_surrogate" => ["\xED\xA0\x80", "\xFF"],
      "not_utf8" => ["\xFF".b],
      "duplicate_key" => [{ "a" => 1, a: 2 }],
      "bad_field" => [Object.new, Time.now, { 1 => 2 }, Struct.new(:a).new(1), 1..2, 3r]
    }.each { |code, values| values.each { |value| assert_equal code, refusal(value).code, value.inspect } }
  end

  def test_a_backslash_before_u0000_is_no_u0000
    assert_equal '["\\\\u0000","é"]', StrictJson.encode(["\\u0000", "é".encode("UTF-16LE")])
    assert_equal "nul_character", refusal([["\\u0000"], { k: ["\0"] }]).code
  end

  def test_texts_of_other_encodings_become_utf8
    assert_equal '["é","é"]', StrictJson.encode(["é".encode("ISO-8859-1"), "é".encode("UTF-16LE")])
  end

  def test_an_output_may_be_as_deep_as_the_message_allows
    nested = ->(levels) { (1...levels).reduce([]) { |inner, _| [inner] } }
    assert_equal ("[" * 29) + ("]" * 29), StrictJson.encode(nested.call(29))
    assert_equal "too_deep", refusal(nested.call(30)).code
  end

  def test_too_many_containers_are_too_large
    assert_equal "too_large", refusal([[]] * 250_000).code
  end

  def test_an_endless_output_is_refused
    endless = []
    endless << endless
    assert_equal "too_deep", refusal(endless).code
  end

  def test_the_advice_names_the_class
    assert_match(/of the type Time, which has no form in JSON: return a text/, refusal({ at: Time.now }).message)
    assert_match(/the type Object, which has no form in JSON/, refusal(Object.new).message)
  end

  # Ruby's own parser accepts most of these.
  def test_a_received_message_is_json_and_nothing_else
    ['{"a":1}//x', "{/**/}", '{"a":"\q"}', '{"a":NaN}', '{"a":-Infinity}', '{"a":01}', '{"a":1,}', "{'a':1}", "",
     '{"a":1} {}', "\xEF\xBB\xBF{}", '{"a":"\ud800"}', '{"a":"\udc00"}', "{\"a\":\"\xFF\"}", "{\"a\":\"\x01\"}",
     "{#{'"a":{' * 300}"].each do |text|
      assert_raises(Stepwire::InvalidMessage, text) { StrictJson.parse(text) }
    end
  end

  def test_a_received_message_may_hold_what_looks_like_a_fault
    value = { "a" => "// /* \\q \\ud800 \"", "b" => "😀", "url" => "http://x/*y*/" }
    assert_equal value, StrictJson.parse(JSON.generate(value))
    assert_equal({ "a" => "\u{1F600}\\" }, StrictJson.parse('{"a":"\ud83d\ude00\\\\"}'))
    assert_equal({ "a" => "\\udc00" }, StrictJson.parse('{"a":"\\\\udc00"}'))
  end

  def test_large_integers_are_received_exactly
    assert_equal({ "a" => 9_007_199_254_740_993 }, StrictJson.parse('{"a":9007199254740993}'))
  end

  # Each takes milliseconds. A check that goes back and forth would take minutes.
  def test_no_text_takes_long
    texts = { escapes: "\\u00e9" * 200_000, quotes: '\\"/*' * 200_000, slashes: "//" * 400_000,
              pairs: '\\ud83d\\ude00' * 100_000, backslashes: "\\\\" * 400_000, open: "/*" * 10 }
    started_ms = Stepwire::Identity.now_ms
    texts.each_value { |text| StrictJson.parse(%({"a":"#{text}","b":["http://x",{}]})) }
    assert_raises(Stepwire::InvalidMessage) { StrictJson.parse(%({"a":"#{'\\"/*' * 200_000})) }
    assert_operator Stepwire::Identity.now_ms - started_ms, :<, 10_000
  end
end
