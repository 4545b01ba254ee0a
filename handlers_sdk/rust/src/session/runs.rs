//! Runs, from their slot to their end: permission for at_most_once steps, start, timeouts, cancels.

use std::rc::Rc;
use std::sync::Arc;

use super::brokers::PeerId;
use super::deliveries::HeldDelivery;
use super::holdings::group;
use super::outgoing::{parts, V};
use super::Session;
use crate::actions::{Action, Run, StopReason, NEVER};
use crate::protocol::limits::{START_RETRANSMIT_MAX_MS, START_RETRANSMIT_MS};
use crate::protocol::messages::{HeldState, Item, Start};

const RECHECK_MS: f64 = 50.0; // a run that has not begun by its deadline is checked again after this time

/// When to ask for permission, and when the next run times out.
#[derive(Debug)]
pub(super) struct Runs {
    pub ask_at_ms: f64,
    pub timeout_at_ms: f64,
}

impl Runs {
    pub fn new() -> Self {
        Self { ask_at_ms: NEVER, timeout_at_ms: NEVER }
    }
}

impl Session {
    /// Starts deliveries in the run queue.
    pub(super) fn start_queued(&mut self, now_ms: f64) {
        while let Some(held) = self.slots.take_next(now_ms) {
            if held.is_at_most_once {
                held.state.set(Some(HeldState::Asking));
                held.ask_at_ms.set(now_ms);
                held.ask_wait_ms.set(START_RETRANSMIT_MS);
                self.slots.asking.insert(held.item, held);
                self.runs.ask_at_ms = now_ms;
            } else {
                self.start_run(&held, now_ms);
            }
        }
    }

    /// Sends `start` for the at_most_once steps that are due. Resent until the broker answers go or cancel.
    pub(super) fn ask(&mut self, now_ms: f64) {
        let mut due: Vec<(PeerId, Item)> = Vec::new();
        let mut at_ms = NEVER;
        for held in self.slots.asking.values() {
            if held.ask_at_ms.get() <= now_ms {
                due.push((held.peer.get(), held.item));
                held.ask_at_ms.set(now_ms + held.ask_wait_ms.get());
                held.ask_wait_ms.set((held.ask_wait_ms.get() * 2.0).min(START_RETRANSMIT_MAX_MS));
            }
            at_ms = at_ms.min(held.ask_at_ms.get());
        }
        self.runs.ask_at_ms = at_ms;
        let worker = self.out.worker.clone();
        for (peer, items) in group(due) {
            let peer = &self.brokers[peer];
            if let Some(session) = &peer.session {
                for part in parts(&items) {
                    self.out.send_to(peer, &Start { v: V, worker: &worker, session, items: part });
                }
            }
        }
    }

    /// Asks this broker with the next actions, because its session has just opened.
    pub(super) fn hasten_asking(&mut self, peer: PeerId, now_ms: f64) {
        for held in self.slots.asking.values().filter(|held| held.peer.get() == peer) {
            held.ask_at_ms.set(now_ms);
            self.runs.ask_at_ms = now_ms;
        }
    }

    pub(super) fn on_go(&mut self, peer: PeerId, items: &[Item], now_ms: f64) {
        for item in items {
            let is_own = self.slots.asking.get(item).map_or(false, |held| held.peer.get() == peer);
            if is_own {
                if let Some(held) = self.slots.asking.remove(item) {
                    self.start_run(&held, now_ms);
                }
            }
        }
    }

    /// Asks a run that has begun to stop. The first reason counts, and a run is asked once, although a broker repeats
    /// its cancel at every heartbeat that lists the run. `lease_lost` informs the handler, and stops nothing.
    pub(super) fn interrupt(&mut self, held: &HeldDelivery, reason: StopReason) {
        held.is_interrupted.set(true);
        if !held.is_stopping.get() {
            held.is_stopping.set(reason != StopReason::LeaseLost);
            self.out.add(Action::CancelRun { item: held.item, reason });
        }
    }

    /// Asks every run to stop. Returns their number.
    pub(super) fn interrupt_all(&mut self, reason: StopReason) -> usize {
        let running = self.holdings.running();
        for held in &running {
            self.interrupt(held, reason);
        }
        running.len()
    }

    pub(super) fn stop_overdue(&mut self, now_ms: f64) {
        let mut at_ms = NEVER;
        for held in self.holdings.running() {
            let run = match &*held.run.borrow() {
                Some(run) => run.clone(),
                None => continue,
            };
            if run.started_ms().is_none() {
                // may begin at any time
                at_ms = at_ms.min(now_ms + run.timeout_ms).min(run.deadline_ms.max(now_ms + RECHECK_MS));
            } else if run.timeout_at_ms() > now_ms {
                at_ms = at_ms.min(run.timeout_at_ms());
            } else {
                self.interrupt(&held, StopReason::Timeout);
            }
        }
        self.runs.timeout_at_ms = at_ms;
    }

    fn start_run(&mut self, held: &Rc<HeldDelivery>, now_ms: f64) {
        let step = match &*held.step.borrow() {
            Some(step) => step.clone(),
            None => return,
        };
        let lease = self.brokers[held.peer.get()].lease.clone();
        assert!(now_ms < lease.until_ms(), "a step must not start after its broker's lease");
        held.state.set(Some(HeldState::Running));
        let mut timeout_ms = match step.metadata.timeout_ms {
            0 => NEVER,
            timeout_ms => timeout_ms as f64,
        };
        if let Some(own_ms) = self.offers.by_number[held.offer].timeout_ms {
            timeout_ms = timeout_ms.min(own_ms as f64);
        }
        let ends_ms = step.metadata.deadline_ms.map_or(NEVER, |left_ms| held.received_ms + left_ms as f64);
        let soonest_ms = (now_ms + timeout_ms).min(ends_ms); // if the run begins at once
        if soonest_ms < self.runs.timeout_at_ms {
            self.runs.timeout_at_ms = soonest_ms;
        }
        let run = Arc::new(Run::new(held.item, step, held.offer, lease, timeout_ms, ends_ms));
        held.run.replace(Some(run.clone()));
        self.out.add(Action::Run(run));
    }
}
