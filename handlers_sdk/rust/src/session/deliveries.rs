//! Records of what a worker holds: deliveries, the batches that contained them, and the messages with their results.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::brokers::PeerId;
use crate::actions::{Run, NEVER};
use crate::protocol::messages::{DeliveryMode, HeldState, Item, StepRequest, StepResult};

/// The steps of one message. Their results are reported together if possible.
#[derive(Debug)]
pub(super) struct HeldBatch {
    pub id: String,
    pub session: String,
    pub number: i64,
    pub open: Cell<i64>,                                     // accepted steps that have not ended
    pub unsent: Cell<i64>,                                   // steps without a sent result
    pub ready: RefCell<Vec<(Rc<HeldDelivery>, StepResult)>>, // finished, and in no message yet
}

impl HeldBatch {
    pub fn new(id: &str, session: &str, size: usize) -> Rc<Self> {
        Rc::new(Self {
            id: id.to_owned(),
            session: session.to_owned(),
            number: batch_number(id),
            open: Cell::new(0),
            unsent: Cell::new(size as i64),
            ready: RefCell::default(),
        })
    }
}

/// One delivery in this process.
#[derive(Debug)]
pub(super) struct HeldDelivery {
    pub item: Item,
    pub step: RefCell<Option<Arc<StepRequest>>>, // None after the run has ended, when only the result is needed
    pub peer: Cell<PeerId>,                      // the broker that owns the delivery; changed by an adoption
    pub batch: Rc<HeldBatch>,
    pub offer: usize,
    pub received_ms: f64,
    pub run: RefCell<Option<Arc<Run>>>, // since its hand-over to the runner
    pub state: Cell<Option<HeldState>>, // None: no longer held. `Running`: handed to the runner
    pub is_at_most_once: bool,
    pub is_stopping: Cell<bool>,    // was asked to stop
    pub is_interrupted: Cell<bool>, // the same, or lost its broker: a failure of an at_most_once step proves nothing
    pub ask_at_ms: Cell<f64>,
    pub ask_wait_ms: Cell<f64>,
    pub rid: Cell<Option<u64>>, // of the message with its result
}

impl HeldDelivery {
    pub fn new(step: StepRequest, peer: PeerId, batch: Rc<HeldBatch>, offer: usize, now_ms: f64) -> Rc<Self> {
        Rc::new(Self {
            item: step.item(),
            is_at_most_once: step.delivery_mode == DeliveryMode::AtMostOnce,
            step: RefCell::new(Some(Arc::new(step))),
            peer: Cell::new(peer),
            batch,
            offer,
            received_ms: now_ms,
            run: RefCell::default(),
            state: Cell::new(Some(HeldState::Queued)),
            is_stopping: Cell::new(false),
            is_interrupted: Cell::new(false),
            ask_at_ms: Cell::new(0.0),
            ask_wait_ms: Cell::new(0.0),
            rid: Cell::new(None),
        })
    }

    pub fn is(&self, state: HeldState) -> bool {
        self.state.get() == Some(state)
    }

    pub fn timeout_at_ms(&self) -> f64 {
        self.run.borrow().as_ref().map_or(NEVER, |run| run.timeout_at_ms())
    }

    pub fn started_ms(&self) -> Option<f64> {
        self.run.borrow().as_ref().and_then(|run| run.started_ms())
    }

    /// The state for brokers, for which a step runs from its start. A granted step counts as running at once. A run that
    /// has ended has a result, which the runner is about to report.
    pub fn reported_state(&self) -> Option<HeldState> {
        if self.is(HeldState::Running) {
            match &*self.run.borrow() {
                Some(run) if run.has_ended() => return Some(HeldState::Done),
                Some(run) if run.started_ms().is_some() => {}
                _ if !self.is_at_most_once => return Some(HeldState::Queued),
                _ => {}
            }
        }
        self.state.get()
    }

    /// Milliseconds since the start of the run, or since the receipt if the run has not started. A granted run that
    /// begins now has no age: the time for which it waited for its go is not part of its timeout.
    pub fn age_ms(&self, now_ms: f64) -> u64 {
        let started_ms = self.started_ms();
        if started_ms.is_none() && self.reported_state() == Some(HeldState::Running) {
            return 0;
        }
        (now_ms - started_ms.unwrap_or(self.received_ms)).max(0.0) as u64
    }

    /// True if the run has not begun, and now never will. The caller then ends the delivery.
    pub fn withdraw(&self) -> bool {
        match self.state.get() {
            Some(HeldState::Running) => self.run.borrow().as_ref().map_or(false, |run| run.take_back()),
            state => matches!(state, Some(HeldState::Queued | HeldState::Asking)),
        }
    }
}

/// A results message that no broker has acknowledged yet.
#[derive(Debug)]
pub(super) struct ResultsMessage {
    pub rid: u64,
    pub peer: PeerId,
    pub batch: Rc<HeldBatch>,
    pub session: String,
    pub n: u64,
    pub free: u64,
    pub slots_free: u64,
    pub body: Arc<Vec<u8>>,
    pub list_at: usize,      // where the first result begins in the body
    pub lengths: Vec<usize>, // the bytes of each result
    pub done: Vec<Rc<HeldDelivery>>,
    pub is_replacement: bool, // carries an error in place of a result that no broker accepts
    pub tries: u32,
    pub wait_ms: f64,
    pub at_ms: f64,
}

impl ResultsMessage {
    /// Each delivery with its encoded result.
    pub fn results(&self) -> Vec<(Rc<HeldDelivery>, Vec<u8>)> {
        let mut at = self.list_at;
        let mut pairs = Vec::with_capacity(self.done.len());
        for (held, length) in self.done.iter().zip(&self.lengths) {
            pairs.push((held.clone(), self.body[at..at + length].to_vec()));
            at += length + 1; // the comma
        }
        pairs
    }
}

/// The increasing number n of `batch_<nonce>_<n>`. An id of another form has -1, and is never refused as stale by its
/// number.
fn batch_number(batch_id: &str) -> i64 {
    let number = batch_id.rsplit('_').next().unwrap_or("");
    if number.is_empty() || number.len() > 16 || !number.bytes().all(|c| c.is_ascii_digit()) {
        return -1;
    }
    number.parse().unwrap_or(-1)
}
