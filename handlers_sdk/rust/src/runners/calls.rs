//! One call of a handler, from the session's `Run` to the result for the broker.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::task::{Context as TaskContext, Poll};

use super::run_log;
use crate::actions::{Run, StopReason};
use crate::context::Context;
use crate::handler::{panicked, result_of, stopped, Ended, Function, Handler, HandlerFuture};
use crate::identity::now_ms;
use crate::protocol::messages::{DeliveryMode, StepResult};

/// How a call ended.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // nearly every outcome is the large one
pub(crate) enum Outcome {
    /// The step was not started, or had no effect.
    GiveBack,
    /// The result for the broker.
    Result(StepResult),
}

/// One run, with its handler and context.
pub(crate) struct HandlerCall {
    pub run: Arc<Run>,
    pub handler: Arc<Handler>,
    pub context: Context,
}

impl HandlerCall {
    /// The last check before the handler is called: may it be called? If not, the step is given back.
    pub fn begin(&self, at_ms: f64) -> bool {
        if !self.run.begin(at_ms) {
            return false;
        }
        self.context.begin(at_ms, self.run.timeout_at_ms());
        self.context.cancel_reason().is_none()
    }
}

type Panic = Box<dyn Any + Send>;

/// Runs a blocking handler on this thread.
pub(crate) fn call_blocking(call: &HandlerCall, started_ms: f64) -> Outcome {
    let ended = match &call.handler.function {
        Function::Blocking(function) => catch_unwind(AssertUnwindSafe(|| function(call.context.clone()))),
        Function::Async(_) => unreachable!("async handlers run on the runtime"),
    };
    outcome(call, ended, started_ms)
}

/// Runs an async handler in the current task. Its future is dropped when the run should stop, unless the handler is
/// cooperative.
pub(crate) async fn call_async(call: &HandlerCall, started_ms: f64) -> Outcome {
    let made = match &call.handler.function {
        Function::Async(function) => catch_unwind(AssertUnwindSafe(|| function(call.context.clone()))),
        Function::Blocking(_) => unreachable!("blocking handlers run on threads"),
    };
    let mut running = match made {
        Ok(future) => Running { future },
        Err(panic) => return outcome(call, Err(panic), started_ms),
    };
    if call.handler.is_cooperative {
        return outcome(call, running.await, started_ms);
    }
    let cancelled = call.context.cancelled();
    tokio::pin!(cancelled);
    let first = FirstOf { running: &mut running, cancelled };
    match first.await {
        Some(ended) => outcome(call, ended, started_ms),
        None => {
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(running))); // a destructor may panic
            if let Err(panic) = dropped {
                return outcome(call, Err(panic), started_ms);
            }
            stop(call, started_ms)
        }
    }
}

/// The handler's future, whose panics are values.
struct Running {
    future: HandlerFuture,
}

impl Future for Running {
    type Output = Result<Ended, Panic>;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        match catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(task))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(ended)) => Poll::Ready(Ok(ended)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

/// Ends with the handler, or with None when the run should stop first.
struct FirstOf<'a, C> {
    running: &'a mut Running,
    cancelled: Pin<&'a mut C>,
}

impl<C: Future<Output = ()>> Future for FirstOf<'_, C> {
    type Output = Option<Result<Ended, Panic>>;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(ended) = Pin::new(&mut *self.running).poll(task) {
            return Poll::Ready(Some(ended));
        }
        self.cancelled.as_mut().poll(task).map(|()| None)
    }
}

/// The outcome of a run whose future was dropped.
fn stop(call: &HandlerCall, started_ms: f64) -> Outcome {
    let step = call.context.step();
    let reason = call.context.cancel_reason().unwrap_or(StopReason::Shutdown);
    if reason == StopReason::Shutdown && step.delivery_mode == DeliveryMode::AtLeastOnce {
        return Outcome::GiveBack;
    }
    Outcome::Result(stopped(step, reason, now_ms() - started_ms, call.handler.version.as_deref()))
}

fn outcome(call: &HandlerCall, ended: Result<Ended, Panic>, started_ms: f64) -> Outcome {
    let (step, took_ms) = (call.context.step(), now_ms() - started_ms);
    let reason = call.context.cancel_reason();
    let result = match ended {
        Ok(Ended::Failed(error)) if error.kind() == crate::StepErrorKind::Stopped && reason.is_some() => {
            return stop(call, started_ms);
        }
        Ok(ended) => {
            run_log::ended(step, &ended, reason);
            result_of(&call.handler, step, ended, reason, took_ms)
        }
        Err(panic) => {
            let text = text_of(&panic);
            let at = PLACE.with(|place| place.borrow_mut().take());
            run_log::panicked(step, &text, at.as_deref(), reason);
            panicked(&call.handler, step, &text, at, reason, took_ms)
        }
    };
    if let (Some(error), crate::protocol::messages::Status::Error) = (&result.error, result.status) {
        run_log::not_reported(step, error);
    }
    Outcome::Result(result)
}

// -- panics -----------------------------------------------------------------------------------------------------------

thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes the place of each panic for the result of its run. The program's own hook is called as before.
pub(crate) fn keep_places_of_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PLACE.with(|place| *place.borrow_mut() = info.location().map(ToString::to_string));
            before(info);
        }));
    });
}

fn text_of(panic: &Panic) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a value that is no text".to_owned())
}
