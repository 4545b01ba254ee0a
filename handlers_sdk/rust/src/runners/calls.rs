//! One call of a handler, from the session's `Run` to the result for the broker.

use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::task::{Context as TaskContext, Poll};

use super::run_log;
use crate::actions::{Run, StopReason};
use crate::context::Context;
use crate::edge::{redact, Edge, Opened, Refusal};
use crate::handler::{not_opened, panicked, result_of, stopped, Ended, Function, Handler, HandlerFuture};
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
    pub edge: Arc<Edge>,
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

    fn needs_opening(&self) -> bool {
        Edge::is_needed(&self.run.step)
    }

    /// What follows after the step was opened: the context for its handler, or the outcome if it must not be called.
    #[allow(clippy::result_large_err)] // nearly every outcome is the large one
    fn after_opening(&self, found: Result<Opened, Refusal>, started_ms: f64) -> Result<(Opened, Context), Outcome> {
        match found {
            Ok(_) if self.is_too_late() => Err(Outcome::GiveBack),
            Ok(_) if self.context.cancel_reason().is_some() => Err(stop(self, started_ms)),
            Ok(opened) => {
                let context = self.context.with_step(opened.step.clone(), opened.is_sealed());
                Ok((opened, context))
            }
            Err(refusal) => Err(Outcome::Result(self.refused(&refusal))),
        }
    }

    /// True if the lease ended while the step was opened, also if a new session has begun since: the broker may have given
    /// the step to another worker.
    fn is_too_late(&self) -> bool {
        self.run.is_lease_over(now_ms()) || self.context.is_lease_lost()
    }

    fn refused(&self, refusal: &Refusal) -> StepResult {
        let step = self.context.step();
        let result = not_opened(step, refusal.code, &refusal.message, refusal.category);
        match &refusal.opened {
            Some(opened) => {
                run_log::sealed(step, refusal.code);
                self.edge.close(opened, result)
            }
            None => {
                result.error.iter().for_each(|error| run_log::not_reported(step, error));
                result
            }
        }
    }

    /// The outcome as it may leave the worker.
    fn closed(&self, opened: &Opened, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Result(result) => Outcome::Result(self.edge.close(opened, result)),
            Outcome::GiveBack => Outcome::GiveBack,
        }
    }
}

type Panic = Box<dyn Any + Send>;

/// Runs a blocking handler on this thread, between the opening of its step and the closing of its result.
pub(crate) fn call_blocking(call: &HandlerCall, started_ms: f64) -> Outcome {
    if !call.needs_opening() {
        return run_blocking(call, &call.context, started_ms);
    }
    match call.after_opening(call.edge.open(&call.run.step), started_ms) {
        Ok((opened, context)) => call.closed(&opened, run_blocking(call, &context, started_ms)),
        Err(outcome) => outcome,
    }
}

fn run_blocking(call: &HandlerCall, context: &Context, started_ms: f64) -> Outcome {
    let ended = match &call.handler.function {
        Function::Blocking(function) => caught(context.is_sealed(), || function(context.clone())),
        Function::Async(_) => unreachable!("async handlers run on the runtime"),
    };
    outcome(call, ended, context.is_sealed(), started_ms)
}

/// Runs an async handler in the current task, between the opening of its step and the closing of its result.
pub(crate) async fn call_async(call: &HandlerCall, started_ms: f64) -> Outcome {
    if !call.needs_opening() {
        return run_async(call, &call.context, started_ms).await;
    }
    let (edge, step) = (call.edge.clone(), call.run.step.clone());
    // Opening may wait for files, which must not stop the other handlers of the runtime.
    let found = match tokio::task::spawn_blocking(move || edge.open(&step)).await {
        Ok(found) => found,
        Err(_) => return Outcome::GiveBack, // the runtime shuts down
    };
    match call.after_opening(found, started_ms) {
        Ok((opened, context)) => {
            let outcome = run_async(call, &context, started_ms).await;
            call.closed(&opened, outcome)
        }
        Err(outcome) => outcome,
    }
}

/// Runs an async handler in the current task. Its future is dropped when the run should stop, unless the handler is
/// cooperative.
async fn run_async(call: &HandlerCall, context: &Context, started_ms: f64) -> Outcome {
    let made = match &call.handler.function {
        Function::Async(function) => caught(context.is_sealed(), || function(context.clone())),
        Function::Blocking(_) => unreachable!("blocking handlers run on threads"),
    };
    let mut running = match made {
        Ok(future) => Running { future, is_sealed: context.is_sealed() },
        Err(panic) => return outcome(call, Err(panic), context.is_sealed(), started_ms),
    };
    if call.handler.is_cooperative {
        return outcome(call, running.await, context.is_sealed(), started_ms);
    }
    let cancelled = call.context.cancelled();
    tokio::pin!(cancelled);
    let first = FirstOf { running: &mut running, cancelled };
    match first.await {
        Some(ended) => outcome(call, ended, context.is_sealed(), started_ms),
        None => {
            let dropped = caught(context.is_sealed(), || drop(running)); // a destructor may panic
            if let Err(panic) = dropped {
                return outcome(call, Err(panic), context.is_sealed(), started_ms);
            }
            stop(call, started_ms)
        }
    }
}

