//! The credit of each broker: how many steps the worker has room for, and how the room is divided.
//!
//! A worker has its slots, and room for steps that wait: as many as it really finishes in PREFETCH_MS. Short steps then
//! never run out between two messages, and long steps stay at the broker, where another worker can take them. A declared
//! prefetch is the least room; a declared prefetch of 0 means that no step waits here. If steps become longer, the room
//! shrinks, and the worker returns the steps that no longer fit.
//!
//! Brokers do not know of each other, so the worker divides its capacity among them. Each broker has an equal share,
//! rounded down. The remainder rotates, so that every broker has its turn even if there are more brokers than capacity.
//! An idle broker keeps one place of its share, and lends the rest to the others. Each place is promised to one broker at
//! a time: it is offered to another one only when its former holder has acknowledged a smaller number (`promises.rs`).

use super::brokers::{Peer, PeerId};
use super::config::Config;
use super::Session;
use crate::actions::NEVER;
use crate::protocol::limits::PREFETCH_MS;
use crate::protocol::messages::Members;

const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024; // above this, no credit: brokers that send no acks may send no steps
const WAITING_MAX: f64 = 2_000.0; // steps for which the observed pace makes room
const WAITING_BYTES_MAX: f64 = 16.0 * 1024.0 * 1024.0; // the same in bytes
const RETURN_EVERY_MS: f64 = 20.0; // interval of the search for steps that no longer fit
const IDLE_KEEPS: i64 = 1; // places that an idle broker does not lend, so that its next step need not wait
const RETURN_FACTOR: i64 = 2; // steps are returned when this many times the room is in use, so the pace may vary

/// The credit of each broker, and the reasons to offer none.
#[derive(Debug)]
pub(super) struct Credit {
    pub return_at_ms: f64,
    pub is_quiet: bool, // set by the program: accept no new steps
    pub is_full: bool,  // the runner accepts no steps at the moment
    pub is_draining: bool,
    slots: i64,
    prefetch: Option<i64>,
    largest: i64,    // the largest capacity that was offered
    step_bytes: f64, // of a recent step
    idle_after_ms: f64,
    rotation: i64,
}

impl Credit {
    pub fn new(config: &Config) -> Self {
        Self {
            return_at_ms: NEVER,
            is_quiet: false,
            is_full: false,
            is_draining: false,
            slots: config.slots as i64,
            prefetch: config.prefetch.map(|prefetch| prefetch as i64),
            largest: (config.slots + config.queue_max()) as i64,
            step_bytes: 0.0,
            idle_after_ms: 2.0 * config.heartbeat_ms as f64,
            rotation: 0,
        }
    }

    /// Gives the remainder of the split to the next broker.
    pub fn rotate(&mut self) {
        self.rotation += 1;
    }

    /// Notes the size of the steps in a message.
    pub fn note_size(&mut self, step_bytes: f64) {
        self.step_bytes += (step_bytes - self.step_bytes) / 4.0;
    }
}

impl Session {
    /// The number of steps that are expected to end in PREFETCH_MS, and that may wait, here or in the runner.
    pub(super) fn ahead(&mut self, now_ms: f64) -> i64 {
        if self.credit.prefetch == Some(0) {
            return 0;
        }
        let step_bytes = self.credit.step_bytes;
        let by_bytes = if step_bytes > 0.0 { WAITING_BYTES_MAX / step_bytes } else { WAITING_MAX };
        let steps_max = WAITING_MAX.min(by_bytes);
        (self.holdings.pace.steps_in(PREFETCH_MS, now_ms).min(steps_max) + 0.5) as i64
    }

    /// The number of steps that may wait for a slot.
    fn room(&mut self, now_ms: f64) -> i64 {
        self.credit.prefetch.unwrap_or(0).max(self.ahead(now_ms))
    }

    /// The number of further steps that are not refused: the total credit can be twice the capacity.
    pub(super) fn places(&self) -> i64 {
        2 * self.credit.largest - self.holdings.load
    }

    /// The members `free` and `slots_free` of the hello or heartbeat with this number, which promise this credit.
    pub(super) fn offer_all(&mut self, n: u64, now_ms: f64) -> (Members<u64>, Members<u64>) {
        let (mut free, mut slots_free) = (Members::default(), Members::default());
        for peer in self.brokers.numbers() {
            let (of_all, at_once) = self.place(peer, now_ms);
            let peer = &mut self.brokers[peer];
            peer.promises.announce(n, of_all);
            free.0.push((peer.id.clone(), of_all as u64));
            slots_free.0.push((peer.id.clone(), at_once as u64));
        }
        (free, slots_free)
    }

    /// The members `free` and `slots_free` of another message to this broker, which promises this credit.
    pub(super) fn offer(&mut self, peer: PeerId, now_ms: f64) -> (u64, u64) {
        let (free, slots_free) = self.place(peer, now_ms);
        self.brokers[peer].promises.name(free);
        (free as u64, slots_free as u64)
    }

    /// True if another broker was held back by promises, and may get places that this one no longer has.
    pub(super) fn credit_moves(&self, peer: PeerId) -> bool {
        self.brokers
            .iter()
            .any(|other| other.is_held_back && other.session.is_some() && other.id != self.brokers[peer].id)
    }

    /// True if this broker was idle until now, and its share was lent to another one.
    pub(super) fn is_waking(&self, peer: PeerId, now_ms: f64) -> bool {
        let own = &self.brokers[peer];
        let lends = self.brokers.iter().any(|other| other.session.is_some() && other.id != own.id);
        lends && is_idle(own, self.credit.idle_after_ms, now_ms)
    }

