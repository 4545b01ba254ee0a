//! Reports that no broker answers: after three seconds, then at growing intervals.

use std::thread;

use super::events;
use super::reachability::diagnosis;
use crate::actions::{Event, Level, Link, NEVER};

const AFTER_MS: [f64; 4] = [3_000.0, 10_000.0, 30_000.0, 60_000.0];
const EVERY_MS: f64 = 300_000.0; // after those

/// Knows since when links have no session, and when to report that next. Used by the socket thread only.
#[derive(Debug)]
pub(super) struct BrokerSearch {
    pub report_at_ms: f64,
    since_ms: f64,
    reports: usize,
    public_key: Option<String>,
}

impl BrokerSearch {
    pub fn new(public_key: Option<String>) -> Self {
        Self { report_at_ms: NEVER, since_ms: 0.0, reports: 0, public_key }
    }

    /// Notes the links without a session, after each change and at `report_at_ms`. Reports the first when due.
    pub fn update(&mut self, closed: Vec<Link>, now_ms: f64) {
        let link = match closed.into_iter().next() {
            Some(link) => link,
            None => {
                self.report_at_ms = NEVER;
                self.reports = 0;
                return;
            }
        };
        if self.report_at_ms == NEVER {
            self.since_ms = now_ms;
            self.report_at_ms = now_ms + AFTER_MS[0];
        }
        if now_ms < self.report_at_ms {
            return;
        }
        self.reports += 1;
        let waits_ms = AFTER_MS.get(self.reports).copied().unwrap_or(now_ms - self.since_ms + EVERY_MS);
        self.report_at_ms = self.since_ms + waits_ms;
        let seconds = ((now_ms - self.since_ms) / 1000.0).round() as u64;
        // On a thread, because resolving a name or connecting can take seconds, and heartbeats must continue.
        let public_key = self.public_key.clone();
        let report = move || {
            let (endpoint, reason) = diagnosis(&link, public_key.as_deref());
            events::log(Level::Warning, &Event::NoBroker { endpoint, reason, seconds });
        };
        let _ = thread::Builder::new().name("stepwire-search".to_owned()).spawn(report);
    }
}
