//! `steps` messages, and their answers. A repeated `steps` message is answered again, or the broker would resend it
//! forever.

use std::collections::HashSet;
use std::rc::Rc;

use super::brokers::PeerId;
use super::deliveries::{HeldBatch, HeldDelivery};
use super::holdings::group;
use super::ordered::OrderedMap;
use super::outgoing::{parts, V};
use super::Session;
use crate::actions::{Event, Level, NEVER};
use crate::protocol::codec;
use crate::protocol::messages::{Accept, HeldState, Item, Refuse, RefuseCode, Steps};

/// Batches to accept.
#[derive(Debug)]
pub(super) struct Intake {
    pub accept_at_ms: f64,
    accept_delay_ms: f64,
    // When to accept a batch. Two brokers may have sessions, and batches, of the same name.
    unaccepted: OrderedMap<(PeerId, String, String), f64>,
}

impl Intake {
    pub fn new(accept_delay_ms: f64) -> Self {
        Self { accept_at_ms: NEVER, accept_delay_ms, unaccepted: OrderedMap::default() }
    }
}

/// Items to refuse, by code, in the order in which the codes appeared.
type Refusals = Vec<(RefuseCode, Item)>;

impl Session {
    /// `size`: the bytes of the message.
    pub(super) fn on_steps(&mut self, peer: PeerId, message: Steps, size: usize, now_ms: f64) {
        self.brokers[peer].promises.take(message.steps.len());
        if message.protocol_version.split('.').next() != V.split('.').next() {
            let items: Vec<Item> = message.steps.iter().map(|step| step.item()).collect();
            let (session, batch_id) = (message.session, message.batch_id);
            self.refuse_unread(peer, &session, &batch_id, &items, RefuseCode::BadMessage, now_ms);
            return;
        }
        let count = message.steps.len();
        let batch = HeldBatch::new(&message.batch_id, &message.session, count);
        self.credit.note_size(size as f64 / count.max(1) as f64);
        let mut refused: Refusals = Vec::new();
        let (mut is_accepted, mut is_repeated) = (false, false);
        let mut places = self.places();
        self.brokers[peer].steps_ms = now_ms;
        let floor = self.brokers[peer].floor;
        for step in message.steps {
            let item = step.item();
            if let Some(held) = self.holdings.get(&item) {
                is_repeated |= self.answer_again(peer, &held, &mut refused, now_ms);
                continue;
            }
            let is_stale = self.holdings.tombstones.contains(&item) || (0..=floor).contains(&batch.number);
            let offer = self.offers.find(&step.handler_class);
            let code = match offer {
                _ if is_stale => RefuseCode::Stale,
                None => RefuseCode::UnknownHandler,
                Some(_) if self.credit.is_draining => RefuseCode::Draining,
                Some(_) if places <= 0 || self.holdings.is_orphan(&item) => RefuseCode::Busy,
                Some(offer) => {
                    self.hold(HeldDelivery::new(step, peer, batch.clone(), offer, now_ms));
                    is_accepted = true;
                    places -= 1;
                    continue;
                }
            };
            refused.push((code, item));
            if code != RefuseCode::Stale {
                self.holdings.tombstones.add(item, peer, batch.clone(), &mut self.brokers, now_ms);
            }
        }
        let batch_id = message.batch_id;
        if is_accepted || is_repeated {
            let at_ms = if is_repeated { now_ms } else { now_ms + self.intake.accept_delay_ms };
            self.intake.unaccepted.insert((peer, message.session, batch_id.clone()), at_ms);
            self.intake.accept_at_ms = self.intake.accept_at_ms.min(at_ms);
        }
        for (code, items) in group(refused) {
            self.refuse(peer, &batch_id, &items, code, now_ms, false);
        }
    }

    /// Sends no accept for this batch, because its results were sent and are an answer, too.
    pub(super) fn cancel_accept(&mut self, peer: PeerId, session: &str, batch_id: &str) {
        self.intake.unaccepted.remove(&(peer, session.to_owned(), batch_id.to_owned()));
    }

