//! The actions that a session returns. Its caller performs them: a worker with sockets, or a simulation.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use crate::protocol::messages::{CancelReason, Item, RefuseCode, ResetCode, StepRequest, StepResult};

/// A time that never comes.
pub const NEVER: f64 = f64::INFINITY;

/// One broker's pair of endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Link {
    /// The endpoint that sends steps.
    pub steps: String,
    /// The endpoint that receives results.
    pub results: String,
}

impl Link {
    /// Makes a pair of endpoints.
    pub fn new(steps: impl Into<String>, results: impl Into<String>) -> Self {
        Self { steps: steps.into(), results: results.into() }
    }
}

/// The time until which steps of one broker may start. The session sets it; runners read it before each start.
#[derive(Debug, Default)]
pub struct Lease(AtomicU64);

impl Lease {
    /// The end of the lease; 0 without a lease.
    pub fn until_ms(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::SeqCst))
    }

    pub(crate) fn set(&self, until_ms: f64) {
        self.0.store(until_ms.to_bits(), Ordering::SeqCst);
    }
}

/// Why a run ends, or may be useless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The broker does not grant the delivery.
    NotGranted,
    /// The run exceeded its timeout.
    Timeout,
    /// The task was cancelled.
    TaskCancelled,
    /// The broker has ended this run: its timeout, or a retry elsewhere.
    Superseded,
    /// The broker may give the step to another worker. For information: the run continues.
    LeaseLost,
    /// The worker shuts down.
    Shutdown,
}

impl StopReason {
    /// The reason as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::NotGranted => "not_granted",
            StopReason::Timeout => "timeout",
            StopReason::TaskCancelled => "task_cancelled",
            StopReason::Superseded => "superseded",
            StopReason::LeaseLost => "lease_lost",
            StopReason::Shutdown => "shutdown",
        }
    }
}

impl From<CancelReason> for StopReason {
    fn from(reason: CancelReason) -> Self {
        match reason {
            CancelReason::NotGranted => StopReason::NotGranted,
            CancelReason::Timeout => StopReason::Timeout,
            CancelReason::TaskCancelled => StopReason::TaskCancelled,
            CancelReason::Superseded => StopReason::Superseded,
        }
    }
}

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const TAKEN_BACK: u8 = 2;

/// Run this step as soon as a slot is free. If `begin` returns false, report that the step is given back.
///
/// The session and a runner share this object. The runner begins the run; until then, the session may take it back.
/// One atomic decides between both, so a run that was taken back never begins.
#[derive(Debug)]
pub struct Run {
    /// The step and its delivery.
    pub item: Item,
    /// The step as the broker sent it.
    pub step: Arc<StepRequest>,
    /// The number of the offer that handles the step.
    pub offer: usize,
    /// The time that the run may take.
    pub timeout_ms: f64,
    /// The time at which the run must end, whenever it begins.
    pub deadline_ms: f64,
    lease: Mutex<Arc<Lease>>, // that of the new owner after an adoption
    decision: AtomicU8,
    started_ms: AtomicU64,
    timeout_at_ms: AtomicU64,
    has_ended: AtomicBool,
}

