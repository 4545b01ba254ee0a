//! The messages to every broker: hello (until every broker has sent welcome), heartbeats, and bye.

use super::brokers::PeerId;
use super::outgoing::V;
use super::Session;
use crate::actions::NEVER;
use crate::protocol::codec;
use crate::protocol::limits::{
    HEARTBEAT_JITTER, HEARTBEAT_MIN_MS, HELLO_JITTER, HELLO_RETRY_MAX_MS, HELLO_RETRY_MS, LEASE_MS, VERSIONS_SUPPORTED,
};
use crate::protocol::messages::{Bye, Heartbeat, Hello};

/// When to send hello and heartbeat. `random` returns numbers in [0, 1), for the jitter of the intervals.
pub(super) struct Announcements {
    pub hello_at_ms: f64,
    pub heartbeat_at_ms: f64,
    pub is_for_credit: bool, // the next heartbeat was requested only because places move
    random: Box<dyn FnMut() -> f64>,
    hello_wait_ms: f64,
    hello_sent_ms: f64,
    hello_n: i64,
    may_move_credit: bool,
}

impl Announcements {
    pub fn new(random: Box<dyn FnMut() -> f64>) -> Self {
        Self {
            hello_at_ms: NEVER,
            heartbeat_at_ms: NEVER,
            is_for_credit: false,
            random,
            hello_wait_ms: HELLO_RETRY_MS,
            hello_sent_ms: -NEVER,
            hello_n: 0,
            may_move_credit: true,
        }
    }

    /// Begins to send hello again. The pause since the last hello is at least that of the first retry.
    pub fn request_hello(&mut self, now_ms: f64) {
        self.hello_wait_ms = HELLO_RETRY_MS;
        let soonest_ms = self.hello_sent_ms + self.spread(HELLO_RETRY_MS, HELLO_JITTER);
        self.hello_at_ms = self.hello_at_ms.min(soonest_ms.max(now_ms));
    }

    /// Sends a heartbeat with the next actions, because the brokers must be informed at once.
    pub fn request_heartbeat(&mut self, now_ms: f64) {
        self.heartbeat_at_ms = now_ms;
    }

    /// Takes lent places back, with a heartbeat: this broker has steps again. The acks of that heartbeat may move them.
    pub fn recall_credit(&mut self, now_ms: f64) {
        self.may_move_credit = true;
        self.request_credit(now_ms);
    }

    /// Offers places that another broker no longer has, with a heartbeat. At most once between two other heartbeats:
    /// each ack of one could cause the next.
    pub fn move_credit(&mut self, now_ms: f64) {
        if self.may_move_credit {
            self.may_move_credit = false;
            self.request_credit(now_ms);
        }
    }

    /// Sends a heartbeat with the next actions. The remainder of the split does not rotate with it.
    fn request_credit(&mut self, now_ms: f64) {
        if self.heartbeat_at_ms > now_ms {
            self.heartbeat_at_ms = now_ms;
            self.is_for_credit = true;
        }
    }

    fn spread(&mut self, ms: f64, jitter: f64) -> f64 {
        ms * (1.0 + jitter * (2.0 * (self.random)() - 1.0))
    }
}

impl Session {
    pub(super) fn start_announcing(&mut self, now_ms: f64) {
        self.announcements.hello_at_ms = now_ms;
        self.announcements.heartbeat_at_ms = now_ms + self.heartbeat_every_ms();
    }

    /// Begins to send hello again after this pause, because this broker keeps ending the session. Another broker that
    /// has no session either does not wait for it.
    pub(super) fn request_hello_after(&mut self, wait_ms: f64, peer: PeerId, now_ms: f64) {
        let own = &self.brokers[peer].id;
        let others_are_open = self.brokers.iter().all(|other| other.session.is_some() || other.id == *own);
        let at_ms = now_ms + wait_ms;
        let announcements = &mut self.announcements;
        announcements.hello_wait_ms = HELLO_RETRY_MS;
        announcements.hello_at_ms = if others_are_open { at_ms } else { announcements.hello_at_ms.min(at_ms) };
    }

