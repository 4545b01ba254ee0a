# frozen_string_literal: true

require "json"

module Stepwire
  # Decodes frames of brokers into messages, and encodes messages of the worker. No other module handles the bytes.
  # Members are written in the order of SPEC.md, compact, without those that have their default.
  module Codec
    VERSION = /\A2\.[0-9]{1,4}\z/
    V = Limits::PROTOCOL_LEVEL_1
    CANCEL_REASONS = %w[not_granted timeout task_cancelled superseded].freeze
    RESET_CODES = %w[unknown_session expired version unauthorized shutdown].freeze
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"

    module_function

    # Split a frame into [topic with its space, JSON]. The JSON starts after the first space.
    def split(frame)
      finish = frame.index(" ")
      raise InvalidMessage, frame.empty? ? "empty" : "no_topic" if finish.nil?

      start = finish + 1
      [frame[0, start], frame[start, frame.bytesize]]
    end

    # -- messages of brokers ------------------------------------------------------------------------------------------

    # Decode a message of a broker. Raises InvalidMessage; the caller ignores `unknown_type`.
    def decode_broker(body)
      message = StrictJson.parse(body)
      bad("the JSON is not an object") unless message.is_a?(Hash)

      type = message["type"]
      bad("`type` is missing or no string") unless type.is_a?(String)

      decode = DECODERS[type]
      raise InvalidMessage.new("unknown_type", "type #{type[0, 32].inspect}") if decode.nil?

      check_version(message)
      broker = member(message, "broker")
      bad("`broker` has the wrong form") unless broker.is_a?(String) && Topics::BROKER.match?(broker)

      decoded = decode.call(message, broker, count(message, "epoch"))
      to_open(decoded) if type == "steps" && may_need_opening?(body)
      decoded
    end

    # True if a step of this message may hold references to secrets or sealed payloads: keys may have escapes. The
    # search for one byte is much faster than for several, and nearly every message ends with it.
    def may_need_opening?(body)
      (body.include?("$") && body.include?("$se")) || (body.include?("\\") && body.include?("\\u00"))
    end

    # Mark the steps of such a message.
    def to_open(message)
      message.steps.map! { |step| StepToOpen.new(*step) }
    end

    def check_version(message)
      v = message["v"]
      return if v == V
      raise InvalidMessage.new("missing_version", "v is missing") unless message.key?("v")
      raise InvalidMessage.new("unknown_version", "a version is a string like 2.0") unless v.is_a?(String)
      raise InvalidMessage.new("unknown_version", "v is #{v[0, 32].inspect}") unless VERSION.match?(v)
    end

    DECODERS = {
      "steps" => lambda do |m, broker, epoch|
        Messages::Steps.new(broker, epoch, session(m), batch_id(m), text(m, "protocol_version"),
                            list(m, "steps").map { |step| decode_step(step) })
      end,
      "ack" => lambda do |m, broker, epoch|
        rids = list(m, "rids")
        bad("`rids` has a number below 1, or none") unless rids.all? { |rid| id?(rid) }

        Messages::Ack.new(broker, epoch, rids)
      end,
      "heartbeat_ack" => lambda do |m, broker, epoch|
        Messages::HeartbeatAck.new(broker, epoch, session(m), count(m, "n"), flag(m, "quiet"), flag(m, "quit"),
                                   m["brokers"].nil? ? nil : endpoints(m))
      end,
      "go" => ->(m, broker, epoch) { Messages::Go.new(broker, epoch, session(m), items(m)) },
      "cancel" => lambda do |m, broker, epoch|
        Messages::Cancel.new(broker, epoch, session(m), items(m), one_of(m, "reason", CANCEL_REASONS))
      end,
      "adopt" => ->(m, broker, epoch) { Messages::Adopt.new(broker, epoch, session(m), items(m)) },
      "here" => lambda do |m, broker, epoch|
        Messages::Here.new(broker, epoch, text(m, "deployment"), texts(m, "versions"))
      end,
      "welcome" => lambda do |m, broker, epoch|
        Messages::Welcome.new(broker, epoch, session(m), text(m, "deployment"), count(m, "n"), id(m, "lease_ms"),
                              count(m, "heartbeat_ms"), id(m, "max_message_bytes"),
                              m.key?("brokers") ? endpoints(m) : [])
      end,
      "reset" => lambda do |m, broker, epoch|
        versions = m.key?("versions") ? texts(m, "versions") : []
        Messages::Reset.new(broker, epoch, count(m, "next"), one_of(m, "code", RESET_CODES), versions)
      end,
      "refused" => lambda do |m, broker, epoch|
        Messages::Refused.new(broker, epoch, text(m, "code"), text(m, "message"), text_or_nil(m, "refused"),
                              integer_or_nil(m, "rid"))
      end
    }.freeze

    def decode_step(step)
      bad("a step is not an object") unless step.is_a?(Hash)

      metadata = step["metadata"]
      bad("`metadata` is not an object") unless metadata.is_a?(Hash)

      request = StepRequest.new(
        step["step_id"], step["task_id"], step["step_name"], step["handler_class"],
        step.fetch("handler_config", NO_CONFIG), any(step, "task_context"), any(step, "previous_results"),
        step.fetch("input", ABSENT), step["delivery"], delivery_mode(step),
        metadata["attempt"], metadata["retry_limit"], metadata["timeout_ms"], metadata["idempotency_key"],
        nil, nil, nil, false
      )
      check_members(request, step, metadata)
      read_optional(request, metadata) if metadata.size > METADATA_REQUIRED
      request
    end

    METADATA_REQUIRED = 4 # members
    NO_CONFIG = {}.freeze # of all steps without a `handler_config`: handlers do not receive this object

    # Check the members that every step has, all of a type in one call. The check of one member only names the fault.
    def check_members(request, step, metadata)
      %w[step_id task_id delivery].each { |name| id(step, name) } unless
        counts?(1, request.step_id, request.task_id, request.delivery)
      %w[attempt retry_limit timeout_ms].each { |name| count(metadata, name) } unless
        counts?(0, request.attempt, request.retry_limit, request.timeout_ms)
      return if texts?(request.step_name, request.handler_class, request.idempotency_key)

      %w[step_name handler_class].each { |name| text(step, name) }
      text(metadata, "idempotency_key")
    end

    def read_optional(request, metadata)
      request.traceparent = text_or_nil(metadata, "traceparent")
      request.tracestate = tracestate(metadata)
      request.deadline_ms = count_or_nil(metadata, "deadline_ms")
      request.shadow = flag(metadata, "shadow")
    end

    def counts?(least, one, two, three)
      max = Limits::INTEGER_MAX
      one.is_a?(Integer) && one >= least && one <= max && two.is_a?(Integer) && two >= least && two <= max &&
        three.is_a?(Integer) && three >= least && three <= max
    end

    def texts?(one, two, three)
      one.is_a?(String) && two.is_a?(String) && three.is_a?(String)
    end

    # Business data: any JSON, an empty object if it is absent.
    def any(step, name)
      value = step[name]
      value.nil? && !step.key?(name) ? {} : value
    end

    def delivery_mode(step)
      mode = step["delivery_mode"]
      return mode if mode == AT_LEAST_ONCE || mode == AT_MOST_ONCE # rubocop:disable Style/MultipleComparison -- fast
      return AT_LEAST_ONCE unless step.key?("delivery_mode")

      bad("`delivery_mode` has an unknown value")
    end

    # What remains of a `steps` message that cannot be read as one: [type, broker, session, batch_id, items], or nil.
    def decode_remains(body)
      message = StrictJson.parse(body)
      return unless message.is_a?(Hash)

      texts = %w[type broker session batch_id].map { |name| message.fetch(name, "") }
      steps = message.fetch("steps", [])
      return unless message.key?("type") && texts.all?(String) && steps.is_a?(Array)
      return unless steps.all? { |s| s.is_a?(Hash) && id?(s["step_id"]) && id?(s["delivery"]) }

      [*texts, steps.map { |step| [step["step_id"], step["delivery"]] }]
    rescue InvalidMessage
      nil
    end

    # -- members ------------------------------------------------------------------------------------------------------

    def bad(text)
      raise InvalidMessage.new("bad_field", text)
    end

    def member(object, name)
      object.fetch(name) { bad("`#{name}` is missing") }
    end

    def id?(value)
      value.is_a?(Integer) && value >= 1 && value <= Limits::INTEGER_MAX
    end

    def count?(value)
      value.is_a?(Integer) && value >= 0 && value <= Limits::INTEGER_MAX
    end

    def id(object, name)
      value = object[name]
      return value if value.is_a?(Integer) && value >= 1 && value <= Limits::INTEGER_MAX

      bad("`#{name}` is missing, or no integer of at least 1")
    end

    def count(object, name)
      value = object[name]
      return value if value.is_a?(Integer) && value >= 0 && value <= Limits::INTEGER_MAX

      bad("`#{name}` is missing, or no integer of at least 0")
    end

    def count_or_nil(object, name)
      value = object[name]
      value.nil? || count?(value) ? value : bad("`#{name}` is not an integer of at least 0")
    end

    def integer_or_nil(object, name)
      value = object[name]
      value.nil? || value.is_a?(Integer) ? value : bad("`#{name}` is not an integer")
    end

    def text(object, name)
      value = object[name]
      value.is_a?(String) ? value : bad("`#{name}` is missing, or no string")
    end

    def text_or_nil(object, name)
      value = object[name]
      value.nil? || value.is_a?(String) ? value : bad("`#{name}` is not a string")
    end

    def tracestate(object)
      value = text_or_nil(object, "tracestate")
      return value if value.nil? || value.length <= Limits::TRACESTATE_MAX

      bad("`tracestate` has more than #{Limits::TRACESTATE_MAX} characters")
    end

    def flag(object, name)
      value = object[name]
      return false if value.nil? && !object.key?(name)

      true.equal?(value) || false.equal?(value) ? value : bad("`#{name}` is neither true nor false")
    end

    def list(object, name)
      value = member(object, name)
      value.is_a?(Array) ? value : bad("`#{name}` is not an array")
    end

    def texts(object, name)
      value = list(object, name)
      value.all?(String) ? value : bad("`#{name}` has a value that is not a string")
    end

    def one_of(object, name, values)
      value = member(object, name)
      values.include?(value) ? value : bad("`#{name}` has an unknown value")
    end

    def session(object)
      value = member(object, "session")
      value.is_a?(String) && Topics::SESSION.match?(value) ? value : bad("`session` has the wrong form")
    end

    def batch_id(object)
      value = text(object, "batch_id")
      value.length.between?(1, 128) ? value : bad("`batch_id` does not have 1 to 128 characters")
    end

    def items(object)
      value = list(object, "items")
      bad("`items` has more than #{Limits::BATCH_ITEMS_MAX}") if value.size > Limits::BATCH_ITEMS_MAX
      value.each do |item|
        next if item.is_a?(Array) && item.size == 2 && id?(item[0]) && id?(item[1])

        bad("`items` has an element that is not [step_id, delivery]")
      end
    end

    def endpoints(object)
      list(object, "brokers").map do |entry|
        bad("`brokers` has an element that is not an object") unless entry.is_a?(Hash)

        server_key = text_or_nil(entry, "server_key")
        bad("`server_key` is no key") unless server_key.nil? || Topics::CURVE_KEY.match?(server_key)

        Endpoints.new(text(entry, "broker"), text(entry, "steps"), text(entry, "results"), server_key)
      end
    end

    # -- messages of the worker ---------------------------------------------------------------------------------------

    # The JSON of a message: `type`, `v`, `worker`, then the members of the hash in their order.
    def encode(type, worker, members)
      StrictJson.generate({ type: type, v: V, worker: worker }.merge!(members))
    end

    # An `accept`, which is sent for nearly every batch of a busy worker.
    def encode_accept(worker, session, batch_id, free, slots_free)
      "{\"type\":\"accept\",\"v\":\"#{V}\",\"worker\":\"#{worker}\",\"session\":\"#{session}\"," \
        "\"batch_id\":#{StrictJson.generate(batch_id)},\"free\":#{free},\"slots_free\":#{slots_free}}"
    end

    # The beginning of a results message, which is the same for all of a session.
    def results_start(worker, session, deployment)
      "{\"type\":\"results\",\"v\":\"#{V}\",\"worker\":\"#{worker}\",\"session\":\"#{session}\"," \
        "\"deployment\":#{StrictJson.generate(deployment)},\"batch_id\":"
    end

    # The JSON of a results message. `start`: its beginning (`results_start`).
    def encode_results(start, batch_id, rid, n, free, slots_free, results)
      results = results.size == 1 ? results[0].json : results.map(&:json).join(",")
      "#{start}#{StrictJson.generate(batch_id)},\"protocol_version\":\"#{V}\",\"rid\":#{rid},\"n\":#{n}," \
        "\"free\":#{free},\"slots_free\":#{slots_free},\"results\":[#{results}]}"
    end
  end
end