/// The handler's future, whose panics are values.
struct Running {
    future: HandlerFuture,
    is_sealed: bool,
}

impl Future for Running {
    type Output = Result<Ended, Panic>;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        match caught(self.is_sealed, || self.future.as_mut().poll(task)) {
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

fn outcome(call: &HandlerCall, ended: Result<Ended, Panic>, is_sealed: bool, started_ms: f64) -> Outcome {
    let (step, took_ms) = (call.context.step(), now_ms() - started_ms);
    let reason = call.context.cancel_reason();
    let result = match ended {
        Ok(Ended::Failed(error)) if error.kind() == crate::StepErrorKind::Stopped && reason.is_some() => {
            return stop(call, started_ms);
        }
        Ok(ended) => {
            run_log::ended(step, &ended, reason, is_sealed);
            result_of(&call.handler, step, ended, reason, took_ms)
        }
        Err(panic) => {
            let text = text_of(&panic);
            let at = PLACE.with(|place| place.borrow_mut().take());
            match is_sealed {
                true => run_log::sealed(step, "panic"),
                false => run_log::panicked(step, &text, at.as_deref(), reason),
            }
            panicked(&call.handler, step, &text, at, reason, took_ms)
        }
    };
    if let (Some(error), crate::protocol::messages::Status::Error) = (&result.error, result.status) {
        match is_sealed {
            true => run_log::sealed(step, error.code.as_deref().unwrap_or("error")),
            false => run_log::not_reported(step, error),
        }
    }
    Outcome::Result(result)
}

// -- panics -----------------------------------------------------------------------------------------------------------

thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
    static IS_SEALED: Cell<bool> = const { Cell::new(false) }; // while a handler of a sealed step runs on this thread
}

/// Runs a part of a handler, and catches its panics.
fn caught<T>(is_sealed: bool, part: impl FnOnce() -> T) -> Result<T, Panic> {
    IS_SEALED.with(|sealed| sealed.set(is_sealed));
    let returned = catch_unwind(AssertUnwindSafe(part));
    IS_SEALED.with(|sealed| sealed.set(false));
    returned
}

/// Notes the place of each panic for the result of its run. The program's own hook is called as before, unless it would
/// write what must not be logged: the text of a sealed step, or the value of a secret. The log of the run has the rest.
pub(crate) fn keep_places_of_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PLACE.with(|place| *place.borrow_mut() = info.location().map(ToString::to_string));
            let is_secret = || {
                let text = text_in(info.payload());
                matches!(redact(&text), Cow::Owned(_))
            };
            if !IS_SEALED.with(Cell::get) && !is_secret() {
                before(info);
            }
        }));
    });
}

fn text_of(panic: &Panic) -> String {
    text_in(&**panic)
}

fn text_in(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a value that is no text".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::Value;

    use super::*;
    use crate::actions::{Lease, NEVER};
    use crate::edge::tests::step;
    use crate::protocol::messages::StepRequest;
    use crate::StepError;

    /// A call whose lease ends and begins again, in a new session, while its secret is read.
    fn call_that_loses_its_lease(handler: Handler) -> HandlerCall {
        let step = Arc::new(StepRequest { may_need_opening: true, ..step(r#"{"card": {"$secret": "card"}}"#) });
        let lease = Arc::new(Lease::default());
        lease.set(NEVER);
        let run = Arc::new(Run::new(step.item(), step.clone(), 0, lease.clone(), NEVER, NEVER));
        let context = Context::new(step, Arc::new(|_, _, _, _| ()));
        let of_the_session = context.clone();
        let resolver = move |_: &str| {
            lease.set(0.0);
            of_the_session.stop(StopReason::LeaseLost);
            lease.set(NEVER);
            Ok(Some("4929-late".to_owned()))
        };
        let edge = Arc::new(Edge::new(None, Some(Box::new(resolver)), None).unwrap());
        let call = HandlerCall { run, handler: Arc::new(handler), context, edge };
        assert!(call.begin(now_ms()));
        call
    }

    #[test]
    fn a_lease_that_ends_while_a_secret_is_read_gives_the_step_back_although_a_new_session_has_begun() {
        static CALLED: AtomicUsize = AtomicUsize::new(0);
        let blocking = Handler::blocking("pay", |_: Context, _: Value| {
            CALLED.fetch_add(1, Ordering::SeqCst);
            Ok::<_, StepError>(())
        });
        let outcome = call_blocking(&call_that_loses_its_lease(blocking), now_ms());
        assert!(matches!(outcome, Outcome::GiveBack), "{outcome:?}");
        let waiting = Handler::new("pay", |_: Context, _: Value| async {
            CALLED.fetch_add(1, Ordering::SeqCst);
            Ok::<_, StepError>(())
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let outcome = runtime.block_on(call_async(&call_that_loses_its_lease(waiting), now_ms()));
        assert!(matches!(outcome, Outcome::GiveBack), "{outcome:?}");
        assert_eq!(CALLED.load(Ordering::SeqCst), 0);
    }
}
