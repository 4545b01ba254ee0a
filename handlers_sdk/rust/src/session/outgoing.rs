//! The actions decided so far, and the counter `n` of the messages sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::brokers::Peer;
use crate::actions::{Action, Event, Level};
use crate::protocol::{codec, limits, topics};

/// The version in which messages are written.
pub(super) const V: &str = limits::PROTOCOL_LEVEL_1;

const SENT_MAX: usize = 128; // hellos and heartbeats whose send time is remembered: for minutes, a lease lasts seconds

/// Collects the actions of all parts, in the order in which they were decided.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub worker: String,
    pub n: u64, // the last number used
    sent_ms: BTreeMap<u64, f64>,
    actions: Vec<Action>,
    to_all: Arc<str>,
    results: Arc<str>,
}

impl Outgoing {
    pub fn new(worker: String) -> Self {
        Self {
            worker,
            n: 0,
            sent_ms: BTreeMap::new(),
            actions: Vec::new(),
            to_all: topics::WORKERS.into(),
            results: topics::RESULTS.into(),
        }
    }

    pub fn add(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub fn log(&mut self, level: Level, event: Event) {
        self.actions.push(Action::Log { level, event });
    }

    pub fn send(&mut self, topic: Arc<str>, body: Arc<Vec<u8>>) {
        self.actions.push(Action::Send { topic, body });
    }

    pub fn send_to<T: Serialize>(&mut self, peer: &Peer, message: &T) {
        self.send(peer.topic.clone(), Arc::new(codec::encode(message)));
    }

    /// Sends encoded JSON to every broker.
    pub fn send_to_all(&mut self, body: Vec<u8>) {
        self.send(self.to_all.clone(), Arc::new(body));
    }

    pub fn send_results_to_all(&mut self, body: Arc<Vec<u8>>) {
        self.send(self.results.clone(), body);
    }

    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// The actions decided since the last call.
    pub fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub fn next_n(&mut self) -> u64 {
        self.n += 1;
        self.n
    }

    /// The next number, for a message that brokers echo. The lease starts at the send time of this message.
    pub fn next_timed_n(&mut self, now_ms: f64) -> u64 {
        let n = self.next_n();
        self.sent_ms.insert(n, now_ms);
        if self.sent_ms.len() > SENT_MAX {
            let oldest = self.sent_ms.keys().next().copied();
            self.sent_ms.remove(&oldest.unwrap_or(0));
        }
        n
    }

    /// The send time of the hello or heartbeat with this number; None if unknown or too old.
    pub fn sent_ms(&self, n: u64) -> Option<f64> {
        self.sent_ms.get(&n).copied()
    }
}

/// Splits the items into lists that fit into one message.
pub(super) fn parts<T>(items: &[T]) -> impl Iterator<Item = &[T]> {
    items.chunks(limits::BATCH_ITEMS_MAX)
}
