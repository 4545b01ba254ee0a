//! Run a handler without a broker, in a unit test.
//!
//! ```
//! use serde_json::{json, Value};
//! use stepwire::{testing::Step, Context, Handler, StepError};
//!
//! async fn ship(ctx: Context, order: Value) -> Result<Value, StepError> {
//!     let paid: Value = ctx.result("process_payment")?;
//!     Ok(json!({"tracking": format!("T{}", order["order_id"]), "transaction": paid["transaction_id"]}))
//! }
//!
//! let outcome = Step::with_input(json!({"order_id": 7}))
//!     .result("process_payment", json!({"transaction_id": "t1"}))
//!     .run(Handler::new("ship_order", ship));
//! assert!(outcome.is_completed());
//! assert_eq!(outcome.output::<Value>()["tracking"], "T7");
//! ```

use std::collections::BTreeMap;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::value::{to_raw_value, RawValue};
use serde_json::Value;

use crate::actions::{Lease, Run, StopReason, NEVER};
use crate::context::Context;
use crate::edge::{Edge, Resolver};
use crate::handler::{Function, Handler};
use crate::identity::now_ms;
use crate::protocol::limits::TIMEOUT_DEFAULT_MS;
use crate::protocol::messages::{DeliveryMode, StepMetadata, StepRequest};
pub use crate::protocol::messages::{ErrorDetail, Status};
use crate::runners::{call_async, call_blocking, keep_places_of_panics, HandlerCall, Outcome as Ended};
use crate::session::find_offer;
use crate::worker::Worker;

/// One call of `ctx.progress`.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct RecordedProgress {
    pub done: f64,
    pub total: Option<f64>,
    pub note: Option<String>,
}

/// The result that a worker would have reported.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How the step ended.
    pub status: Status,
    /// Why it failed.
    pub error: Option<ErrorDetail>,
    /// The reports of the handler.
    pub progress: Vec<RecordedProgress>,
    output: String,
}

impl Outcome {
    /// True if the handler returned an output.
    pub fn is_completed(&self) -> bool {
        self.status == Status::Completed
    }

    /// The output, read from its JSON as a dependent step would read it.
    ///
    /// # Panics
    /// If the output has another form, or there is none.
    pub fn output<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.output)
            .unwrap_or_else(|error| panic!("the output {} has another form: {error} ({:?})", self.output, self.error))
    }

    /// The code of the failure; empty without one.
    pub fn code(&self) -> &str {
        self.error.as_ref().and_then(|error| error.code.as_deref()).unwrap_or_default()
    }
}

/// A step for a handler under test.
#[derive(Debug, Clone)]
pub struct Step {
    input: Box<RawValue>,
    results: BTreeMap<String, Value>,
    config: Box<RawValue>,
    metadata: StepMetadata,
    mode: DeliveryMode,
    cancel_after: Option<Duration>,
    secrets: Option<BTreeMap<String, String>>,
}

fn raw<T: Serialize>(value: T) -> Box<RawValue> {
    to_raw_value(&value).expect("the test passes a value that is no JSON")
}

impl Step {
    /// A step with this task context.
    pub fn with_input<T: Serialize>(input: T) -> Self {
        Self {
            input: raw(input),
            results: BTreeMap::new(),
            config: raw(BTreeMap::<String, Value>::new()),
            metadata: StepMetadata {
                attempt: 0,
                retry_limit: 3,
                timeout_ms: TIMEOUT_DEFAULT_MS,
                idempotency_key: "test/step".to_owned(),
                traceparent: None,
                tracestate: None,
                deadline_ms: None,
                shadow: false,
            },
            mode: DeliveryMode::AtLeastOnce,
            cancel_after: None,
            secrets: None,
        }
    }

    /// The output of a step that this one depends on.
    pub fn result<T: Serialize>(mut self, step_name: impl Into<String>, output: T) -> Self {
        let output = serde_json::to_value(output).expect("the test passes a value that is no JSON");
        self.results.insert(step_name.into(), output);
        self
    }

    /// The `handler_config` of the step.
    pub fn config<T: Serialize>(mut self, config: T) -> Self {
        self.config = raw(config);
        self
    }

    /// The value of a secret to which the input or the configuration refers.
    pub fn secret(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.secrets.get_or_insert_with(BTreeMap::new).insert(name.into(), value.into());
        self
    }

    /// The number of failed attempts before this one.
    pub fn attempt(mut self, failed: u64) -> Self {
        self.metadata.attempt = failed;
        self
    }

