# frozen_string_literal: true

require "json"

# The messages of a broker as they are decoded, and the parts of a worker's messages.
module Stepwire
  ABSENT = Object.new.freeze # an absent `input`: null is an input, too

  # One step as a worker receives it, with the members of its `metadata`.
  StepRequest = Struct.new(
    :step_id, :task_id, :step_name, :handler_class, :handler_config, :task_context, :previous_results, :input,
    :delivery, :delivery_mode, :attempt, :retry_limit, :timeout_ms, :idempotency_key, :traceparent, :tracestate,
    :deadline_ms, :shadow
  ) do
    def at_most_once?
      delivery_mode == "at_most_once"
    end

    def needs_opening?
      false
    end
  end

  # A step of a message that may hold references to secrets or sealed payloads. A class, because one more member in
  # every step would need more memory.
  class StepToOpen < StepRequest
    def needs_opening?
      true
    end
  end

  # The endpoints of a broker's two sockets, for workers to connect to. `server_key` is the broker's CURVE key, or nil.
  Endpoints = Struct.new(:broker, :steps, :results, :server_key)

  # Every message of a broker begins with the members `broker` and `epoch`.
  module Messages
    Here = Struct.new(:broker, :epoch, :deployment, :versions)
    Welcome = Struct.new(
      :broker, :epoch, :session, :deployment, :n, :lease_ms, :heartbeat_ms, :max_message_bytes, :brokers
    )
    HeartbeatAck = Struct.new(:broker, :epoch, :session, :n, :quiet, :quit, :brokers)
    Steps = Struct.new(:broker, :epoch, :session, :batch_id, :protocol_version, :steps)
    Go = Struct.new(:broker, :epoch, :session, :items)
    Cancel = Struct.new(:broker, :epoch, :session, :items, :reason)
    Ack = Struct.new(:broker, :epoch, :rids)
    Adopt = Struct.new(:broker, :epoch, :session, :items)
    Reset = Struct.new(:broker, :epoch, :next, :code, :versions)
    Refused = Struct.new(:broker, :epoch, :code, :message, :refused, :rid)
  end

  Result = Struct.new(:step_id, :delivery, :status, :output, :error, :metadata)

  # The outcome of one step. `failed`: the handler failed it. `error`: the step could not be run. `output` is JSON text.
  # `error` and `metadata` are hashes with the members of SPEC.md §5 in that order, or nil. Nearly all results have
  # only a duration: then `metadata` is the number of milliseconds.
  class Result
    THOUSANDTHS = Array.new(1000) { |number| format("%03d", number).freeze }.freeze

    # The JSON of the result. The digits of a duration are written here, in microseconds: `Float#to_s` looks for the
    # shortest ones.
    def json
      metadata = self.metadata
      start = "{\"step_id\":#{step_id},\"delivery\":#{delivery},\"status\":\"#{status}\"," \
              "\"output\":#{output || 'null'},\"error\":#{error ? JSON.generate(error) : 'null'},\"metadata\":"
      return "#{start}#{JSON.generate(metadata)}}" unless metadata.is_a?(Float)

      took_us = (metadata * 1000).round
      "#{start}{\"execution_time_ms\":#{took_us / 1000}.#{THOUSANDTHS[took_us % 1000]}}}"
    end

    def stderr?
      metadata.is_a?(Hash) && metadata.key?(:stderr)
    end

    # An error detail without the members that have their default.
    def self.error_detail(message: "", code: nil, category: nil, retryable: nil, retry_after_ms: nil, backtrace: nil)
      detail = {}
      detail[:message] = message unless message.empty?
      detail[:code] = code unless code.nil?
      detail[:category] = category unless category.nil?
      detail[:retryable] = retryable unless retryable.nil?
      detail[:retry_after_ms] = retry_after_ms unless retry_after_ms.nil?
      detail[:backtrace] = backtrace unless backtrace.nil?
      detail
    end
  end
end
