//! The credit that a broker may still use: what the worker has named to it, and has not taken back with certainty.
//!
//! A worker takes credit back by naming less. The broker may send by the earlier number until it has read the later one,
//! and only its ack of that heartbeat proves that. Until then, no other broker is offered the same places.

use std::collections::VecDeque;

const ENTRIES_MAX: usize = 128; // unacknowledged hellos and heartbeats that are told apart

/// The credit named to one broker: an entry for each hello or heartbeat that the broker may not have read.
///
/// Messages without an n of a hello or heartbeat count for the latest entry.
#[derive(Debug, Default)]
pub(super) struct Promises {
    entries: VecDeque<(u64, i64)>, // n, free
}

impl Promises {
    /// The number of steps that the broker may still send.
    pub fn promised(&self) -> i64 {
        self.entries.iter().map(|(_, free)| *free).max().unwrap_or(0)
    }

    /// A hello or heartbeat with this number names this credit.
    pub fn announce(&mut self, n: u64, free: i64) {
        self.entries.push_back((n, free));
        if self.entries.len() > ENTRIES_MAX {
            let oldest = self.entries.pop_front();
            if let (Some((_, oldest_free)), Some((_, free))) = (oldest, self.entries.front_mut()) {
                *free = oldest_free.max(*free);
            }
        }
    }

    /// Another message names this credit.
    pub fn name(&mut self, free: i64) {
        match self.entries.back_mut() {
            None => self.entries.push_back((0, free)),
            Some((_, latest)) => *latest = free.max(*latest),
        }
    }

    /// The broker has sent this number of steps.
    pub fn take(&mut self, steps: usize) {
        for (_, free) in &mut self.entries {
            *free = (*free - steps as i64).max(0);
        }
    }

    /// The broker has read the hello or heartbeat n, and with it everything before. True if fewer are promised.
    pub fn acknowledge(&mut self, n: u64) -> bool {
        let before = self.promised();
        self.entries.retain(|(number, _)| *number >= n);
        self.promised() < before
    }
}
