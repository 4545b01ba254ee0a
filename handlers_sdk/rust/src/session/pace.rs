//! The rate at which steps really end, observed with decay. Credit and run-ahead follow it.

use crate::protocol::limits::PREFETCH_MS;

const FADE_MS: f64 = 100.0; // the weight of an observation falls to 1/e in this time

/// Counts ends of steps, and the time for which there was a step to run. Both fade, and their ratio is the rate.
///
/// Time without a step does not count: an idle worker is not slow. While steps run and none ends, the rate falls, so a
/// change from short to long steps shows before the first long step ends.
#[derive(Debug)]
pub(super) struct Pace {
    ended: f64,
    busy_ms: f64,
    at_ms: f64,
    is_busy: bool,
}

impl Pace {
    /// `expected`: the number of steps that may wait before any has ended.
    pub fn new(expected: f64) -> Self {
        Self { ended: expected, busy_ms: PREFETCH_MS, at_ms: 0.0, is_busy: false }
    }

    /// There is a step to run again.
    pub fn resume(&mut self, now_ms: f64) {
        if !self.is_busy {
            self.is_busy = true;
            self.at_ms = now_ms;
        }
    }

    /// No step is left.
    pub fn pause(&mut self, now_ms: f64) {
        self.fade(now_ms);
        self.is_busy = false;
    }

    pub fn count_end(&mut self, now_ms: f64) {
        if now_ms > self.at_ms {
            self.fade(now_ms);
        }
        self.ended += 1.0;
    }

    /// The number of steps that are expected to end in this time.
    pub fn steps_in(&mut self, ms: f64, now_ms: f64) -> f64 {
        self.fade(now_ms);
        self.ended / self.busy_ms * ms
    }

    fn fade(&mut self, now_ms: f64) {
        let passed_ms = now_ms - self.at_ms;
        if !self.is_busy || passed_ms <= 0.0 {
            return;
        }
        self.at_ms = now_ms;
        let kept = (-passed_ms / FADE_MS).exp();
        self.ended *= kept;
        self.busy_ms = self.busy_ms * kept + FADE_MS * (1.0 - kept);
    }
}
