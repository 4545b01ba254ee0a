//! The identity of this process as a worker, and the clock that measures leases.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use crate::sys::os;

/// Milliseconds of the worker's own clock, which counts sleep.
pub fn now_ms() -> f64 {
    os::now_ms()
}

/// The facts with which a broker on the same host can prove the death of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThisProcess {
    pub host: String,
    pub pid: u64,
    pub pid_started: u64, // in clock ticks after boot, as in /proc; 0: unknown
    pub is_provable: bool,
}

pub(crate) fn this_process() -> ThisProcess {
    let known = host();
    let pid_started = started().unwrap_or(0);
    ThisProcess {
        is_provable: known.is_some() && pid_started > 0,
        host: known.unwrap_or_else(|| format!("{}:{}", std::env::consts::OS, os::host_name())),
        pid: u64::from(std::process::id()),
        pid_started,
    }
}

/// Boot id, pid namespace and time namespace. For two processes with equal values, a pid with a start time names the
/// same process. None if /proc cannot be trusted.
fn host() -> Option<String> {
    let own = fs::read_link("/proc/self").ok()?;
    if own.to_str() != Some(&std::process::id().to_string()) {
        return None; // this /proc belongs to another pid namespace
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let pid_namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    let time_namespace = fs::metadata("/proc/self/ns/time").map_or(0, |entry| entry.ino());
    Some(format!("{}:{pid_namespace}:{time_namespace}", boot.trim()))
}

/// Field 22 of /proc/self/stat. The fields are counted after the name, which may contain any character.
fn started() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = &stat[stat.rfind(')')? + 2..];
    after_name.split(' ').nth(19)?.parse().ok()
}

/// A new id at every call, because a process that restarts or forks is another worker.
pub(crate) fn new_worker_id(name: &str) -> String {
    format!("{name}:{:016x}", random_number())
}

/// Returns numbers in [0, 1) for the jitter of intervals: xorshift, which needs no quality.
pub(crate) fn jitter() -> impl FnMut() -> f64 {
    let mut state = random_number() | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn random_number() -> u64 {
    let mut bytes = [0; 8];
    let is_read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).is_ok();
    if is_read {
        return u64::from_ne_bytes(bytes);
    }
    let mut hasher = RandomState::new().build_hasher(); // seeded by the system
    hasher.write_u32(std::process::id());
    hasher.write_u64(now_ms().to_bits());
    hasher.finish()
}
