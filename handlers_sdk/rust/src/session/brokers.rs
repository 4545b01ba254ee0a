//! The brokers that this worker knows.

use std::collections::HashMap;
use std::sync::Arc;

use super::promises::Promises;
use crate::actions::Lease;
use crate::protocol::messages::Members;
use crate::protocol::{limits, topics};

/// The number of a broker in `Brokers`. A broker keeps its number.
pub(super) type PeerId = usize;

/// The worker's knowledge of one broker: the session, the lease, and the broker's share of the load.
#[derive(Debug)]
pub(super) struct Peer {
    pub id: String,
    pub topic: Arc<str>,
    pub next: u64,  // the k of the current or next session; increases when a session is dropped
    pub epoch: i64, // -1: unknown
    pub session: Option<String>,
    pub deployment: Option<String>,
    pub n_after: i64, // only a welcome that echoes a later n counts
    pub lease: Arc<Lease>,
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
    pub bytes_max: u64,
    pub floor: i64,        // unknown batches of this session up to this number are stale
    pub load: i64,         // deliveries of this broker that need a slot or have one
    pub answered_ms: f64,  // the time of the broker's last answer to a hello or heartbeat
    pub steps_ms: f64,     // the time of the broker's last steps
    pub opened_ms: f64,    // the time at which the latest session opened
    pub drop_wait_ms: f64, // the pause before the hello after the next drop
    pub promises: Promises,
    pub is_held_back: bool, // its latest credit is smaller than its share, because of promises to other brokers
    pub is_quiet: bool,     // `quiet` of the last heartbeat_ack: the broker sends no new steps
}

impl Peer {
    fn new(id: &str, next: u64, now_ms: f64) -> Self {
        Self {
            id: id.to_owned(),
            topic: topics::results_to(id).into(),
            next,
            epoch: -1,
            session: None,
            deployment: None,
            n_after: -1,
            lease: Arc::default(),
            lease_ms: limits::LEASE_MS,
            heartbeat_ms: limits::HEARTBEAT_MS,
            bytes_max: limits::MESSAGE_BYTES_MAX,
            floor: -1,
            load: 0,
            answered_ms: now_ms,
            steps_ms: f64::NEG_INFINITY,
            opened_ms: now_ms,
            drop_wait_ms: 0.0,
            promises: Promises::default(),
            is_held_back: false,
            is_quiet: false,
        }
    }
}

/// The known brokers, in the order in which they became known.
#[derive(Debug, Default)]
pub(super) struct Brokers {
    peers: Vec<Peer>, // also forgotten ones, which tombstones may still name
    known: Vec<PeerId>,
    next_of: HashMap<String, u64>, // of forgotten brokers: no number is used twice
}

impl Brokers {
    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.known.iter().map(|peer| &self.peers[*peer])
    }

    pub fn numbers(&self) -> Vec<PeerId> {
        self.known.clone()
    }

    pub fn contains(&self, broker: &str) -> bool {
        self.find(broker).is_some()
    }

    pub fn find(&self, broker: &str) -> Option<PeerId> {
        self.known.iter().copied().find(|peer| self.peers[*peer].id == broker)
    }

    pub fn named(&self, broker: &str) -> Option<&Peer> {
        self.find(broker).map(|peer| &self.peers[peer])
    }

    pub fn find_or_add(&mut self, broker: &str, now_ms: f64) -> PeerId {
        if let Some(known) = self.find(broker) {
            return known;
        }
        let next = self.next_of.remove(broker).unwrap_or(1);
        let peer = self.peers.len();
        self.peers.push(Peer::new(broker, next, now_ms));
        self.known.push(peer);
        peer
    }

    /// Forgets a broker that has no session and owns nothing here.
    pub fn forget(&mut self, peer: PeerId) {
        self.known.retain(|known| *known != peer);
        self.next_of.insert(self.peers[peer].id.clone(), self.peers[peer].next);
    }

    /// The member `next` of hello and heartbeat.
    pub fn next_numbers(&self) -> Members<u64> {
        Members(self.iter().map(|peer| (peer.id.clone(), peer.next)).collect())
    }

    /// The member `sessions` of hello and heartbeat.
    pub fn sessions(&self) -> Members<String> {
        Members(self.iter().filter_map(|peer| Some((peer.id.clone(), peer.session.clone()?))).collect())
    }
}

impl std::ops::Index<PeerId> for Brokers {
    type Output = Peer;

    fn index(&self, peer: PeerId) -> &Peer {
        &self.peers[peer]
    }
}

impl std::ops::IndexMut<PeerId> for Brokers {
    fn index_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.peers[peer]
    }
}
