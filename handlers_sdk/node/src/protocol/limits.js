/** Every limit and time of the protocol that a worker needs, by the names of protocol/SPEC.md section 19. */

export const PROTOCOL_LEVEL_1 = '2.0'
export const VERSIONS_SUPPORTED = [PROTOCOL_LEVEL_1]

export const INTEGER_MAX = Number.MAX_SAFE_INTEGER
export const DEPTH_MAX = 32
export const CONTAINERS_MAX = 250_000
export const MESSAGE_BYTES_MAX = 4 * 1024 * 1024
export const FRAME_BYTES_MAX = 8 * 1024 * 1024
export const BATCH_ITEMS_MAX = 1000
export const HANDLERS_MAX = 1000
export const NAME_BYTES_MAX = 128
export const HANDLER_VERSION_MAX = 64
export const TRACESTATE_MAX = 512

export const HEARTBEAT_MS = 2_000
export const HEARTBEAT_JITTER = 0.1
export const HEARTBEAT_MIN_MS = 100
export const LEASE_MS = 10_000
export const LEASE_WORKER_FACTOR = 0.97 // the lease ends at the worker first: a message is sent before it is received
export const HELLO_RETRY_MS = 250
export const HELLO_RETRY_MAX_MS = 1_000
export const HELLO_JITTER = 0.2
export const DROP_WAIT_MS = 250 // pause before the hello after a second drop in a row; doubles with each further one
export const DROP_WAIT_MAX_MS = 5_000
export const RESULTS_RETRANSMIT_MS = 500
export const RESULTS_RETRANSMIT_MAX_MS = 5_000
export const RESULTS_BROADCAST_FROM_TRY = 3 // from this try on, results are also sent to every other broker
export const START_RETRANSMIT_MS = 300
export const START_RETRANSMIT_MAX_MS = 3_000
export const SOCKET_REBUILD_MS = 15_000
export const SERVER_KEY_RETRY_MS = 5_000
export const UNLISTED_MS = 600_000 // a broker learned from a list is disconnected after this time on no list
export const TIMEOUT_DEFAULT_MS = 30_000
export const TOMBSTONE_MS = 600_000
export const PREFETCH_MIN = 10
export const PREFETCH_MS = 40 // a worker has room for the steps that it is observed to finish in this time
