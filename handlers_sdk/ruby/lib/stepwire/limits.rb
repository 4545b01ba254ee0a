# frozen_string_literal: true

module Stepwire
  # Every limit and time of the protocol, by name. SPEC.md §19 contains this table; no other file repeats the numbers.
  module Limits
    PROTOCOL_LEVEL_1 = "2.0"
    VERSIONS_SUPPORTED = [PROTOCOL_LEVEL_1].freeze

    INTEGER_MAX = (2**53) - 1 # the largest integer that the JSON parsers of all languages read exactly
    DEPTH_MAX = 32
    CONTAINERS_MAX = 250_000
    MESSAGE_BYTES_MAX = 4 * 1024 * 1024
    FRAME_BYTES_MAX = 8 * 1024 * 1024
    BATCH_ITEMS_MAX = 1000 # results, items, held items in one message
    HANDLERS_MAX = 1000
    NAME_BYTES_MAX = 128
    HANDLER_VERSION_MAX = 64
    TRACESTATE_MAX = 512

    HEARTBEAT_MS = 2_000
    HEARTBEAT_MIN_MS = 100
    HEARTBEAT_JITTER = 0.10
    LEASE_MS = 10_000
    LEASE_WORKER_FACTOR = 0.97 # the lease ends at the worker first: a message is sent before it is received
    HELLO_RETRY_MS = 250
    HELLO_RETRY_MAX_MS = 1_000
    HELLO_JITTER = 0.20
    DROP_WAIT_MS = 250 # pause before the hello after a second drop in a row; doubles with each further one
    DROP_WAIT_MAX_MS = 5_000
    RESULTS_RETRANSMIT_MS = 500
    RESULTS_RETRANSMIT_MAX_MS = 5_000
    RESULTS_BROADCAST_FROM_TRY = 3 # from this try on, results are also sent to every other broker
    START_RETRANSMIT_MS = 300
    START_RETRANSMIT_MAX_MS = 3_000
    SOCKET_REBUILD_MS = 15_000
    SERVER_KEY_RETRY_MS = 5_000
    UNLISTED_MS = 600_000 # a broker learned from a list is disconnected when no list names it for this time
    TIMEOUT_DEFAULT_MS = 30_000
    TOMBSTONE_MS = 600_000
    PREFETCH_MIN = 10
    PREFETCH_MS = 40 # a worker has room for the steps that it is observed to finish in this time
  end
end