    fn place(&mut self, peer: PeerId, now_ms: f64) -> (i64, i64) {
        let (free, slots_free, is_held_back) = self.split_credit(peer, now_ms);
        self.brokers[peer].is_held_back = is_held_back;
        (free, slots_free)
    }

    /// The number of further steps, how many of them would start at once, and whether promises to others hold the broker
    /// back.
    fn split_credit(&mut self, peer: PeerId, now_ms: f64) -> (i64, i64, bool) {
        if self.is_closed(peer) {
            return (0, 0, false);
        }
        let slots = self.credit.slots;
        let capacity = slots + self.room(now_ms);
        if capacity > self.credit.largest {
            self.credit.largest = capacity;
        }
        let load = self.holdings.load;
        if self.brokers.len() == 1 {
            return ((capacity - load).max(0), (slots - load).max(0), false);
        }
        let left = self.share_left(capacity, peer, now_ms).min(capacity - load);
        let own = &self.brokers[peer].id;
        let others = self.brokers.iter().filter(|other| other.session.is_some() && other.id != *own);
        let promised: i64 = others.map(|other| other.promises.promised()).sum();
        let free = left.min(capacity - load - promised).max(0);
        let slots_left = self.share_left(slots, peer, now_ms).min(slots - load);
        (free, free.min(slots_left).max(0), free < left)
    }

    fn is_closed(&self, peer: PeerId) -> bool {
        let credit = &self.credit;
        let is_closed = credit.is_draining || credit.is_quiet || credit.is_full || self.brokers[peer].is_quiet;
        is_closed || self.outbox.bytes > OUTBOX_BYTES_MAX
    }

    /// The part of this broker's share of the capacity that it does not use yet; negative if it uses more.
    fn share_left(&self, capacity: i64, peer: PeerId, now_ms: f64) -> i64 {
        let own = &self.brokers[peer].id;
        let mut claims = Vec::with_capacity(self.brokers.len());
        let mut index = 0;
        for other in self.brokers.iter() {
            if other.id == *own {
                index = claims.len();
            } else if other.session.is_none() {
                continue;
            }
            claims.push(Claim { load: other.load, is_idle: is_idle(other, self.credit.idle_after_ms, now_ms) });
        }
        split(capacity, &claims, index, self.credit.rotation)
    }

    // -- return -------------------------------------------------------------------------------------------------------

    /// Looks for steps that no longer fit, after a while, if more are held than there are slots.
    pub(super) fn watch(&mut self, now_ms: f64) {
        let credit = &mut self.credit;
        if self.holdings.load > credit.slots + credit.prefetch.unwrap_or(0) {
            credit.return_at_ms = credit.return_at_ms.min(now_ms + RETURN_EVERY_MS);
        }
    }

    /// The number of steps that no longer fit, and the brokers that may get them back. Called at `return_at_ms`.
    ///
    /// A broker that still has credit would send the steps again at once, so none is returned while some are left. That
    /// is also why steps that wait for their handler's concurrency are not returned while they fit into the slots. Of
    /// several brokers, those get steps back that use their whole share.
    pub(super) fn excess(&mut self, now_ms: f64) -> (i64, Vec<PeerId>) {
        self.credit.return_at_ms = NEVER;
        self.watch(now_ms);
        let (load, room, slots) = (self.holdings.load, self.room(now_ms), self.credit.slots);
        let (mut fitting, mut tolerated) = (slots + room, slots + RETURN_FACTOR * room);
        let capacity = fitting;
        if self.brokers.len() > 1 {
            fitting *= 2; // credit that was promised before steps became longer
            tolerated = fitting;
        }
        if load <= tolerated {
            return (0, Vec::new());
        }
        let is_full = |peer: &PeerId| self.is_closed(*peer) || self.share_left(capacity, *peer, now_ms) <= 0;
        let full = self.brokers.numbers().into_iter().filter(is_full).collect();
        (load - fitting, full)
    }
}

/// The load of one live broker, and whether it is idle.
struct Claim {
    load: i64,
    is_idle: bool,
}

fn is_idle(peer: &Peer, idle_after_ms: f64, now_ms: f64) -> bool {
    peer.load == 0 && peer.steps_ms + idle_after_ms <= now_ms
}

/// The places of the broker at `index` that it does not use yet; negative if it uses more than its places.
fn split(capacity: i64, claims: &[Claim], index: usize, rotation: i64) -> i64 {
    let mine = &claims[index];
    let share_of = |i: usize| share(capacity, claims.len(), i, rotation);
    let mut places = share_of(index);
    let borrowers = claims.iter().filter(|claim| !claim.is_idle).count();
    if mine.is_idle && borrowers > 0 {
        places = places.min(IDLE_KEEPS);
    } else if !mine.is_idle {
        let idle = claims.iter().enumerate().filter(|(_, claim)| claim.is_idle);
        let lent: i64 = idle.map(|(i, _)| (share_of(i) - IDLE_KEEPS).max(0)).sum();
        let rank = claims[..index].iter().filter(|claim| !claim.is_idle).count();
        places += share(lent, borrowers, rank, rotation);
    }
    places - mine.load
}

fn share(capacity: i64, among: usize, index: usize, rotation: i64) -> i64 {
    let among = among as i64;
    let turn = (index as i64 + rotation) % among;
    capacity / among + i64::from(turn < capacity % among)
}
