//! The context of a run: the first argument of every handler.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::actions::{StopReason, NEVER};
use crate::errors::{ConfigurationError, StepError};
use crate::identity::now_ms;
use crate::logs::StepLogger;
use crate::protocol::codec::decode_data;
use crate::protocol::messages::{DeliveryMode, Item, StepRequest};
use crate::texts::shortened;

const NOTE_CHARS_MAX: usize = 200;
const NUMBER_MAX: f64 = (1_u64 << 53) as f64;

/// Accepts the progress of a run. Any thread may call it.
pub(crate) type ProgressReport = Arc<dyn Fn(Item, f64, Option<f64>, Option<String>) + Send + Sync>;

/// A flag that the SDK sets once, and a handler reads or waits for.
#[derive(Debug, Default)]
struct Signal {
    is_set: AtomicBool,
    notify: Notify,
    lock: Mutex<()>,
    condition: Condvar,
}

impl Signal {
    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    fn set(&self) {
        {
            let _guard = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.is_set.store(true, Ordering::SeqCst);
        }
        self.condition.notify_all();
        self.notify.notify_waiters();
    }

    async fn wait(&self) {
        let notified = self.notify.notified(); // from here on, no `set` is missed
        if !self.is_set() {
            notified.await;
        }
    }

    fn wait_blocking(&self, at_most: Duration) -> bool {
        let guard = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let waited = self.condition.wait_timeout_while(guard, at_most, |_| !self.is_set());
        drop(waited);
        self.is_set()
    }
}

struct Inner {
    started_ms: AtomicU64,
    timeout_at_ms: AtomicU64,
    cancelled: Signal,
    lease_lost: Signal,
    reason: Mutex<Option<StopReason>>,
    report: ProgressReport,
}

/// One delivery of a step, for its handler. Clones share the delivery.
///
/// `idempotency_key` is the same for every attempt and delivery of the step. Pass it to every service that must not act
/// twice. `delivery` only increases: a store that keeps the highest value can refuse writes of an earlier run.
#[derive(Clone)]
pub struct Context {
    step: Arc<StepRequest>,
    is_sealed: bool, // notes of progress are not sent, and texts of errors are not logged
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Context(task {} step {} {})", self.task_id(), self.step_id(), self.step_name())
    }
}

impl Context {
    pub(crate) fn new(step: Arc<StepRequest>, report: ProgressReport) -> Self {
        Self {
            step,
            is_sealed: false,
            inner: Arc::new(Inner {
                started_ms: AtomicU64::new(0),
                timeout_at_ms: AtomicU64::new(NEVER.to_bits()),
                cancelled: Signal::default(),
                lease_lost: Signal::default(),
                reason: Mutex::new(None),
                report,
            }),
        }
    }

    pub(crate) fn step(&self) -> &Arc<StepRequest> {
        &self.step
    }

    /// The same run, with the step as its handler receives it.
    pub(crate) fn with_step(&self, step: Arc<StepRequest>, is_sealed: bool) -> Self {
        Self { step, is_sealed, inner: self.inner.clone() }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    // -- the step -----------------------------------------------------------------------------------------------------

    /// The task that the step belongs to.
    pub fn task_id(&self) -> u64 {
        self.step.task_id
    }

    /// The step.
    pub fn step_id(&self) -> u64 {
        self.step.step_id
    }

    /// The name of the step in its workflow.
    pub fn step_name(&self) -> &str {
        &self.step.step_name
    }

    /// The name under which the workflow calls this handler.
    pub fn handler_class(&self) -> &str {
        &self.step.handler_class
    }

    /// The number of failed attempts before this one.
    pub fn attempt(&self) -> u64 {
        self.step.metadata.attempt
    }

    /// The number of retries that the step's policy allows.
    pub fn retry_limit(&self) -> u64 {
        self.step.metadata.retry_limit
    }

    /// The number of this dispatch of the step.
    pub fn delivery(&self) -> u64 {
        self.step.delivery
    }

    /// How often the step may be dispatched.
    pub fn delivery_mode(&self) -> DeliveryMode {
        self.step.delivery_mode
    }

    /// The same in every attempt and delivery of the step.
    pub fn idempotency_key(&self) -> &str {
        &self.step.metadata.idempotency_key
    }

    /// The trace context (W3C). Pass it on with each request.
    pub fn traceparent(&self) -> Option<&str> {
        self.step.metadata.traceparent.as_deref()
    }

    /// The vendor part of the trace context. Pass it on together with `traceparent`.
    pub fn tracestate(&self) -> Option<&str> {
        self.step.metadata.tracestate.as_deref()
    }

    /// True in a shadow run. The result is only compared, so the run must have no effects.
    pub fn is_shadow(&self) -> bool {
        self.step.metadata.shadow
    }

    // -- input --------------------------------------------------------------------------------------------------------

    /// The step's `handler_config`.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, StepError> {
        decode_data(self.step.raw_config())
            .map_err(|error| StepError::permanent(format!("the handler_config has another form: {error}")))
    }

