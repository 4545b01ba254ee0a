//! Every delivery that this process holds: the list `holding` of heartbeats.

use std::rc::Rc;

use super::brokers::{Brokers, PeerId};
use super::deliveries::{HeldBatch, HeldDelivery};
use super::ordered::OrderedMap;
use super::pace::Pace;
use super::tombstones::Tombstones;
use super::Session;
use crate::protocol::messages::{HeldItem, HeldState, Item};

/// The held deliveries by item, from their receipt until their result is acknowledged.
#[derive(Debug)]
pub(super) struct Holdings {
    pub load: i64, // deliveries that need a slot or have one
    pub pace: Pace,
    pub tombstones: Tombstones,
    held: OrderedMap<Item, Rc<HeldDelivery>>,
    orphans: OrderedMap<Item, Rc<HeldDelivery>>, // still run, for a database that was replaced
}

impl Holdings {
    pub fn new(expected: u64) -> Self {
        Self {
            load: 0,
            pace: Pace::new(expected as f64),
            tombstones: Tombstones::default(),
            held: OrderedMap::default(),
            orphans: OrderedMap::default(),
        }
    }

    pub fn get(&self, item: &Item) -> Option<Rc<HeldDelivery>> {
        self.held.get(item).cloned()
    }

    pub fn is_orphan(&self, item: &Item) -> bool {
        self.orphans.contains(item)
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn running(&self) -> Vec<Rc<HeldDelivery>> {
        self.held.values().filter(|held| held.is(HeldState::Running)).cloned().collect()
    }

    /// All deliveries whose runs have not begun. They never will: the caller must end these deliveries.
    pub fn withdraw(&self) -> Vec<Rc<HeldDelivery>> {
        self.held.values().filter(|held| held.withdraw()).cloned().collect()
    }

    /// At most `count` deliveries of these brokers whose runs have not begun, the newest first. Not those that ask for
    /// permission.
    pub fn withdraw_newest(&self, count: i64, peers: &[PeerId]) -> Vec<Rc<HeldDelivery>> {
        let mut withdrawn = Vec::new();
        for held in self.held.values().rev() {
            if withdrawn.len() as i64 >= count {
                break;
            }
            let may_return = peers.contains(&held.peer.get())
                && !held.is(HeldState::Asking)
                && !(held.is_at_most_once && held.is(HeldState::Running));
            if may_return && held.withdraw() {
                withdrawn.push(held.clone());
            }
        }
        withdrawn
    }

    pub fn of_broker(&self, peer: PeerId) -> Vec<Rc<HeldDelivery>> {
        self.held.values().filter(|held| held.peer.get() == peer).cloned().collect()
    }

    /// The member `holding` of hello and heartbeat. Runs begin and end while the list is made, so a run that begins in
    /// the slot of a listed one counts as queued.
    pub fn report(&self, slots: u64, now_ms: f64) -> Vec<HeldItem> {
        let mut free = slots;
        let mut items = Vec::with_capacity(self.held.len());
        for held in self.held.values() {
            let (step_id, delivery) = held.item;
            let mut age_ms = held.age_ms(now_ms);
            let mut state = match held.reported_state() {
                Some(state) => state,
                None => continue,
            };
            if state == HeldState::Running {
                if free == 0 && !held.is_at_most_once {
                    state = HeldState::Queued;
                    age_ms = (now_ms - held.received_ms).max(0.0) as u64;
                }
                free = free.saturating_sub(1);
            }
            items.push((step_id, delivery, state, age_ms));
        }
        items
    }
}

impl Session {
    /// Adds a delivery that was just received, and puts it into the run queue.
    pub(super) fn hold(&mut self, held: Rc<HeldDelivery>) {
        let holdings = &mut self.holdings;
        holdings.held.insert(held.item, held.clone());
        self.brokers[held.peer.get()].load += 1;
        holdings.load += 1;
        held.batch.open.set(held.batch.open.get() + 1);
        if holdings.load == 1 {
            holdings.pace.resume(held.received_ms);
        }
        self.slots.queue(held);
    }

    /// Records the end of a run. Only its result is kept.
    pub(super) fn finish(&mut self, held: &Rc<HeldDelivery>, now_ms: f64) {
        held.state.set(Some(HeldState::Done));
        held.step.replace(None);
        self.holdings.pace.count_end(now_ms);
        self.lighten(held, now_ms);
        self.slots.release(held, now_ms);
    }

    /// Forgets the delivery, but keeps its tombstone.
    pub(super) fn bury(&mut self, held: &Rc<HeldDelivery>, now_ms: f64) {
        let state = match held.state.take() {
            Some(state) => state,
            None => return,
        };
        let (item, peer) = (held.item, held.peer.get());
        self.holdings.held.remove(&item);
        self.holdings.tombstones.add(item, peer, held.batch.clone(), &mut self.brokers, now_ms);
        if state == HeldState::Done {
            held.rid.set(None);
            return;
        }
        held.step.replace(None);
        self.lighten(held, now_ms);
        if state == HeldState::Asking {
            self.slots.asking.remove(&item);
        }
        if state != HeldState::Queued {
            self.slots.release(held, now_ms);
        }
    }

    /// Keeps tombstones of refused deliveries, so that they do not start if they are received again.
    pub(super) fn bury_unread(&mut self, peer: PeerId, batch: &Rc<HeldBatch>, items: &[Item], now_ms: f64) {
        for item in items {
            if !self.holdings.held.contains(item) {
                self.holdings.tombstones.add(*item, peer, batch.clone(), &mut self.brokers, now_ms);
            }
        }
    }

    /// Changes the owner of a delivery to the broker that has adopted it.
    pub(super) fn move_to(&mut self, held: &HeldDelivery, peer: PeerId) {
        if !held.is(HeldState::Done) {
            self.brokers[held.peer.get()].load -= 1;
            self.brokers[peer].load += 1;
        }
        held.peer.set(peer);
        if let Some(run) = &*held.run.borrow() {
            run.set_lease(self.brokers[peer].lease.clone()); // a run that has not begun needs the new owner's lease
        }
    }

    /// Lets a run end whose broker's database was replaced, but drops its result.
    pub(super) fn orphan(&mut self, held: &Rc<HeldDelivery>, now_ms: f64) {
        self.holdings.held.remove(&held.item);
        self.holdings.orphans.insert(held.item, held.clone());
        self.lighten(held, now_ms);
    }

    pub(super) fn release_orphan(&mut self, item: &Item, now_ms: f64) {
        if let Some(held) = self.holdings.orphans.remove(item) {
            self.slots.release(&held, now_ms);
        }
    }

    fn lighten(&mut self, held: &HeldDelivery, now_ms: f64) {
        self.brokers[held.peer.get()].load -= 1;
        self.holdings.load -= 1;
        if self.holdings.load == 0 {
            self.holdings.pace.pause(now_ms);
        }
    }
}

/// Deliveries grouped by a key, in the order in which the keys appear.
pub(super) fn group<K: PartialEq, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

impl Holdings {
    /// Forgets old tombstones.
    pub fn sweep(&mut self, brokers: &mut Brokers, now_ms: f64) {
        self.tombstones.sweep(brokers, now_ms);
    }
}
