//! The deliveries that wait to be handed to the runner, and those that the runner has.
//!
//! A runner starts the next step the moment a slot is free. It can only do so if it has that step already, so
//! at_least_once steps are handed over ahead of free slots: as many as the observed pace says. The runner itself keeps
//! to the slots and to the concurrency of each handler (`runners/run_slots.rs`). An at_most_once step asks its broker
//! for permission, and a slot must be free for it from then on. So it is never handed over ahead, and while one asks,
//! no step is.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::config::Offer;
use super::deliveries::HeldDelivery;
use super::ordered::OrderedMap;
use super::pace::Pace;
use crate::protocol::limits::PREFETCH_MS;
use crate::protocol::messages::{HeldState, Item};

/// The run queue. A delivery is taken from its hand-over, or from its request for permission, to its end.
#[derive(Debug)]
pub(super) struct Slots {
    pub asking: OrderedMap<Item, Rc<HeldDelivery>>, // at_most_once: has a slot, and waits for the broker's go
    pub taken: i64,
    pub ahead: i64, // the number of steps that may be handed over ahead of free slots
    unblocked: VecDeque<Rc<HeldDelivery>>, // before `queued`
    queued: VecDeque<Rc<HeldDelivery>>,
    slots: i64,
    limited: HashMap<usize, Limited>,
}

impl Slots {
    pub fn new(slots: u64, offers: &[Offer]) -> Self {
        let limit = |(number, offer): (usize, &Offer)| Some((number, Limited::new(offer.concurrency? as i64)));
        Self {
            asking: OrderedMap::default(),
            taken: 0,
            ahead: 0,
            unblocked: VecDeque::new(),
            queued: VecDeque::new(),
            slots: slots as i64,
            limited: offers.iter().enumerate().filter_map(limit).collect(),
        }
    }

    pub fn queue(&mut self, held: Rc<HeldDelivery>) {
        self.queued.push_back(held);
    }

    pub fn has_queue(&self) -> bool {
        !self.queued.is_empty() || !self.unblocked.is_empty()
    }

    /// True if the delivery at the head of the queue can be taken, unless its handler's concurrency is used up.
    pub fn has_next(&self) -> bool {
        match self.unblocked.front().or_else(|| self.queued.front()) {
            None => false,
            Some(head) => {
                let must_have_slot = !self.asking.is_empty() || head.is_at_most_once;
                self.taken < if must_have_slot { self.slots } else { self.slots + self.ahead }
            }
        }
    }

    /// Take the next delivery from the queue. None: nothing in the queue can be taken now.
    pub fn take_next(&mut self, now_ms: f64) -> Option<Rc<HeldDelivery>> {
        while self.has_next() {
            let is_unblocked = !self.unblocked.is_empty();
            let held = if is_unblocked { self.unblocked.pop_front() } else { self.queued.pop_front() }?;
            if !held.is(HeldState::Queued) {
                self.unblock(held.offer, now_ms); // cancelled while queued, perhaps after it was unblocked
                continue;
            }
            let without_ahead = !self.asking.is_empty() || held.is_at_most_once;
            if let Some(limited) = self.limited.get_mut(&held.offer) {
                if is_unblocked {
                    if limited.room(without_ahead, now_ms) <= 0 {
                        limited.blocked.push_front(held);
                        continue;
                    }
                } else if !limited.blocked.is_empty() || limited.room(without_ahead, now_ms) <= 0 {
                    limited.blocked.push_back(held);
                    continue;
                }
                limited.take(now_ms);
            }
            self.taken += 1;
            return Some(held);
        }
        None
    }

    /// The delivery has ended, or will never start.
    pub fn release(&mut self, held: &HeldDelivery, now_ms: f64) {
        self.taken -= 1;
        if let Some(limited) = self.limited.get_mut(&held.offer) {
            limited.release(now_ms);
            self.unblock(held.offer, now_ms);
        }
    }

    /// Put deliveries that waited for this handler's concurrency before the queue.
    fn unblock(&mut self, offer: usize, now_ms: f64) {
        let is_asking = !self.asking.is_empty();
        let limited = match self.limited.get_mut(&offer) {
            Some(limited) => limited,
            None => return,
        };
        let mut unblocked = 0;
        while let Some(head) = limited.blocked.front().cloned() {
            let is_queued = head.is(HeldState::Queued);
            if is_queued && limited.room(is_asking || head.is_at_most_once, now_ms) <= unblocked {
                return;
            }
            limited.blocked.pop_front();
            if is_queued {
                self.unblocked.push_back(head);
                unblocked += 1;
            }
        }
    }
}

/// The deliveries of a handler with its own concurrency. Its pace limits how many run ahead of it.
#[derive(Debug)]
struct Limited {
    concurrency: i64,
    taken: i64,
    blocked: VecDeque<Rc<HeldDelivery>>,
    pace: Pace,
}

impl Limited {
    fn new(concurrency: i64) -> Self {
        Self { concurrency, taken: 0, blocked: VecDeque::new(), pace: Pace::new(0.0) }
    }

    fn room(&mut self, without_ahead: bool, now_ms: f64) -> i64 {
        let ahead = if without_ahead { 0 } else { (self.pace.steps_in(PREFETCH_MS, now_ms) + 0.5) as i64 };
        self.concurrency + ahead - self.taken
    }

    fn take(&mut self, now_ms: f64) {
        self.taken += 1;
        self.pace.resume(now_ms);
    }

    fn release(&mut self, now_ms: f64) {
        self.taken -= 1;
        self.pace.count_end(now_ms);
        if self.taken == 0 {
            self.pace.pause(now_ms);
        }
    }
}
