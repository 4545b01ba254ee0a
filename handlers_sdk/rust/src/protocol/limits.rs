//! Every limit and time of the protocol, by name. SPEC.md section 19 has this table.

#![allow(missing_docs)] // the names are those of the table

pub const PROTOCOL_LEVEL_1: &str = "2.0";
pub const VERSIONS_SUPPORTED: &[&str] = &[PROTOCOL_LEVEL_1];

pub const INTEGER_MAX: u64 = (1 << 53) - 1;
pub const DEPTH_MAX: usize = 32;
pub const CONTAINERS_MAX: usize = 250_000;
pub const MESSAGE_BYTES_MAX: u64 = 4 * 1024 * 1024;
pub const FRAME_BYTES_MAX: i64 = 8 * 1024 * 1024;
pub const BATCH_ITEMS_MAX: usize = 1_000;
pub const HANDLERS_MAX: usize = 1_000;
pub const NAME_BYTES_MAX: usize = 128;
pub const HANDLER_VERSION_MAX: usize = 64;
pub const TRACESTATE_MAX: usize = 512;

pub const HEARTBEAT_MS: u64 = 2_000;
pub const HEARTBEAT_MIN_MS: f64 = 100.0;
pub const HEARTBEAT_JITTER: f64 = 0.10;
pub const LEASE_MS: u64 = 10_000;
pub const LEASE_WORKER_FACTOR: f64 = 0.97;
pub const HELLO_RETRY_MS: f64 = 250.0;
pub const HELLO_RETRY_MAX_MS: f64 = 1_000.0;
pub const HELLO_JITTER: f64 = 0.20;
pub const DROP_WAIT_MS: f64 = 250.0;
pub const DROP_WAIT_MAX_MS: f64 = 5_000.0;
pub const RESULTS_RETRANSMIT_MS: f64 = 500.0;
pub const RESULTS_RETRANSMIT_MAX_MS: f64 = 5_000.0;
pub const RESULTS_BROADCAST_FROM_TRY: u32 = 3;
pub const START_RETRANSMIT_MS: f64 = 300.0;
pub const START_RETRANSMIT_MAX_MS: f64 = 3_000.0;
pub const SOCKET_REBUILD_MS: f64 = 15_000.0;
pub const SERVER_KEY_RETRY_MS: f64 = 5_000.0;
pub const UNLISTED_MS: f64 = 600_000.0;
pub const TIMEOUT_DEFAULT_MS: u64 = 30_000;
pub const TOMBSTONE_MS: f64 = 600_000.0;
pub const PREFETCH_MIN: u64 = 10;
pub const PREFETCH_MS: f64 = 40.0;
