# frozen_string_literal: true

# The session and its parts, in the order of their dependencies (handlers_sdk/README.md). Needs no binding of ZeroMQ.
require_relative "version"
require_relative "limits"
require_relative "errors"
require_relative "redaction"
require_relative "texts"
require_relative "topics"
require_relative "patterns"
require_relative "actions"
require_relative "messages"
require_relative "strict_json"
require_relative "codec"
%w[
  config promises brokers outgoing deliveries tombstones pace slots holdings outbox runs credit intake reporting
  progress announcements leases endpoints session
].each { |part| require_relative "session/#{part}" }
require_relative "runners/run_slots"
