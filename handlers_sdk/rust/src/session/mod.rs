//! The worker's half of the protocol, as pure logic: without sockets, clock, threads or its own randomness.
//!
//! The caller passes the time with every call, in milliseconds of a clock that counts sleep. It passes all facts that
//! have arrived, then calls `actions`, and calls it again at `wake_at` at the latest. Results of one batch that finished
//! in the meantime are sent in one message.
//!
//! The guarantees: a process runs a delivery at most once. No step starts after its broker may consider this worker
//! dead. An at_most_once step starts only after the broker's go. A result is kept until a broker has committed it.
//!
//! Each part owns its state in a file of its own, and no other part touches that state:
//!
//! | file | state |
//! |---|---|
//! | `config` | what the worker offers |
//! | `brokers` | the brokers that the worker knows |
//! | `promises` | the credit that a broker may still use |
//! | `leases` | the session with each broker, and its lease |
//! | `announcements` | hello, heartbeat, bye |
//! | `endpoints` | which brokers to connect to, and when to connect again |
//! | `intake` | `steps` messages, and their answers: accept, refuse |
//! | `holdings` | every delivery that this process holds (records: `deliveries`, `tombstones`) |
//! | `slots`, `pace` | the run queue, the slots of runs, and the observed rate |
//! | `runs` | start, at_most_once permission, timeouts, cancels |
//! | `credit` | the number of steps that each broker may send |
//! | `reporting` | results messages of finished runs |
//! | `outbox` | results messages until they are acknowledged |
//! | `progress` | progress reports |
//! | `outgoing` | the actions decided so far, and the message counter |
//!
//! The functions of a part that need other parts are methods of `Session`, in the file of the part.

mod announcements;
mod brokers;
mod config;
mod credit;
mod deliveries;
mod endpoints;
mod holdings;
mod intake;
mod leases;
mod ordered;
mod outbox;
mod outgoing;
mod pace;
mod progress;
mod promises;
mod reporting;
mod runs;
mod slots;
#[cfg(test)]
mod tests;
mod tombstones;

use std::rc::Rc;

pub use config::{find_offer, Config, Offer};

use crate::actions::{Action, Event, Level, StopReason, NEVER};
use crate::protocol::messages::{
    Adopted, BrokerMessage, Cancel, HeldItem, HeldState, Item, ItemsMessage, RefuseCode, Status, StepResult,
};
use crate::protocol::{codec, topics};
use brokers::{Brokers, PeerId};
use deliveries::HeldDelivery;
use outgoing::{parts, V};

/// One worker's sessions with all its brokers.
pub struct Session {
    config: Config,
    inbox: String,
    has_quit: bool,
    offers: config::Offers,
    out: outgoing::Outgoing,
    brokers: Brokers,
    slots: slots::Slots,
    holdings: holdings::Holdings,
    outbox: outbox::Outbox,
    runs: runs::Runs,
    credit: credit::Credit,
    intake: intake::Intake,
    reporting: reporting::Reporting,
    progress: progress::Reports,
    announcements: announcements::Announcements,
    leases: leases::Leases,
    endpoints: endpoints::BrokerLinks,
}

impl Session {
    /// A session that has not started. `random` returns numbers in [0, 1), for the jitter of intervals.
    pub fn new(config: Config, random: impl FnMut() -> f64 + 'static) -> Self {
        Self {
            inbox: topics::to_worker(&config.worker),
            has_quit: false,
            offers: config::Offers::new(config.offers.clone()),
            out: outgoing::Outgoing::new(config.worker.clone()),
            brokers: Brokers::default(),
            slots: slots::Slots::new(config.slots, &config.offers),
            holdings: holdings::Holdings::new(config.queue_max()),
            outbox: outbox::Outbox::new(),
            runs: runs::Runs::new(),
            credit: credit::Credit::new(&config),
            intake: intake::Intake::new(config.accept_delay_ms),
            reporting: reporting::Reporting::new(),
            progress: progress::Reports::new(),
            announcements: announcements::Announcements::new(Box::new(random)),
            leases: leases::Leases::new(),
            endpoints: endpoints::BrokerLinks::new(&config.links),
            config,
        }
    }

    // -- facts in -----------------------------------------------------------------------------------------------------

