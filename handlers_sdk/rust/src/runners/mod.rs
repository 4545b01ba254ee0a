//! Where handlers run: never on the thread of the sockets. Async handlers share a tokio runtime, plain functions run on
//! its blocking threads. When a call ends, its runner starts the next one, without the socket thread.

mod calls;
pub(crate) mod run_log;
pub mod run_slots;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

pub(crate) use calls::{call_async, call_blocking, keep_places_of_panics, HandlerCall, Outcome};

use crate::handler::{Function, Handler};
use crate::identity::now_ms;
use crate::protocol::messages::Item;
use run_slots::{Call, RunSlots};

const STOP: Duration = Duration::from_millis(500); // a run that does not stop in this time is abandoned
const SERVE_MAX_MS: f64 = 5.0; // a task that only runs short calls returns to the runtime after this time

/// Accepts the outcome of a call. Any thread may call it.
pub(crate) type Report = Box<dyn Fn(Item, Outcome) + Send + Sync>;

/// The runtime of all handlers, and the slots that they share.
pub(crate) struct Runners {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    submitted: Vec<Arc<HandlerCall>>,
}

struct Shared {
    slots: RunSlots<Arc<HandlerCall>>,
    report: Report,
}

impl Call for Arc<HandlerCall> {
    fn offer(&self) -> usize {
        self.run.offer
    }
}

impl Runners {
    pub fn new(handlers: &[Arc<Handler>], slots: u64, report: Report) -> std::io::Result<Self> {
        let offers: Vec<_> = handlers.iter().map(|handler| handler.offer.clone()).collect();
        keep_places_of_panics();
        let runtime = Builder::new_multi_thread()
            .thread_name("stepwire-handler")
            .max_blocking_threads(slots as usize + 4)
            .enable_all()
            .build()?;
        let shared = Arc::new(Shared { slots: RunSlots::new(slots, &offers), report });
        Ok(Self { shared, runtime: Some(runtime), submitted: Vec::new() })
    }

    pub fn submit(&mut self, call: Arc<HandlerCall>) {
        self.submitted.push(call);
    }

    /// Starts the calls that were submitted since the last flush, as far as slots are free.
    pub fn flush(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        if let Some(runtime) = &self.runtime {
            for call in self.shared.slots.add(self.submitted.drain(..)) {
                start(runtime.handle(), self.shared.clone(), call);
            }
        }
    }

    /// Drops the futures of async handlers, and waits a moment for threads that are in a handler.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP);
        }
    }
}

fn start(runtime: &Handle, shared: Arc<Shared>, call: Arc<HandlerCall>) {
    match call.handler.function {
        Function::Async(_) => {
            runtime.spawn(serve_async(shared, call));
        }
        Function::Blocking(_) => {
            runtime.spawn_blocking(move || serve_blocking(&shared, call));
        }
    }
}

/// Runs the call, and then those that get its slot.
async fn serve_async(shared: Arc<Shared>, first: Arc<HandlerCall>) {
    let mut next = Some(first);
    let mut since_ms = now_ms();
    while let Some(call) = next {
        let mut at_ms = now_ms();
        if at_ms - since_ms > SERVE_MAX_MS {
            tokio::task::yield_now().await;
            at_ms = now_ms();
            since_ms = at_ms;
        }
        let outcome = if call.begin(at_ms) { call_async(&call, at_ms).await } else { Outcome::GiveBack };
        next = shared.end(&call, outcome, true);
    }
}

fn serve_blocking(shared: &Arc<Shared>, first: Arc<HandlerCall>) {
    let mut next = Some(first);
    while let Some(call) = next {
        let at_ms = now_ms();
        let outcome = if call.begin(at_ms) { call_blocking(&call, at_ms) } else { Outcome::GiveBack };
        next = shared.end(&call, outcome, false);
    }
}

impl Shared {
    /// Releases the slot of a call that has ended. Returns the call that has the slot now, if it is of this kind; a call
    /// of the other kind is started elsewhere.
    fn end(self: &Arc<Self>, call: &HandlerCall, outcome: Outcome, is_async: bool) -> Option<Arc<HandlerCall>> {
        call.run.end();
        let following = self.slots.release(call.run.offer);
        (self.report)(call.run.item, outcome);
        let following = following?;
        if matches!(following.handler.function, Function::Async(_)) == is_async {
            return Some(following);
        }
        start(&Handle::current(), self.clone(), following);
        None
    }
}
