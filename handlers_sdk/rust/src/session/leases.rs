//! The session with each broker: opened by hello and welcome, valid during its lease, dropped after it.
//!
//! A lease begins when the echoed hello or heartbeat was sent, on the worker's own clock. Therefore the lease ends at the
//! worker before the broker may consider the worker dead, and their clocks need not agree.

use super::brokers::PeerId;
use super::Session;
use crate::actions::{DropReason, Event, Level, StopReason, NEVER};
use crate::protocol::limits::{DROP_WAIT_MAX_MS, DROP_WAIT_MS, HEARTBEAT_MS, LEASE_WORKER_FACTOR};
use crate::protocol::messages::{HeartbeatAck, HeldState, Here, Reset, ResetCode, Welcome};
use crate::protocol::topics;

/// When the next lease ends.
#[derive(Debug)]
pub(super) struct Leases {
    pub check_at_ms: f64,
}

impl Leases {
    pub fn new() -> Self {
        Self { check_at_ms: NEVER }
    }
}

impl Session {
    /// Drops sessions whose lease is over: no step may start in them, and their messages are ignored.
    pub(super) fn check_leases(&mut self, now_ms: f64) {
        if now_ms < self.leases.check_at_ms {
            return;
        }
        for peer in self.brokers.numbers() {
            let until_ms = self.brokers[peer].lease.until_ms();
            if until_ms > 0.0 && now_ms >= until_ms {
                self.drop_session(peer, DropReason::LeaseOver, Level::Warning, now_ms);
            }
        }
        let untils = self.brokers.iter().map(|peer| peer.lease.until_ms()).filter(|until_ms| *until_ms > 0.0);
        self.leases.check_at_ms = untils.fold(NEVER, f64::min);
    }

    pub(super) fn on_here(&mut self, peer: PeerId, message: Here, now_ms: f64) {
        let own = &mut self.brokers[peer];
        let epoch = message.epoch as i64;
        if own.deployment.as_ref().map_or(false, |known| *known != message.deployment) {
            self.replace_deployment(peer, message.deployment, epoch, now_ms);
            return;
        }
        if epoch < own.epoch {
            return;
        }
        if epoch > own.epoch {
            // The broker restarted. Its deliveries continue with the current lease; the new session will adopt them.
            own.epoch = epoch;
            own.session = None;
        }
        own.deployment = Some(message.deployment);
        own.n_after = self.out.n as i64;
        self.announcements.request_hello(now_ms);
    }

    /// Opens or extends a session. True if the message answers a hello with the current session number, and its lease is
    /// not over yet.
    pub(super) fn on_welcome(&mut self, peer: PeerId, message: &Welcome, now_ms: f64) -> bool {
        let sent_ms = match self.out.sent_ms(message.n) {
            Some(sent_ms) => sent_ms,
            None => return false,
        };
        let own = &mut self.brokers[peer];
        let (epoch, k) = topics::session_parts(&message.session).unwrap_or((0, 0));
        if epoch != message.epoch || k != own.next || message.n as i64 <= own.n_after {
            return false;
        }
        let epoch = epoch as i64;
        if own.deployment.as_ref().map_or(false, |known| *known != message.deployment) {
            self.replace_deployment(peer, message.deployment.clone(), epoch, now_ms);
            return false;
        }
        let until_ms = sent_ms + message.lease_ms as f64 * LEASE_WORKER_FACTOR;
        if epoch < own.epoch || until_ms <= now_ms {
            return false; // sent before a restart, or its lease is over; the broker answers the next hello, too
        }
        let is_new = own.session.as_ref() != Some(&message.session);
        own.epoch = epoch;
        own.deployment = Some(message.deployment.clone());
        own.bytes_max = message.max_message_bytes;
        own.lease_ms = message.lease_ms;
        let wanted_ms = if message.heartbeat_ms == 0 { HEARTBEAT_MS } else { message.heartbeat_ms };
        own.heartbeat_ms = wanted_ms.min(message.lease_ms / 5);
        own.promises.acknowledge(message.n);
        if is_new {
            own.lease.set(0.0); // a restarted broker may have a shorter lease, which then applies
        }
        self.extend_lease(peer, until_ms, now_ms);
        if is_new {
            self.open_session(peer, &message.session, now_ms);
        }
        true
    }

    pub(super) fn on_heartbeat_ack(&mut self, peer: PeerId, message: &HeartbeatAck, now_ms: f64) {
        if let Some(sent_ms) = self.out.sent_ms(message.n) {
            let until_ms = sent_ms + self.brokers[peer].lease_ms as f64 * LEASE_WORKER_FACTOR;
            self.extend_lease(peer, until_ms, now_ms);
        }
        let own = &mut self.brokers[peer];
        if own.promises.acknowledge(message.n) && self.credit_moves(peer) {
            self.announcements.move_credit(now_ms);
        }
        let own = &mut self.brokers[peer];
        if message.quiet != own.is_quiet {
            own.is_quiet = message.quiet;
            self.announcements.request_heartbeat(now_ms);
        }
    }

