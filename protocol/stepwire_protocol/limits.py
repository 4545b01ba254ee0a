"""Every limit and time of the protocol, by name. SPEC.md contains this table; no other file repeats the numbers."""

from typing import Final

PROTOCOL_LEVEL_0: Final = "1.0"
PROTOCOL_LEVEL_1: Final = "2.0"
VERSIONS_SUPPORTED: Final = (PROTOCOL_LEVEL_1,)

INTEGER_MAX: Final = 2**53 - 1  # the largest integer that the JSON parsers of all languages read exactly
DEPTH_MAX: Final = 32
CONTAINERS_MAX: Final = 250_000  # arrays and objects in one message: 4 MiB of brackets would take a second to read
CONTROL_CONTAINERS_MAX: Final = 20_100  # the same in a message on `workers `: the held items, and a few members
EXPONENTS_MAX: Final = 250_000  # numbers with an exponent of two or more digits in one message
EXTREME_NUMBERS_MAX: Final = 2_000  # numbers with an exponent of 280 or more: some parsers take microseconds for each
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024  # the largest message a peer may send; the socket disconnects at twice that
MESSAGE_BYTES_MIN: Final = 64 * 1024  # the smallest limit that a worker may announce
FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
WORKERS_BYTES_MAX: Final = 1024 * 1024  # a message on `workers `, which carries no business data
SUBSCRIPTION_BYTES_MAX: Final = 512
BATCH_ITEMS_MAX: Final = 1000  # results or items in one message
HELD_ITEMS_MAX: Final = 20_000  # items in `holding`
HANDLERS_MAX: Final = 1000
LABELS_MAX: Final = 64
LABEL_MAX: Final = 256
DESCRIPTION_MAX: Final = 128
NAME_BYTES_MAX: Final = 128
HANDLER_VERSION_MAX: Final = 64
TRACESTATE_MAX: Final = 512

HEARTBEAT_MS: Final = 2_000
HEARTBEAT_MIN_MS: Final = 100
HEARTBEAT_JITTER: Final = 0.10
LEASE_MS: Final = 10_000
LEASE_WORKER_FACTOR: Final = 0.97  # the lease ends at the worker first: a message is sent before it is received
LEASE_BROKER_FACTOR: Final = 1.03
HELLO_RETRY_MS: Final = 250
HELLO_RETRY_MAX_MS: Final = 1_000
HELLO_JITTER: Final = 0.20
DROP_WAIT_MS: Final = 250  # pause before the hello after a second drop in a row; doubles with each further one
DROP_WAIT_MAX_MS: Final = 5_000
STEPS_RETRANSMIT_MS: Final = 300
STEPS_RETRANSMIT_MAX_MS: Final = 3_000
RESULTS_RETRANSMIT_MS: Final = 500
RESULTS_RETRANSMIT_MAX_MS: Final = 5_000
RESULTS_BROADCAST_FROM_TRY: Final = 3  # from this try on, results are also sent to every other broker
START_RETRANSMIT_MS: Final = 300
START_RETRANSMIT_MAX_MS: Final = 3_000
ADOPT_RETRY_MS: Final = 1_000
SOCKET_REBUILD_MS: Final = 15_000
SERVER_KEY_RETRY_MS: Final = 5_000  # silence after which a worker tries the next of several listed CURVE keys
UNLISTED_MS: Final = 600_000  # a broker learned from a list is disconnected when no list has named it for this time
TIMEOUT_DEFAULT_MS: Final = 30_000
TIMEOUT_GRACE_MS: Final = 5_000
TOMBSTONE_MS: Final = 600_000
PREFETCH_MIN: Final = 10
PREFETCH_MS: Final = 40  # a worker has room for the steps that it is observed to finish in this time
