//! Progress reports: only the latest of each run is sent, at most five times a second.

use super::deliveries::HeldDelivery;
use super::holdings::group;
use super::ordered::OrderedMap;
use super::outgoing::{parts, V};
use super::Session;
use serde_json::Number;

use crate::actions::NEVER;
use crate::protocol::limits::INTEGER_MAX;
use crate::protocol::messages::{Item, Progress, ProgressItem};

const PROGRESS_EVERY_MS: f64 = 200.0;

/// The latest progress of each run that was not sent yet.
#[derive(Debug)]
pub(super) struct Reports {
    pub send_at_ms: f64,
    latest: OrderedMap<Item, ProgressItem>,
    sent_ms: f64,
}

impl Reports {
    pub fn new() -> Self {
        Self { send_at_ms: NEVER, latest: OrderedMap::default(), sent_ms: -NEVER }
    }

    pub fn add(&mut self, held: &HeldDelivery, done: f64, total: Option<f64>, note: Option<String>, now_ms: f64) {
        let (step_id, delivery) = held.item;
        self.latest.insert(held.item, (step_id, delivery, number(done), total.map(number), note));
        self.send_at_ms = now_ms.max(self.sent_ms + PROGRESS_EVERY_MS);
    }

    pub fn forget(&mut self, item: &Item) {
        self.latest.remove(item);
    }
}

/// A whole number is written without a fraction.
fn number(value: f64) -> Number {
    if value.fract() == 0.0 && value.abs() <= INTEGER_MAX as f64 {
        return Number::from(value as i64);
    }
    Number::from_f64(value).unwrap_or_else(|| Number::from(0))
}

impl Session {
    pub(super) fn send_progress(&mut self, now_ms: f64) {
        self.progress.send_at_ms = NEVER;
        self.progress.sent_ms = now_ms;
        let mut entries = Vec::new();
        for (item, entry) in self.progress.latest.take() {
            let peer = self.holdings.get(&item).map(|held| held.peer.get());
            if let Some(peer) = peer.filter(|peer| self.brokers[*peer].session.is_some()) {
                entries.push((peer, entry));
            }
        }
        let worker = self.out.worker.clone();
        for (peer, items) in group(entries) {
            let peer = &self.brokers[peer];
            let session = peer.session.as_deref().unwrap_or("");
            for part in parts(&items) {
                self.out.send_to(peer, &Progress { v: V, worker: &worker, session, items: part });
            }
        }
    }
}