impl Run {
    pub(crate) fn new(
        item: Item,
        step: Arc<StepRequest>,
        offer: usize,
        lease: Arc<Lease>,
        timeout_ms: f64,
        deadline_ms: f64,
    ) -> Self {
        Self {
            item,
            step,
            offer,
            timeout_ms,
            deadline_ms,
            lease: Mutex::new(lease),
            decision: AtomicU8::new(WAITING),
            started_ms: AtomicU64::new(0),
            timeout_at_ms: AtomicU64::new(NEVER.to_bits()),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Called by the runner when the handler has ended, before it releases the slot.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    /// True if the handler has ended. The session may not have its result yet.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Called by the runner when it has a slot: may the handler be called? Not after the end of the lease.
    pub fn begin(&self, now_ms: f64) -> bool {
        if now_ms >= self.lease.lock().expect("no code panics with this lock").until_ms() {
            return false;
        }
        self.started_ms.store(now_ms.to_bits(), Ordering::SeqCst);
        let timeout_at_ms = (now_ms + self.timeout_ms).min(self.deadline_ms);
        self.timeout_at_ms.store(timeout_at_ms.to_bits(), Ordering::SeqCst);
        self.decision.compare_exchange(WAITING, BEGUN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Called by a runner that had to wait after `begin`: the handler must not be called then.
    pub(crate) fn is_lease_over(&self, now_ms: f64) -> bool {
        now_ms >= self.lease.lock().expect("no code panics with this lock").until_ms()
    }

    /// Called by the session: true if the run has not begun, and therefore never will.
    pub(crate) fn take_back(&self) -> bool {
        let decided = self.decision.compare_exchange(WAITING, TAKEN_BACK, Ordering::SeqCst, Ordering::SeqCst);
        decided != Err(BEGUN)
    }

    /// The start of the run; None if it has not begun.
    pub fn started_ms(&self) -> Option<f64> {
        if self.decision.load(Ordering::SeqCst) == BEGUN {
            Some(f64::from_bits(self.started_ms.load(Ordering::SeqCst)))
        } else {
            None
        }
    }

    /// The earlier of timeout and deadline; never before the run has begun.
    pub fn timeout_at_ms(&self) -> f64 {
        self.started_ms().map_or(NEVER, |_| f64::from_bits(self.timeout_at_ms.load(Ordering::SeqCst)))
    }

    pub(crate) fn set_lease(&self, lease: Arc<Lease>) {
        *self.lease.lock().expect("no code panics with this lock") = lease;
    }
}

/// The importance of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For the authors of Stepwire.
    Debug,
    /// Something changed hands.
    Info,
    /// Something needs attention if it continues.
    Warning,
    /// Something has failed.
    Error,
}

/// Why a session was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DropReason {
    LeaseOver,
    DeploymentReplaced,
    Reset(ResetCode),
}

/// What happened, with its facts, for a log line.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Event {
    WorkerStarted { name: String, handlers: Vec<String>, slots: u64, pid: u64 },
    WorkerDrains { running: usize },
    WorkerEnded { unacknowledged: usize },
    WorkerFailed { why: String },
    SessionOpened { broker: String, session: String },
    SessionDropped { broker: String, session: Option<String>, why: DropReason, not_started: usize },
    DeploymentReplaced { broker: String, deployment: String, results_discarded: usize },
    StepsRefused { broker: String, batch_id: String, code: RefuseCode, steps: usize },
    MessageUnreadable { code: RefuseCode, why: String },
    MessageRefused { broker: String, refused: Option<String>, code: String, message: String },
    LinkRebuilt { link: Link, broker: Option<String> },
    LinkMoved { link: Link, broker: String },
    LinkRemoved { link: Link, broker: String },
    ServerKeyChanged { link: Link, broker: String },
    BrokerIgnored { broker: String },
    ConnectFailed { endpoint: String, error: String },
    NoBroker { endpoint: String, reason: String, seconds: u64 },
}

/// What the caller of a session has to do, in this order.
#[derive(Debug)]
pub enum Action {
    /// Send this frame: the topic, then the body.
    Send {
        /// The topic with its space.
        topic: Arc<str>,
        /// The JSON.
        body: Arc<Vec<u8>>,
    },
    /// Run this step as soon as a slot is free.
    Run(Arc<Run>),
    /// Ask a run that has begun to stop. `lease_lost` only informs the handler: the run continues.
    CancelRun {
        /// The run.
        item: Item,
        /// Why.
        reason: StopReason,
    },
    /// Connect to a broker that another broker has listed.
    Connect {
        /// Its endpoints.
        link: Link,
        /// Its public key; None: the configured one.
        server_key: Option<String>,
    },
    /// Disconnect from a broker that no broker lists any more.
    Disconnect {
        /// Its endpoints.
        link: Link,
    },
    /// Disconnect this pair of endpoints and connect it again, because the pair was silent for too long.
    Rebuild {
        /// The endpoints.
        link: Link,
    },
    /// End the worker, which has drained and holds nothing.
    Quit,
    /// Log that a run has failed, because no message can carry its output. `result` is the failure that was sent.
    ResultTooLarge {
        /// The step of the run.
        step: Arc<StepRequest>,
        /// The failure.
        result: StepResult,
    },
    /// Log this event.
    Log {
        /// Its importance.
        level: Level,
        /// What happened.
        event: Event,
    },
}
