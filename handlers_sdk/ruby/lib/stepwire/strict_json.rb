# frozen_string_literal: true

require "json"
require "strscan"

module Stepwire
  # Checks JSON under the rules of SPEC.md §3, which Ruby's own parser and generator do not enforce: comments, unknown
  # escapes and invalid UTF-8 are accepted by the parser; symbols, times and any other object become strings in the
  # generator.
  module StrictJson
    TOP_LEVELS = 3 # the levels of a results message around an output
    PARSE_DEPTH_MAX = 200 # a broker's message may be deeper than DEPTH_MAX: an output becomes a `previous_results`

    # Text without a backslash, and valid escapes. Matched in pieces, because a long match needs much memory.
    ESCAPES = %r{
      (?: [^\\]++ | \\ (?: ["\\/bfnrt]
        | u (?: [0-9a-cA-CefEF]\h{3} | [dD][0-7]\h{2} | [dD][89abAB]\h{2}\\u[dD][c-fC-F]\h{2} ) ) ){1,200}
    }nx
    HALF_A_PAIR = /\\u[dD][89a-fA-F]\h{2}/n
    # Strings without a backslash, and what is between strings without a slash. The alternatives begin with different
    # characters and give nothing back, so a match takes linear time.
    PLAIN = %r{(?:[^"/]++|"[^"\\]*+"){1,200}}n
    SLASH = "/".ord
    ASTERISK = "*".ord
    INSIDE_STRING = /(?:[^"\\]++|\\.){1,200}/nm

    module_function

    # Parse a message of a broker. Raises InvalidMessage.
    def parse(body)
      text = body.encoding == Encoding::UTF_8 ? body : body.dup.force_encoding(Encoding::UTF_8)
      raise InvalidMessage, "empty" if text.empty?
      raise InvalidMessage.new("not_utf8", "the JSON is not UTF-8") unless text.valid_encoding?

      check_escapes(text) if text.include?("\\")
      check_comments(text) if text.include?("/") && comment_mark?(text)
      begin
        parse_to_depth(text)
      rescue JSON::NestingError
        raise InvalidMessage.new("too_deep", "the nesting is deeper than #{PARSE_DEPTH_MAX}")
      rescue JSON::ParserError => e
        raise InvalidMessage.new("not_json", Texts.shortened(e.message, 200))
      end
    end

    # Parse without options first, which permits 100 levels: to read an option takes as long as a small message.
    def parse_to_depth(text)
      JSON.parse(text)
    rescue JSON::NestingError
      JSON.parse(text, max_nesting: PARSE_DEPTH_MAX)
    end

    # Ruby's parser accepts unknown escapes, and the second half of a surrogate pair without the first.
    def check_escapes(text)
      rest = unmatched(text, ESCAPES)
      return if rest.nil?
      raise InvalidMessage, "lone_surrogate" if rest.match?(/\A#{HALF_A_PAIR}/n)

      raise InvalidMessage.new("not_json", "a string has an unknown escape")
    end

    # True if the text has `//` or `/*`, perhaps in a string. The search for one byte is much faster than for two.
    def comment_mark?(text)
      bytes = text.ascii_only? ? text : text.b # whose index counts no characters
      at = -1
      while (at = bytes.index("/", at + 1))
        following = bytes.getbyte(at + 1)
        return true if following == SLASH || following == ASTERISK # rubocop:disable Style/MultipleComparison -- fast
      end
      false
    end

    # Ruby's parser accepts comments.
    def check_comments(text)
      scanner = StringScanner.new(text.b)
      until scanner.eos?
        nil while scanner.skip(PLAIN)
        break unless scanner.skip(/"/)

        nil while scanner.skip(INSIDE_STRING)
        scanner.skip(/"/)
      end
      raise InvalidMessage.new("not_json", "a comment is no JSON") if scanner.peek(1) == "/"
    end

    # The first bytes that no piece of the text matches; nil if all do.
    def unmatched(text, piece)
      scanner = StringScanner.new(text.b)
      nil while scanner.skip(piece)
      scanner.eos? ? nil : scanner.rest[0, 16]
    end

    # One state for all threads: without a limit of the nesting and without indentation, `generate` changes nothing in
    # it that matters. Making a state takes longer than encoding a small output.
    GENERATOR = JSON::State.new(max_nesting: 0)

    # The JSON of plain data of the SDK's own.
    def generate(value)
      GENERATOR.generate(value)
    end

    # The JSON of an output. Raises InvalidMessage with the reason: what no other language or no database can read.
    def encode(value)
      containers = check(value, TOP_LEVELS, 0)
      raise InvalidMessage.new("too_large", "more than #{Limits::CONTAINERS_MAX} arrays and objects") if
        containers > Limits::CONTAINERS_MAX

      output = GENERATOR.generate(value)
      check_nul(value) if output.include?("\\") && output.include?("\\u0000")
      output
    end

    # Check the value, and return the number of arrays and objects so far.
    def check(value, depth, containers)
      case value
      when String then check_text(value)
      when Integer
        if value > Limits::INTEGER_MAX || value < -Limits::INTEGER_MAX
          raise InvalidMessage.new("integer_out_of_range", "#{value.to_s[0, 32]} is outside ±(2^53 - 1): send a string")
        end
      when Hash then return check_object(value, check_depth(depth), containers + 1)
      when Array
        depth = check_depth(depth)
        containers += 1
        value.each { |element| containers = check(element, depth, containers) }
      when nil, true, false then nil
      when Float
        raise InvalidMessage.new("not_a_number", "#{value} is no number in JSON") unless value.finite?
      when Symbol then check_text(value.name)
      else raise InvalidMessage.new("bad_field", advice(value))
      end
      containers
    end

    def check_depth(depth)
      raise InvalidMessage.new("too_deep", "the nesting is deeper than #{Limits::DEPTH_MAX}") if
        depth >= Limits::DEPTH_MAX

      depth + 1
    end

    def check_object(hash, depth, containers)
      symbols = strings = false
      hash.each do |key, value|
        case key
        when String
          strings = true
          check_text(key)
        when Symbol
          symbols = true
          check_text(key.name)
        else raise InvalidMessage.new("bad_field", "a key is #{a_value(key)}: keys are strings or symbols")
        end
        containers = check(value, depth, containers)
      end
      check_twice(hash) if symbols && strings
      containers
    end

    def check_twice(hash)
      names = hash.keys.map(&:to_s)
      twice = names.tally.key(2)
      raise InvalidMessage.new("duplicate_key", "the key #{twice.inspect} is a string and a symbol") if twice
    end

    # An output of ASCII alone, as nearly every one is, costs one question. U+0000 is searched for in the output.
    def check_text(text)
      return if text.ascii_only?

      if text.encoding != Encoding::UTF_8
        begin
          text = text.encode(Encoding::UTF_8)
        rescue EncodingError
          raise InvalidMessage.new("not_utf8",
                                   "a string is #{text.encoding} and no text: encode it, for example as Base64")
        end
      end
      raise InvalidMessage.new("lone_surrogate", "a string is not valid UTF-8") unless text.valid_encoding?
    end

    # Check the texts of an output that has `\u0000`: it may also be a backslash before `u0000`.
    def check_nul(value)
      case value
      when Hash then value.each { |key, inner| [key, inner].each { |part| check_nul(part) } }
      when Array then value.each { |element| check_nul(element) }
      when String, Symbol
        raise InvalidMessage.new("nul_character", "a string holds U+0000, which databases cannot store") if
          value.to_s.encode(Encoding::UTF_8).include?("\0")
      end
    end

    def advice(value)
      instead = case value
                when Time then "a text, for example `time.utc.iso8601(3)`"
                when Struct then "a Hash, for example `value.to_h`"
                when Enumerator, Proc then "a value, for example a list"
                else "plain data"
                end
      "it holds a value of the type #{value.class}, which has no form in JSON: return #{instead}"
    end

    def a_value(value)
      name = value.class.name || "an object"
      name.match?(/\A[AEIOU]/) ? "an #{name}" : "a #{name}"
    end
  end
end