    /// Stops sending hello, if every broker has answered a hello that was sent after its last drop or `here`.
    pub(super) fn stop_hello_if_welcomed(&mut self) {
        let hello_n = self.announcements.hello_n;
        if self.brokers.len() > 0 && self.brokers.iter().all(|peer| peer.session.is_some() && peer.n_after < hello_n) {
            self.announcements.hello_at_ms = NEVER;
        }
    }

    pub(super) fn hello(&mut self, now_ms: f64) {
        let n = self.out.next_timed_n(now_ms);
        let (free, slots_free) = self.offer_all(n, now_ms);
        let config = &self.config;
        let hello = Hello {
            v: V,
            worker: &config.worker,
            n,
            versions: VERSIONS_SUPPORTED,
            next: self.brokers.next_numbers(),
            sessions: self.brokers.sessions(),
            handlers: config.offers.iter().map(|offer| &*offer.pattern).collect(),
            shadow_safe: config.offers.iter().filter(|o| o.shadow_safe).map(|o| &*o.pattern).collect(),
            labels: config.labels.clone(),
            slots: config.slots,
            prefetch: config.queue_max(),
            free,
            slots_free,
            holding: self.holdings.report(self.config.slots, now_ms),
            heartbeat_ms: config.heartbeat_ms,
            lang: &config.lang,
            sdk: &config.sdk,
            handler_version: &config.handler_version,
            host: &config.host,
            pid: config.pid,
            pid_started: config.pid_started,
            proof: config.proof,
            max_message_bytes: config.max_message_bytes,
        };
        let body = codec::encode(&hello);
        self.out.send_to_all(body);
        let announcements = &mut self.announcements;
        announcements.hello_sent_ms = now_ms;
        announcements.hello_n = n as i64;
        let wait_ms = announcements.hello_wait_ms;
        announcements.hello_at_ms = now_ms + announcements.spread(wait_ms, HELLO_JITTER);
        announcements.hello_wait_ms = (wait_ms * 2.0).min(HELLO_RETRY_MAX_MS);
        self.stop_hello_if_welcomed();
    }

    /// Sends a heartbeat; while draining, also a bye.
    pub(super) fn heartbeat(&mut self, now_ms: f64) {
        self.holdings.sweep(&mut self.brokers, now_ms);
        if !self.announcements.is_for_credit {
            self.credit.rotate();
        }
        let n = self.out.next_timed_n(now_ms);
        let (free, slots_free) = self.offer_all(n, now_ms);
        let heartbeat = Heartbeat {
            v: V,
            worker: &self.config.worker,
            n,
            next: self.brokers.next_numbers(),
            sessions: self.brokers.sessions(),
            free,
            slots_free,
            holding: self.holdings.report(self.config.slots, now_ms),
        };
        let body = codec::encode(&heartbeat);
        self.out.send_to_all(body);
        if self.credit.is_draining {
            let n = self.out.next_timed_n(now_ms);
            let body = codec::encode(&Bye { v: V, worker: &self.config.worker, n });
            self.out.send_to_all(body);
        }
        let every_ms = self.heartbeat_every_ms();
        let announcements = &mut self.announcements;
        announcements.heartbeat_at_ms = now_ms + announcements.spread(every_ms, HEARTBEAT_JITTER);
        announcements.may_move_credit |= !announcements.is_for_credit;
        announcements.is_for_credit = false;
    }

    fn heartbeat_every_ms(&mut self) -> f64 {
        let requested = self.brokers.iter().filter(|peer| peer.session.is_some()).map(|peer| peer.heartbeat_ms);
        let every_ms = requested.fold(self.config.heartbeat_ms.min(LEASE_MS), u64::min);
        (every_ms as f64).max(HEARTBEAT_MIN_MS)
    }
}