    /// The output of a step that this step depends on.
    pub fn result<T: DeserializeOwned>(&self, step_name: &str) -> Result<T, StepError> {
        let mut results: BTreeMap<String, Box<serde_json::value::RawValue>> = self.results()?;
        let output = results.remove(step_name).ok_or_else(|| {
            StepError::permanent(format!("there is no result of {step_name:?}: this step does not depend on it"))
        })?;
        decode_data(output.get())
            .map_err(|error| StepError::permanent(format!("the result of {step_name:?} has another form: {error}")))
    }

    /// The outputs of all steps that this step depends on, by step name.
    pub fn results<T: DeserializeOwned>(&self) -> Result<T, StepError> {
        decode_data(self.step.raw_results())
            .map_err(|error| StepError::permanent(format!("the results have another form: {error}")))
    }

    /// The input as JSON: the step's `input` if its workflow defines one, otherwise the whole task context.
    pub fn raw_input(&self) -> &str {
        self.step.raw_input()
    }

    // -- time ---------------------------------------------------------------------------------------------------------

    /// The time until the timeout or the deadline of the run; None without one.
    pub fn remaining(&self) -> Option<Duration> {
        let at_ms = self.deadline_ms();
        (at_ms < NEVER).then(|| duration(at_ms - now_ms()))
    }

    /// The time of the timeout on the worker's own clock ([`now_ms`](crate::identity::now_ms)); infinite without one.
    pub fn deadline_ms(&self) -> f64 {
        f64::from_bits(self.inner.timeout_at_ms.load(Ordering::SeqCst))
    }

    /// The time since the start of the run.
    pub fn elapsed(&self) -> Duration {
        duration(now_ms() - f64::from_bits(self.inner.started_ms.load(Ordering::SeqCst)))
    }

    // -- stop ---------------------------------------------------------------------------------------------------------

    /// True when the run should stop.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.is_set()
    }

    /// Why the run should stop.
    pub fn cancel_reason(&self) -> Option<StopReason> {
        *self.inner.reason.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until the run should stop. Only handlers registered as `cooperative` see the end of this wait: the future
    /// of any other async handler is dropped.
    pub async fn cancelled(&self) {
        self.inner.cancelled.wait().await;
    }

    /// For blocking handlers: waits until the run should stop, at most for this time. Returns `is_cancelled`.
    pub fn wait_cancelled(&self, at_most: Duration) -> bool {
        self.inner.cancelled.wait_blocking(at_most)
    }

    /// An error once the run should stop, for `?` in a loop: the step is reported as stopped.
    pub fn check(&self) -> Result<(), StepError> {
        if self.is_cancelled() {
            return Err(StepError::stopped());
        }
        Ok(())
    }

    /// True if the broker may now run the step on another worker. The run continues.
    pub fn is_lease_lost(&self) -> bool {
        self.inner.lease_lost.is_set()
    }

    /// Waits until the broker may run the step on another worker.
    pub async fn lease_lost(&self) {
        self.inner.lease_lost.wait().await;
    }

    // -- reports ------------------------------------------------------------------------------------------------------

    /// Reports the progress of this run: `done` of `total`, and a short note for people.
    ///
    /// Calls are cheap: only the latest report of a run is sent, at most five times a second. A note with more than 200
    /// characters is cut after 199, and ends with `…`; a note of a sealed step is not sent.
    ///
    /// # Errors
    /// A number that is not finite, or beyond 2^53.
    pub fn progress(&self, done: f64, total: Option<f64>, note: Option<&str>) -> Result<(), ConfigurationError> {
        let is_number = |number: f64| number.abs() <= NUMBER_MAX; // false for NaN
        if !is_number(done) || !total.map_or(true, is_number) {
            return Err(ConfigurationError::new(format!(
                "progress({done:?}, {total:?}): both must be finite numbers up to 2^53"
            )));
        }
        let note = note.filter(|_| !self.is_sealed).map(|note| shortened(note, NOTE_CHARS_MAX));
        (self.inner.report)(self.step.item(), done, total, note);
        Ok(())
    }

    /// A logger whose records carry the step's ids. It writes to stderr, unless the program has set a sink.
    pub fn log(&self) -> StepLogger<'_> {
        StepLogger::new(&self.step)
    }

    // -- for the runner -----------------------------------------------------------------------------------------------

    /// Called before the handler: the run may have waited for a slot since this object was made.
    pub(crate) fn begin(&self, started_ms: f64, timeout_at_ms: f64) {
        self.inner.started_ms.store(started_ms.to_bits(), Ordering::SeqCst);
        self.inner.timeout_at_ms.store(timeout_at_ms.to_bits(), Ordering::SeqCst);
    }

    /// Sets the flags for this reason. A lost lease does not cancel the run, which may still be the only one.
    pub(crate) fn stop(&self, reason: StopReason) {
        if reason == StopReason::LeaseLost {
            self.inner.lease_lost.set();
            return;
        }
        self.inner.reason.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(reason);
        self.inner.cancelled.set();
    }
}

fn duration(ms: f64) -> Duration {
    Duration::from_secs_f64((ms / 1000.0).max(0.0))
}