    pub(super) fn accept_due(&mut self, now_ms: f64) {
        let mut at_ms = NEVER;
        let mut due = Vec::new();
        self.intake.unaccepted.retain(|key, due_ms| {
            if *due_ms > now_ms {
                at_ms = at_ms.min(*due_ms);
                return true;
            }
            due.push(key.clone());
            false
        });
        for (peer, session, batch_id) in due {
            if self.brokers[peer].session.as_ref() != Some(&session) {
                continue;
            }
            let (free, slots_free) = self.offer(peer, now_ms);
            let worker = self.out.worker.clone();
            let accept = Accept { v: V, worker: &worker, session: &session, batch_id: &batch_id, free, slots_free };
            self.out.send_to(&self.brokers[peer], &accept);
        }
        self.intake.accept_at_ms = at_ms;
    }

    /// Ends these deliveries, whose runs have not begun and never will, and returns the steps to their brokers.
    pub(super) fn return_steps(&mut self, withdrawn: Vec<Rc<HeldDelivery>>, code: RefuseCode, now_ms: f64) {
        let mut pairs = Vec::with_capacity(withdrawn.len());
        for held in withdrawn {
            pairs.push(((held.peer.get(), held.batch.id.clone()), held.item));
            self.bury(&held, now_ms);
        }
        for ((peer, batch_id), items) in group(pairs) {
            self.refuse(peer, &batch_id, &items, code, now_ms, true);
        }
    }

    /// Refuses these items. `is_return`: they were accepted before.
    fn refuse(&mut self, peer: PeerId, batch_id: &str, items: &[Item], code: RefuseCode, now_ms: f64, is_return: bool) {
        let session = match &self.brokers[peer].session {
            Some(session) => session.clone(),
            None => return,
        };
        let (free, slots_free) = self.offer(peer, now_ms);
        let worker = self.out.worker.clone();
        for part in parts(&once_each(items)) {
            let refuse =
                Refuse { v: V, worker: &worker, session: &session, batch_id, items: part, code, free, slots_free };
            self.out.send_to(&self.brokers[peer], &refuse);
        }
        if code != RefuseCode::Stale {
            // Returns keep the queues short, and many may be sent in a second: no operator has to act.
            let level = match code {
                _ if is_return => Level::Debug,
                RefuseCode::Draining => Level::Info,
                _ => Level::Warning,
            };
            let broker = self.brokers[peer].id.clone();
            let event = Event::StepsRefused { broker, batch_id: batch_id.to_owned(), code, steps: items.len() };
            self.out.log(level, event);
        }
    }

    /// Refuses the steps of a message that cannot be read, or its broker would resend it forever.
    pub(super) fn on_unreadable(&mut self, body: &[u8], code: RefuseCode, why: String, now_ms: f64) {
        self.out.log(Level::Error, Event::MessageUnreadable { code, why });
        let remains = match codec::decode_remains(body) {
            Some(remains) if remains.kind == "steps" && !remains.batch_id.is_empty() && !remains.steps.is_empty() => {
                remains
            }
            _ => return,
        };
        let peer = match self.brokers.find(&remains.broker) {
            Some(peer) if self.brokers[peer].session.as_ref() == Some(&remains.session) => peer,
            _ => return,
        };
        let items: Vec<Item> = remains.steps.iter().map(|step| (step.step_id, step.delivery)).collect();
        self.refuse_unread(peer, &remains.session, &remains.batch_id, &items, code, now_ms);
    }

    /// Answers a delivery that is held already. True: its batch is accepted again.
    fn answer_again(&mut self, peer: PeerId, held: &HeldDelivery, refused: &mut Refusals, now_ms: f64) -> bool {
        if held.peer.get() != peer {
            refused.push((RefuseCode::Stale, held.item)); // another broker has adopted the delivery meanwhile
        } else if let Some(rid) = held.rid.get() {
            self.outbox.hasten(rid, now_ms);
        } else if !held.is(HeldState::Done) {
            return true;
        }
        false
    }

    fn refuse_unread(
        &mut self,
        peer: PeerId,
        session: &str,
        batch_id: &str,
        items: &[Item],
        code: RefuseCode,
        now_ms: f64,
    ) {
        self.bury_unread(peer, &HeldBatch::new(batch_id, session, items.len()), items, now_ms);
        self.refuse(peer, batch_id, items, code, now_ms, false);
    }
}

/// Without repetitions: a broker may list an item twice, a worker may not.
pub(super) fn once_each(items: &[Item]) -> Vec<Item> {
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().copied().filter(|item| seen.insert(*item)).collect()
}