    /// Begins: the first hello is due at once.
    pub fn start(&mut self, now_ms: f64) {
        self.start_announcing(now_ms);
        self.endpoints.start(now_ms);
    }

    /// Receives a frame of the SUB socket, split at its first space.
    pub fn receive(&mut self, topic: &str, body: &[u8], now_ms: f64) {
        self.check_leases(now_ms);
        if topic != self.inbox && topic != topics::BROKERS {
            return;
        }
        if body.len() as u64 > self.config.max_message_bytes {
            self.on_unreadable(body, RefuseCode::TooLarge, format!("{} bytes", body.len()), now_ms);
            return;
        }
        match codec::decode_broker(body) {
            Ok(message) => {
                if topic == self.inbox || matches!(message, BrokerMessage::Here(_)) {
                    self.dispatch(message, body.len(), now_ms);
                }
            }
            Err(refusal) if refusal.code == "unknown_type" => {}
            Err(refusal) => self.on_unreadable(body, RefuseCode::BadMessage, refusal.to_string(), now_ms),
        }
    }

    /// Reports the end of a run that `Action::Run` started. The first report of a run counts.
    pub fn finished(&mut self, item: Item, mut result: StepResult, now_ms: f64) {
        let held = match self.running(&item, now_ms) {
            Some(held) => held,
            None => return,
        };
        let is_late = held.is_interrupted.get() || now_ms >= held.timeout_at_ms();
        if result.status != Status::Completed && is_late {
            result = reporting::without_verdict(&held, result);
        }
        self.add_result(&held, result, now_ms);
        if self.progress.send_at_ms != NEVER {
            self.progress.forget(&item);
        }
        self.finish(&held, now_ms);
    }

    /// Returns a step to its broker: its run did not start, or had no effect, so another worker may run the step.
    pub fn give_back(&mut self, item: Item, now_ms: f64) {
        if let Some(held) = self.running(&item, now_ms) {
            let code = if self.credit.is_draining { RefuseCode::Draining } else { RefuseCode::Busy };
            self.return_steps(vec![held], code, now_ms);
        }
    }

    /// Reports the progress of a run.
    pub fn progressed(&mut self, item: Item, done: f64, total: Option<f64>, note: Option<String>, now_ms: f64) {
        if let Some(held) = self.holdings.get(&item).filter(|held| held.is(HeldState::Running)) {
            self.progress.add(&held, done, total, note, now_ms);
        }
    }

    /// Accept no new steps, and finish those that are held.
    pub fn quiet(&mut self, now_ms: f64) {
        self.credit.is_quiet = true;
        self.announcements.request_heartbeat(now_ms);
    }

    /// Reports whether the runner accepts no steps at the moment, although slots are free.
    pub fn full(&mut self, is_full: bool, now_ms: f64) {
        if is_full != self.credit.is_full {
            self.credit.is_full = is_full;
            self.announcements.request_heartbeat(now_ms);
        }
    }

    /// Return steps that have not started, finish those that run, then `Quit`.
    pub fn drain(&mut self, now_ms: f64) {
        if self.credit.is_draining {
            return;
        }
        self.credit.is_draining = true;
        self.check_leases(now_ms);
        let withdrawn = self.holdings.withdraw();
        self.return_steps(withdrawn, RefuseCode::Draining, now_ms);
        let running = self.holdings.running().len();
        self.out.log(Level::Info, Event::WorkerDrains { running });
        self.announcements.request_heartbeat(now_ms);
    }

    /// Ask every run to stop, because the time to drain is over. Returns the number of runs.
    pub fn expel(&mut self) -> usize {
        self.interrupt_all(StopReason::Shutdown)
    }

    // -- actions out --------------------------------------------------------------------------------------------------