    /// The key for effects that must not happen twice.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.metadata.idempotency_key = key.into();
        self
    }

    /// The trace context of the step.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.metadata.traceparent = Some(traceparent.into());
        self
    }

    /// The step may run only once.
    pub fn at_most_once(mut self) -> Self {
        self.mode = DeliveryMode::AtMostOnce;
        self
    }

    /// The timeout of the run.
    pub fn timeout_ms(mut self, timeout_ms: u64) -> Self {
        self.metadata.timeout_ms = timeout_ms;
        self
    }

    /// Cancels the task this time after the start of the run.
    pub fn cancel_after(mut self, wait: Duration) -> Self {
        self.cancel_after = Some(wait);
        self
    }

    /// Runs the handler once, with the decoding, encoding and mapping of errors of a worker. May be called from plain
    /// and from async tests: the handler has a thread and a runtime of its own.
    pub fn run(self, handler: Handler) -> Outcome {
        let name = handler.name().to_owned();
        let edge = Arc::new(Edge::new(None, None, None).expect("an edge without settings"));
        self.call(Arc::new(handler), name, edge)
    }

    /// Runs the handler that this worker would choose for the handler_class.
    ///
    /// # Panics
    /// If the worker does not offer it.
    pub fn run_in(self, worker: &Worker, handler_class: &str) -> Outcome {
        let handlers = worker.handlers();
        let offers: Vec<_> = handlers.iter().map(|handler| handler.offer.clone()).collect();
        let number = find_offer(&offers, handler_class).unwrap_or_else(|| {
            let names: Vec<&str> = handlers.iter().map(|handler| handler.name()).collect();
            panic!("the worker does not offer {handler_class:?}; it offers {}", names.join(", "))
        });
        self.call(handlers[number].clone(), handler_class.to_owned(), worker.edge().clone())
    }

    fn call(mut self, handler: Arc<Handler>, handler_class: String, edge: Arc<Edge>) -> Outcome {
        let edge = match self.secrets.take() {
            None => edge,
            Some(secrets) => {
                let resolver: Resolver = Box::new(move |name| Ok(secrets.get(name).cloned()));
                Arc::new(Edge::new(None, Some(resolver), None).expect("an edge without files"))
            }
        };
        let progress = Arc::new(Mutex::new(Vec::new()));
        let recorded = progress.clone();
        let report = Arc::new(move |_, done, total, note| {
            recorded.lock().expect("no test panics with this lock").push(RecordedProgress { done, total, note });
        });
        let own_timeout_ms = handler.offer.timeout_ms.unwrap_or(u64::MAX);
        let timeout_ms = self.metadata.timeout_ms.min(own_timeout_ms);
        let cancel_after = self.cancel_after;
        let step = Arc::new(self.request(handler_class));
        let lease = Arc::new(Lease::default());
        lease.set(NEVER);
        let run = Arc::new(Run::new(step.item(), step.clone(), 0, lease, timeout_ms as f64, NEVER));
        let call = HandlerCall { run, handler, context: Context::new(step, report), edge };
        let ended = thread::scope(|scope| {
            let (has_ended, wait_for_end) = channel::<()>();
            let context = call.context.clone();
            scope.spawn(move || stop_in_time(&context, timeout_ms, cancel_after, &wait_for_end));
            let ended = scope.spawn(|| perform(&call)).join().expect("the SDK does not panic");
            drop(has_ended);
            ended
        });
        let progress = progress.lock().expect("no test panics with this lock").clone();
        match ended {
            Ended::Result(result) => Outcome {
                status: result.status,
                error: result.error,
                progress,
                output: result.output.unwrap_or_else(|| "null".to_owned()),
            },
            Ended::GiveBack => unreachable!("only a run that a shutdown stops gives its step back"),
        }
    }

    fn request(self, handler_class: String) -> StepRequest {
        StepRequest {
            step_id: 2,
            task_id: 1,
            step_name: "step".to_owned(),
            handler_class,
            handler_config: self.config,
            task_context: self.input,
            previous_results: raw(self.results),
            input: None,
            delivery: 1,
            delivery_mode: self.mode,
            metadata: self.metadata,
            may_need_opening: true,
        }
    }
}

fn perform(call: &HandlerCall) -> Ended {
    keep_places_of_panics();
    let at_ms = now_ms();
    assert!(call.begin(at_ms), "a run under test has a lease");
    match call.handler.function {
        Function::Blocking(_) => call_blocking(call, at_ms),
        Function::Async(_) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("the system has room for a runtime").block_on(call_async(call, at_ms))
        }
    }
}

/// Asks the run to stop, as a worker does: at its timeout, or when the test cancels the task.
fn stop_in_time(context: &Context, timeout_ms: u64, cancel_after: Option<Duration>, wait_for_end: &Receiver<()>) {
    let timeout = match timeout_ms {
        0 | u64::MAX => Duration::from_secs(u64::from(u32::MAX)),
        timeout_ms => Duration::from_millis(timeout_ms),
    };
    let (wait, reason) = match cancel_after {
        Some(wait) if wait < timeout => (wait, StopReason::TaskCancelled),
        _ => (timeout, StopReason::Timeout),
    };
    if wait_for_end.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        context.stop(reason);
    }
}
