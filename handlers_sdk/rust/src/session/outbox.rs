//! Results messages that are not acknowledged yet. They are kept and resent.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::brokers::{Brokers, Peer, PeerId};
use super::deliveries::ResultsMessage;
use super::outgoing::{Outgoing, V};
use crate::actions::NEVER;
use crate::protocol::limits::{RESULTS_BROADCAST_FROM_TRY, RESULTS_RETRANSMIT_MAX_MS};
use crate::protocol::{codec, messages::ResultsHead};

/// The unacknowledged results messages by `rid`.
#[derive(Debug)]
pub(super) struct Outbox {
    pub bytes: usize,
    pub resend_at_ms: f64,
    messages: BTreeMap<u64, ResultsMessage>,
}

impl Outbox {
    pub fn new() -> Self {
        Self { bytes: 0, resend_at_ms: NEVER, messages: BTreeMap::new() }
    }

    pub fn peer_of(&self, rid: u64) -> Option<PeerId> {
        self.messages.get(&rid).map(|message| message.peer)
    }

    pub fn get_mut(&mut self, rid: u64) -> Option<&mut ResultsMessage> {
        self.messages.get_mut(&rid)
    }

    /// Sends the message, and keeps it until it is acknowledged.
    pub fn send(&mut self, message: ResultsMessage, brokers: &Brokers, out: &mut Outgoing) {
        self.bytes += message.body.len();
        if message.at_ms < self.resend_at_ms {
            self.resend_at_ms = message.at_ms;
        }
        out.send(brokers[message.peer].topic.clone(), message.body.clone());
        self.messages.insert(message.rid, message);
    }

    pub fn remove(&mut self, rid: u64) -> Option<ResultsMessage> {
        let message = self.messages.remove(&rid)?;
        self.bytes -= message.body.len();
        Some(message)
    }

    /// Removes the messages for a broker whose database was replaced. Returns their number.
    pub fn discard(&mut self, peer: PeerId) -> usize {
        let rids: Vec<u64> = self.messages.values().filter(|message| message.peer == peer).map(|m| m.rid).collect();
        for rid in &rids {
            self.remove(*rid);
        }
        rids.len()
    }

    /// Resends the messages that are due, and schedules the next attempt of each.
    pub fn resend(&mut self, brokers: &Brokers, out: &mut Outgoing, now_ms: f64) {
        let mut at_ms = NEVER;
        let mut bytes = self.bytes;
        for message in self.messages.values_mut() {
            if message.at_ms <= now_ms {
                let peer = &brokers[message.peer];
                bytes -= message.body.len();
                renew(message, peer, &out.worker);
                bytes += message.body.len();
                message.tries += 1;
                message.wait_ms = (message.wait_ms * 2.0).min(RESULTS_RETRANSMIT_MAX_MS);
                message.at_ms = now_ms + message.wait_ms;
                out.send(peer.topic.clone(), message.body.clone());
                if message.tries >= RESULTS_BROADCAST_FROM_TRY {
                    // The owner may be gone, and the worker cannot know which broker owns its steps now.
                    out.send_results_to_all(message.body.clone());
                }
            }
            at_ms = at_ms.min(message.at_ms);
        }
        self.bytes = bytes;
        self.resend_at_ms = at_ms;
    }

    /// Sends this message with the next actions.
    pub fn hasten(&mut self, rid: u64, now_ms: f64) {
        if let Some(message) = self.messages.get_mut(&rid) {
            message.at_ms = now_ms;
        }
        self.resend_at_ms = now_ms;
    }

    /// Sends the messages for this broker with the next actions, because its session has just opened.
    pub fn hasten_all(&mut self, peer: PeerId, now_ms: f64) {
        for message in self.messages.values_mut().filter(|message| message.peer == peer) {
            message.at_ms = now_ms;
            self.resend_at_ms = now_ms;
        }
    }
}

/// Puts the current session into the message. `n` and `free` stay unchanged: an old `n` marks old credit.
fn renew(message: &mut ResultsMessage, peer: &Peer, worker: &str) {
    let session = match &peer.session {
        Some(session) if *session != message.session => session,
        _ => return,
    };
    let mut body = codec::encode_results_head(&ResultsHead {
        v: V,
        worker,
        session,
        deployment: peer.deployment.as_deref().unwrap_or(""),
        batch_id: &message.batch.id,
        protocol_version: V,
        rid: message.rid,
        n: message.n,
        free: message.free,
        slots_free: message.slots_free,
    });
    let list_at = body.len();
    body.extend_from_slice(&message.body[message.list_at..]);
    message.session = session.clone();
    message.body = Arc::new(body);
    message.list_at = list_at;
}
