//! Topics. A frame is a topic, one space, JSON. Every topic here includes that space: without it, a subscription of
//! `results@b1` would also receive the messages to `results@b10`.

use super::limits::NAME_BYTES_MAX;

/// To every level-1 worker.
pub const BROKERS: &str = "brokers ";
/// Results to every broker.
pub const RESULTS: &str = "results ";
/// From a worker to every broker.
pub const WORKERS: &str = "workers ";

/// The topic of this worker. No other worker subscribes to it.
pub fn to_worker(worker: &str) -> String {
    format!("@{worker} ")
}

/// The topic of this broker.
pub fn results_to(broker: &str) -> String {
    format!("results@{broker} ")
}

/// The epoch and the number of a session id; None if the text is no session id.
pub fn session_parts(session: &str) -> Option<(u64, u64)> {
    let (epoch, k) = session.split_once('.')?;
    let is_number = |text: &str| (1..=16).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
    if !is_number(epoch) || !is_number(k) {
        return None;
    }
    Some((epoch.parse().ok()?, k.parse().ok()?))
}

/// True for `[a-z0-9-]{1,32}`.
pub fn is_broker(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
}

/// True for `[A-Za-z0-9._-]{1,48}`.
pub fn is_worker_name(text: &str) -> bool {
    (1..=48).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c))
}

/// True for `<name>:<16 hex>`.
pub fn is_worker(text: &str) -> bool {
    text.rsplit_once(':').map_or(false, |(name, hex)| {
        is_worker_name(name) && hex.len() == 16 && hex.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
    })
}

/// True for the name or pattern of a handler.
pub fn is_handler_pattern(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"_.:-*".contains(&c))
}

/// True for a CURVE key in Z85: 40 characters.
pub fn is_curve_key(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|c| c.is_ascii_alphanumeric() || b".-:+=^!/*?&<>()[]{}@%$#".contains(&c))
}