    /// All actions that are due now, in their order.
    pub fn actions(&mut self, now_ms: f64) -> Vec<Action> {
        if now_ms >= self.leases.check_at_ms {
            self.check_leases(now_ms);
        }
        if now_ms >= self.runs.timeout_at_ms {
            self.stop_overdue(now_ms);
        }
        self.hand_over(now_ms);
        if now_ms >= self.credit.return_at_ms {
            self.return_excess(now_ms);
        }
        if self.is_report_due(now_ms) {
            self.report_due(now_ms);
        }
        if now_ms >= self.outbox.resend_at_ms {
            self.outbox.resend(&self.brokers, &mut self.out, now_ms);
        }
        if now_ms >= self.runs.ask_at_ms {
            self.ask(now_ms);
        }
        if now_ms >= self.intake.accept_at_ms {
            self.accept_due(now_ms);
        }
        if now_ms >= self.progress.send_at_ms {
            self.send_progress(now_ms);
        }
        if now_ms >= self.announcements.hello_at_ms {
            self.hello(now_ms);
        }
        if now_ms >= self.announcements.heartbeat_at_ms {
            self.heartbeat(now_ms);
        }
        if now_ms >= self.endpoints.check_at_ms {
            self.check_links(now_ms);
        }
        if self.may_quit() {
            self.has_quit = true;
            self.heartbeat(now_ms);
            self.out.add(Action::Quit);
        }
        self.out.take()
    }

    /// The latest time for the next call of `actions`; minus infinity: now. At that time, nothing may be due.
    pub fn wake_at(&self) -> f64 {
        let has_last_results = self.reporting.send_at_ms != NEVER && self.slots.taken == 0;
        if self.out.has_actions()
            || self.slots.has_next()
            || self.reporting.has_whole()
            || has_last_results
            || self.may_quit()
        {
            return -NEVER;
        }
        let times = [
            self.leases.check_at_ms,
            self.runs.timeout_at_ms,
            self.credit.return_at_ms,
            self.reporting.send_at_ms,
            self.outbox.resend_at_ms,
            self.runs.ask_at_ms,
            self.intake.accept_at_ms,
            self.progress.send_at_ms,
            self.announcements.hello_at_ms,
            self.announcements.heartbeat_at_ms,
            self.endpoints.check_at_ms,
        ];
        times.into_iter().fold(NEVER, f64::min)
    }

    /// True after `drain`, or after a broker's `quit`.
    pub fn is_draining(&self) -> bool {
        self.credit.is_draining
    }

    /// True if results wait for others that are about to end. Then the caller need not report each end at once: within
    /// the next millisecond is soon enough.
    pub fn awaits_results(&self) -> bool {
        self.reporting.send_at_ms != NEVER && self.slots.taken >= self.holdings.load
    }

    /// The number of deliveries that this process holds, with those whose result no broker has acknowledged.
    pub fn held(&self) -> usize {
        self.holdings.len()
    }

    /// What this process holds, as brokers read it.
    pub fn holding(&self, now_ms: f64) -> Vec<HeldItem> {
        self.holdings.report(self.config.slots, now_ms)
    }

    // -- messages -----------------------------------------------------------------------------------------------------

    fn dispatch(&mut self, message: BrokerMessage, size: usize, now_ms: f64) {
        match message {
            BrokerMessage::Ack(message) => self.on_ack(&message, now_ms),
            BrokerMessage::Here(message) => {
                let peer = self.brokers.find_or_add(&message.broker, now_ms);
                self.on_here(peer, message, now_ms);
            }
            BrokerMessage::Welcome(message) => {
                let peer = self.brokers.find_or_add(&message.broker, now_ms);
                if self.on_welcome(peer, &message, now_ms) {
                    self.learn(peer, &message.brokers, now_ms);
                }
            }
            BrokerMessage::Reset(message) => {
                let peer = self.brokers.find_or_add(&message.broker, now_ms);
                self.on_reset(peer, &message, now_ms);
            }
            BrokerMessage::Refused(message) => self.on_refused(message, now_ms),
            BrokerMessage::Steps(message) => {
                if let Some(peer) = self.in_session(&message.broker, &message.session, message.epoch) {
                    let is_waking = self.is_waking(peer, now_ms);
                    self.on_steps(peer, message, size, now_ms);
                    if is_waking {
                        self.announcements.recall_credit(now_ms);
                    }
                }
            }
            BrokerMessage::HeartbeatAck(message) => {
                if let Some(peer) = self.in_session(&message.broker, &message.session, message.epoch) {
                    self.on_heartbeat_ack(peer, &message, now_ms);
                    if let Some(listed) = &message.brokers {
                        self.learn(peer, listed, now_ms);
                    }
                    if message.quit {
                        self.drain(now_ms);
                    }
                }
            }
            BrokerMessage::Go(message) => {
                if let Some(peer) = self.in_session(&message.broker, &message.session, message.epoch) {
                    self.on_go(peer, &message.items, now_ms);
                }
            }
            BrokerMessage::Cancel(message) => {
                if let Some(peer) = self.in_session(&message.broker, &message.session, message.epoch) {
                    self.on_cancel(peer, &message, now_ms);
                }
            }
            BrokerMessage::Adopt(message) => {
                if let Some(peer) = self.in_session(&message.broker, &message.session, message.epoch) {
                    self.on_adopt(peer, &message, now_ms);
                }
            }
        }
    }