    pub(super) fn on_reset(&mut self, peer: PeerId, message: &Reset, now_ms: f64) {
        let own = &self.brokers[peer];
        if message.next == own.next && message.epoch as i64 >= own.epoch {
            let level = if is_permanent(message.code) { Level::Error } else { Level::Warning };
            self.drop_session(peer, DropReason::Reset(message.code), level, now_ms);
        }
    }

    fn open_session(&mut self, peer: PeerId, session: &str, now_ms: f64) {
        let own = &mut self.brokers[peer];
        own.session = Some(session.to_owned());
        own.opened_ms = now_ms;
        own.floor = -1;
        own.is_quiet = false;
        let broker = own.id.clone();
        self.announcements.request_heartbeat(now_ms); // carries the credit
        self.outbox.hasten_all(peer, now_ms);
        self.hasten_asking(peer, now_ms);
        self.stop_hello_if_welcomed();
        self.out.log(Level::Info, Event::SessionOpened { broker, session: session.to_owned() });
    }

    fn extend_lease(&mut self, peer: PeerId, until_ms: f64, now_ms: f64) {
        let own = &mut self.brokers[peer];
        own.answered_ms = now_ms;
        if until_ms > own.lease.until_ms() {
            own.lease.set(until_ms);
            self.leases.check_at_ms = self.leases.check_at_ms.min(until_ms);
        }
    }

    /// Ends the session. Deliveries that have not started here never start, because another worker may get them.
    fn drop_session(&mut self, peer: PeerId, why: DropReason, level: Level, now_ms: f64) {
        let mut not_started = 0;
        for held in self.holdings.of_broker(peer) {
            if held.is(HeldState::Done) {
                continue;
            }
            if held.withdraw() {
                self.bury(&held, now_ms);
                not_started += 1;
            } else {
                self.interrupt(&held, StopReason::LeaseLost);
            }
        }
        let own = &mut self.brokers[peer];
        let session = own.session.take();
        own.next += 1;
        own.lease.set(0.0);
        own.n_after = self.out.n as i64;
        let (broker, had_session) = (own.id.clone(), session.is_some());
        self.out.log(level, Event::SessionDropped { broker, session, why, not_started });
        self.rejoin(peer, had_session, why, now_ms);
    }

    /// Sends hello at once after a drop, and after a growing pause if the broker keeps ending the session.
    fn rejoin(&mut self, peer: PeerId, had_session: bool, why: DropReason, now_ms: f64) {
        let own = &mut self.brokers[peer];
        if had_session && now_ms - own.opened_ms >= own.lease_ms as f64 / 2.0 {
            own.drop_wait_ms = 0.0;
        }
        let wait_ms = match why {
            DropReason::Reset(code) if is_permanent(code) => {
                own.drop_wait_ms = DROP_WAIT_MAX_MS;
                DROP_WAIT_MAX_MS
            }
            _ => {
                let wait_ms = own.drop_wait_ms;
                own.drop_wait_ms = (2.0 * wait_ms).clamp(DROP_WAIT_MS, DROP_WAIT_MAX_MS);
                wait_ms
            }
        };
        if wait_ms > 0.0 {
            self.request_hello_after(wait_ms, peer, now_ms);
        } else {
            self.announcements.request_hello(now_ms);
        }
    }

    /// Discards everything of a broker that has another database: earlier deliveries have no owner, and their ids now
    /// belong to other steps.
    fn replace_deployment(&mut self, peer: PeerId, deployment: String, epoch: i64, now_ms: f64) {
        let results_discarded = self.outbox.discard(peer);
        for held in self.holdings.of_broker(peer) {
            if !held.is(HeldState::Running) || held.withdraw() {
                self.bury(&held, now_ms);
            } else {
                self.interrupt(&held, StopReason::Superseded);
                self.orphan(&held, now_ms);
            }
        }
        let broker = self.brokers[peer].id.clone();
        let event = Event::DeploymentReplaced { broker, deployment: deployment.clone(), results_discarded };
        self.out.log(Level::Error, event);
        self.drop_session(peer, DropReason::DeploymentReplaced, Level::Warning, now_ms);
        self.holdings.tombstones.forget_broker(peer);
        let own = &mut self.brokers[peer];
        own.deployment = Some(deployment);
        own.epoch = epoch;
    }
}

/// A reset that a hello does not change.
fn is_permanent(code: ResetCode) -> bool {
    matches!(code, ResetCode::Version | ResetCode::Unauthorized)
}
