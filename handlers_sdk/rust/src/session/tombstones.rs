//! The deliveries that this process must not start, or not start again.

use std::rc::Rc;

use super::brokers::{Brokers, PeerId};
use super::deliveries::HeldBatch;
use super::ordered::OrderedMap;
use crate::protocol::limits::TOMBSTONE_MS;
use crate::protocol::messages::Item;

const TOMBSTONES_MAX: usize = 20_000;

/// Remembers deliveries that are over or were refused.
///
/// The number of tombstones may be limited because batch numbers increase within a session. When a tombstone is
/// forgotten, the floor of its session rises to its batch number, and unknown batches up to the floor are refused as
/// stale. A delivery that was disowned before its receipt has no batch number, so its tombstone is kept for the full
/// time.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    received: OrderedMap<Item, (f64, PeerId, Rc<HeldBatch>)>,
    disowned: OrderedMap<Item, (f64, PeerId)>,
}

impl Tombstones {
    pub fn contains(&self, item: &Item) -> bool {
        self.received.contains(item) || self.disowned.contains(item)
    }

    pub fn add(&mut self, item: Item, peer: PeerId, batch: Rc<HeldBatch>, brokers: &mut Brokers, now_ms: f64) {
        self.received.insert(item, (now_ms, peer, batch));
        if self.received.len() > TOMBSTONES_MAX {
            self.forget_oldest(brokers);
        }
    }

    /// Make sure that this delivery, which may still be under way, never starts here.
    pub fn disown(&mut self, item: Item, peer: PeerId, now_ms: f64) {
        if !self.received.contains(&item) {
            self.disowned.insert(item, (now_ms, peer));
        }
    }

    /// Forget tombstones that are older than TOMBSTONE_MS.
    pub fn sweep(&mut self, brokers: &mut Brokers, now_ms: f64) {
        let before = now_ms - TOMBSTONE_MS;
        while self.received.first().map_or(false, |(_, entry)| entry.0 < before) {
            self.forget_oldest(brokers);
        }
        while self.disowned.first().map_or(false, |(_, entry)| entry.0 < before) {
            self.disowned.pop_first();
        }
    }

    /// Forget the tombstones of a broker whose database was replaced, because its ids now belong to other steps.
    pub fn forget_broker(&mut self, peer: PeerId) {
        self.received.retain(|_, entry| entry.1 != peer);
        self.disowned.retain(|_, entry| entry.1 != peer);
    }

    fn forget_oldest(&mut self, brokers: &mut Brokers) {
        if let Some((_, (_, peer, batch))) = self.received.pop_first() {
            let peer = &mut brokers[peer];
            if peer.session.as_ref() == Some(&batch.session) && batch.number > peer.floor {
                peer.floor = batch.number;
            }
        }
    }
}