    /// The broker of a message of the current session. For others the next heartbeat informs the sender.
    fn in_session(&self, broker: &str, session: &str, epoch: u64) -> Option<PeerId> {
        self.brokers.find(broker).filter(|peer| {
            let peer = &self.brokers[*peer];
            peer.session.as_deref() == Some(session) && peer.epoch == epoch as i64
        })
    }

    fn on_cancel(&mut self, peer: PeerId, message: &Cancel, now_ms: f64) {
        let mut not_started = Vec::new();
        for item in &message.items {
            match self.holdings.get(item) {
                None => self.holdings.tombstones.disown(*item, peer, now_ms),
                Some(held) if held.peer.get() == peer && !held.is(HeldState::Done) => {
                    if held.withdraw() {
                        not_started.push(held);
                    } else {
                        self.interrupt(&held, message.reason.into());
                    }
                }
                Some(_) => {}
            }
        }
        self.return_steps(not_started, RefuseCode::Stale, now_ms);
    }

    /// Moves deliveries to another broker, or to the same one after a restart. Unknown ones will never start here.
    fn on_adopt(&mut self, peer: PeerId, message: &ItemsMessage, now_ms: f64) {
        let mut answers: Vec<HeldItem> = Vec::new();
        let mut moved = Vec::new();
        for item in &intake::once_each(&message.items) {
            let held = match self.holdings.get(item) {
                Some(held) => held,
                None => {
                    self.holdings.tombstones.disown(*item, peer, now_ms);
                    answers.push((item.0, item.1, HeldState::Unknown, 0));
                    continue;
                }
            };
            let state = held.reported_state().unwrap_or(HeldState::Unknown);
            answers.push((item.0, item.1, state, held.age_ms(now_ms)));
            if let Some(rid) = held.rid.get() {
                self.outbox.hasten(rid, now_ms);
                if self.outbox.peer_of(rid).map_or(false, |owner| owner != peer) {
                    moved.push((rid, held.clone()));
                }
            }
            self.move_to(&held, peer);
        }
        let own = &self.brokers[peer];
        let worker = self.out.worker.clone();
        for part in parts(&answers) {
            let session = own.session.as_deref().unwrap_or("");
            self.out.send_to(own, &Adopted { v: V, worker: &worker, session, items: part });
        }
        for (rid, deliveries) in holdings::group(moved) {
            self.change_owner(rid, &deliveries, peer, now_ms);
        }
    }

    // -- helpers ------------------------------------------------------------------------------------------------------

    /// The delivery of a run that has ended. None if it is held no more; a run for a replaced database ends silently.
    fn running(&mut self, item: &Item, now_ms: f64) -> Option<Rc<HeldDelivery>> {
        let held = self.holdings.get(item).filter(|held| held.is(HeldState::Running));
        if held.is_none() {
            self.release_orphan(item, now_ms);
        }
        held
    }

    /// Hands steps to the runner, as far as slots and pace permit, and watches those that still wait.
    fn hand_over(&mut self, now_ms: f64) {
        if self.slots.has_queue() {
            self.slots.ahead = self.ahead(now_ms);
            if self.slots.has_next() {
                self.start_queued(now_ms);
            }
        }
        self.watch(now_ms);
    }

    /// Returns the newest steps that no longer fit, because steps have become longer.
    fn return_excess(&mut self, now_ms: f64) {
        let (count, peers) = self.excess(now_ms);
        if count > 0 {
            let withdrawn = self.holdings.withdraw_newest(count, &peers);
            self.return_steps(withdrawn, RefuseCode::Busy, now_ms);
        }
    }

    fn may_quit(&self) -> bool {
        self.credit.is_draining && self.holdings.len() == 0 && !self.has_quit
    }
}
