//! What a handler receives, and what a worker reports for it. No broker is needed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use stepwire::testing::{Status, Step};
use stepwire::{Context, Environment, Handler, StepError, Worker};

#[derive(Deserialize)]
struct Order {
    order_id: u64,
}

#[derive(Serialize)]
struct Shipped {
    tracking: String,
}

async fn ship(_ctx: Context, order: Order) -> Result<Shipped, StepError> {
    Ok(Shipped { tracking: format!("T{}", order.order_id) })
}

fn failing(error: fn() -> StepError) -> Handler {
    Handler::new("h", move |_ctx: Context, _input: Value| async move { Err::<Value, StepError>(error()) })
}

fn returning<T: Serialize + Send + 'static>(output: fn() -> T) -> Handler {
    Handler::new("h", move |_ctx: Context, _input: Value| async move { Ok::<T, StepError>(output()) })
}

#[test]
fn an_async_handler_receives_its_input_and_returns_its_output() {
    let outcome = Step::with_input(json!({"order_id": 7, "other": true})).run(Handler::new("ship_order", ship));
    assert!(outcome.is_completed());
    assert_eq!(outcome.output::<Value>(), json!({"tracking": "T7"}));
}

#[test]
fn a_blocking_handler_does_the_same() {
    let handler = Handler::blocking("h", |_ctx: Context, order: Order| Ok::<_, StepError>(order.order_id + 1));
    assert_eq!(Step::with_input(json!({"order_id": 7})).run(handler).output::<u64>(), 8);
}

#[test]
fn an_input_of_another_form_is_an_error_without_retry() {
    for input in [json!({"order_id": "7"}), json!({"order_id": 7.0}), json!({}), json!(7)] {
        let outcome = Step::with_input(input).run(Handler::new("ship_order", ship));
        assert_eq!((outcome.status, outcome.code()), (Status::Error, "bad_input"));
        assert_eq!(outcome.error.unwrap().retryable, Some(false));
    }
}

#[test]
fn any_error_of_rust_is_an_ordinary_failure_named_by_its_type() {
    async fn parse(_ctx: Context, text: String) -> Result<u64, StepError> {
        Ok(text.parse()?)
    }
    let outcome = Step::with_input("x").run(Handler::new("parse", parse));
    let error = outcome.error.clone().unwrap();
    assert_eq!((outcome.status, outcome.code()), (Status::Failed, "ParseIntError"));
    assert_eq!(error.message, "ParseIntError: invalid digit found in string");
    assert_eq!(error.retryable, None);
}

#[test]
fn a_function_may_return_another_error_type() {
    let handler = Handler::blocking("h", |_ctx: Context, text: String| text.parse::<u64>());
    assert_eq!(Step::with_input("x").run(handler).code(), "ParseIntError");
}

#[test]
fn a_panic_is_an_ordinary_failure_with_its_place() {
    let handler = Handler::new("h", |_ctx: Context, input: Value| async move {
        assert!(input.is_object(), "no object");
        Ok::<_, StepError>(())
    });
    let outcome = Step::with_input(json!(1)).run(handler);
    let error = outcome.error.clone().unwrap();
    assert_eq!((outcome.status, outcome.code(), &*error.message), (Status::Failed, "panic", "panic: no object"));
    assert!(error.backtrace.unwrap()[0].contains("handlers.rs:"));
    assert_eq!(error.retryable, None);
}

#[test]
fn a_panic_of_a_blocking_handler_is_the_same() {
    let handler = Handler::blocking("h", |_ctx: Context, _input: Value| -> Result<(), StepError> { panic!("oh") });
    assert_eq!(Step::with_input(json!(1)).run(handler).code(), "panic");
}

#[test]
fn the_kinds_of_step_errors_decide_about_retries() {
    let permanent = Step::with_input(1).run(failing(|| StepError::permanent("declined").code("card_declined")));
    assert_eq!(permanent.error.as_ref().unwrap().retryable, Some(false));
    assert_eq!(permanent.code(), "card_declined");
    let retry = Step::with_input(1).run(failing(|| StepError::retry_after(Duration::from_millis(1_500), "later")));
    assert_eq!(retry.error.unwrap().retry_after_ms, Some(1_500));
    let unknown = Step::with_input(1).run(failing(|| StepError::outcome_unknown("who knows")));
    assert_eq!(unknown.code(), "outcome_unknown");
    assert_eq!(unknown.error.unwrap().retryable, None);
    let unavailable = Step::with_input(1).run(failing(|| StepError::new("no gateway").category("unavailable")));
    assert_eq!(unavailable.error.unwrap().category.as_deref(), Some("unavailable"));
}

#[test]
fn an_output_that_is_no_json_for_every_language_is_an_error() {
    let outputs: [Handler; 3] =
        [returning(|| (1_u64 << 53) + 1), returning(|| "a\0b"), returning(|| BTreeMap::from([((1, 2), 3)]))];
    for handler in outputs {
        let outcome = Step::with_input(1).run(handler);
        assert_eq!((outcome.status, outcome.code()), (Status::Error, "bad_output"));
    }
    let deep = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
    let handler = |depth: usize| Handler::blocking("h", move |_: Context, _: Value| Ok::<_, StepError>(deep(depth)));
    assert!(Step::with_input(1).run(handler(29)).is_completed());
    assert_eq!(Step::with_input(1).run(handler(30)).code(), "bad_output");
}

#[test]
fn an_output_of_nan_is_an_error_and_not_a_silent_null() {
    let outputs: [Handler; 4] = [
        returning(|| vec![Some(0.5), None, Some(f64::INFINITY)]),
        returning(|| f32::NAN),
        returning(|| BTreeMap::from([("a", (1, Some(f64::NAN)))])),
        returning(|| Priced { price: Price::Euro { amount: f64::NEG_INFINITY } }),
    ];
    for handler in outputs {
        let outcome = Step::with_input(1).run(handler);
        assert_eq!(outcome.code(), "bad_output");
        assert!(outcome.error.unwrap().message.contains("NaN or Infinity"));
    }
    let priced = || Priced { price: Price::Unknown(None) };
    assert!(Step::with_input(1).run(returning(priced)).is_completed());
}

#[derive(serde::Serialize)]
struct Priced {
    price: Price,
}

#[derive(serde::Serialize)]
enum Price {
    Euro { amount: f64 },
    Unknown(Option<f64>),
}

#[test]
fn a_failure_of_the_sdk_is_no_verdict_on_an_at_most_once_step() {
    let outcome = Step::with_input(1).at_most_once().run(returning(|| "a\0b"));
    assert_eq!(outcome.code(), "outcome_unknown");
    assert!(outcome.error.unwrap().message.starts_with("bad_output: "));
}

#[test]
fn a_run_that_exceeds_its_timeout_is_dropped_at_its_next_await() {
    let handler = || {
        Handler::new("h", |_ctx: Context, _input: Value| async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok::<_, StepError>(())
        })
    };
    let started = Instant::now();
    assert_eq!(Step::with_input(1).timeout_ms(50).run(handler()).code(), "timeout");
    assert_eq!(Step::with_input(1).run(handler().timeout_ms(50)).code(), "timeout");
    assert_eq!(Step::with_input(1).timeout_ms(50).at_most_once().run(handler()).code(), "outcome_unknown");
    let cancelled = Step::with_input(1).cancel_after(Duration::from_millis(50)).run(handler());
    assert_eq!((cancelled.status, cancelled.code()), (Status::Failed, "cancelled"));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_cooperative_handler_ends_by_itself() {
    let handler = Handler::new("h", |ctx: Context, _input: Value| async move {
        ctx.cancelled().await;
        Ok::<_, StepError>(ctx.cancel_reason().map(|reason| reason.as_str()))
    });
    let outcome = Step::with_input(1).cancel_after(Duration::from_millis(20)).run(handler.cooperative());
    assert_eq!(outcome.output::<String>(), "task_cancelled");
}

#[test]
fn a_blocking_handler_sees_that_it_should_stop() {
    let handler = Handler::blocking("h", |ctx: Context, _input: Value| {
        while !ctx.wait_cancelled(Duration::from_millis(5)) {}
        ctx.check()
    });
    assert_eq!(Step::with_input(1).cancel_after(Duration::from_millis(20)).run(handler).code(), "cancelled");
}

#[test]
fn the_context_has_everything_of_the_step() {
    async fn all(ctx: Context, _input: Value) -> Result<Value, StepError> {
        ctx.progress(1.0, Some(2.0), Some("half"))?;
        assert!(ctx.progress(f64::NAN, None, None).is_err());
        ctx.log().info("all is well");
        let paid: Value = ctx.result("pay")?;
        let missing = ctx.result::<Value>("other").unwrap_err().to_string();
        Ok(json!({
            "attempt": ctx.attempt(), "key": ctx.idempotency_key(), "trace": ctx.traceparent(), "paid": paid,
            "config": ctx.config::<Value>()?, "missing": missing, "left": ctx.remaining().is_some(),
        }))
    }
    let outcome = Step::with_input(json!({}))
        .attempt(2)
        .idempotency_key("k")
        .traceparent("00-1-2-01")
        .config(json!({"a": 1}))
        .result("pay", json!({"id": "t"}))
        .run(Handler::new("all", all));
    assert_eq!(
        outcome.output::<Value>(),
        json!({
            "attempt": 2, "key": "k", "trace": "00-1-2-01", "paid": {"id": "t"}, "config": {"a": 1}, "left": true,
            "missing": "there is no result of \"other\": this step does not depend on it",
        })
    );
    assert_eq!(outcome.progress.len(), 1);
    assert_eq!(outcome.progress[0].note.as_deref(), Some("half"));
}

#[test]
fn lines_of_a_handler_have_the_ids_of_the_step() {
    async fn charge(ctx: Context, _input: Value) -> Result<Value, StepError> {
        ctx.log().info("charging order 7");
        Ok(json!({"task": ctx.task_id(), "step": ctx.step_id(), "name": ctx.step_name()}))
    }
    let (lines, received) = std::sync::mpsc::channel();
    let lines = std::sync::Mutex::new(lines);
    // The tests of this file run at the same time, and share the sink.
    stepwire::logs::set_sink(move |record| {
        if record.text == "charging order 7" {
            lines.lock().unwrap().send(record.clone()).unwrap();
        }
    });
    let outcome = Step::with_input(json!({})).attempt(2).run(Handler::new("charge", charge));
    let record = received.try_recv().expect("a record of the handler");
    let step = record.step.expect("the ids of the step");
    assert_eq!(record.logger, "stepwire.handler");
    assert_eq!(outcome.output::<Value>(), json!({"task": step.task_id, "step": step.step_id, "name": step.step_name}));
    assert_eq!(step.attempt, 2);
}

#[tokio::test]
async fn a_test_may_be_async_itself() {
    let outcome = Step::with_input(json!({"order_id": 7})).run(Handler::new("ship_order", ship));
    assert!(outcome.is_completed());
}

#[test]
fn a_worker_chooses_the_exact_name_before_patterns() {
    let mut worker = Worker::new(Environment::default()).unwrap();
    worker.handle("Billing::**", |_: Context, _: Value| async { Ok::<_, StepError>("pattern") }).unwrap();
    worker.handle("Billing::charge", |_: Context, _: Value| async { Ok::<_, StepError>("name") }).unwrap();
    assert_eq!(Step::with_input(1).run_in(&worker, "Billing::charge").output::<String>(), "name");
    assert_eq!(Step::with_input(1).run_in(&worker, "Billing::a::b").output::<String>(), "pattern");
}

#[test]
fn a_handler_that_cannot_work_is_refused_with_a_sentence() {
    let mut worker = Worker::new(Environment::default()).unwrap();
    let fault = |added: Result<(), stepwire::ConfigurationError>| added.unwrap_err().to_string();
    assert_eq!(worker.handle("ship_order", ship), Ok(()));
    assert_eq!(fault(worker.handle("ship_order", ship)), "handler 'ship_order' is registered twice in this worker");
    assert_eq!(
        fault(worker.handle("ship order", ship)),
        "handler name 'ship order': it needs 1 to 128 letters, digits, _ . : - and, for patterns, *"
    );
    assert_eq!(
        fault(worker.add(Handler::new("h", ship).concurrency(0))),
        "handler 'h': concurrency is 0: it needs to be at least 1"
    );
    let mut empty = Worker::new(Environment::default()).unwrap();
    assert_eq!(fault(empty.start()), "the worker has no handlers: register some with worker.handle(...)");
}

// -- secrets ----------------------------------------------------------------------------------------------------------

const KEY: &str = "sk_live_5eb63bbbe01eeed0";

fn with_secret(input: Value) -> Step {
    Step::with_input(input).config(json!({"key": {"$secret": "stripe/live"}})).secret("stripe/live", KEY)
}

#[test]
fn a_reference_to_a_secret_is_replaced_and_its_value_leaves_the_run_nowhere() {
    async fn pay(ctx: Context, input: Value) -> Result<Value, StepError> {
        let config: Value = ctx.config()?;
        let key = config["key"].as_str().unwrap_or_default();
        assert_eq!(key, KEY);
        ctx.progress(1.0, None, Some(&format!("using {key}")))?;
        match input["kind"].as_str() {
            Some("panic") => panic!("refused {key}"),
            Some("permanent") => Err(StepError::permanent(format!("refused {key}"))),
            Some("error") => Err(std::io::Error::new(std::io::ErrorKind::Other, format!("refused {key}")).into()),
            _ => Ok(json!({"authorization": format!("Bearer {key}"), key: 1})),
        }
    }
    let outcome = with_secret(json!({})).run(Handler::new("pay", pay));
    let expected = json!({"authorization": "Bearer [secret stripe/live]", "[secret stripe/live]": 1});
    assert_eq!(outcome.output::<Value>(), expected);
    assert_eq!(outcome.progress[0].note.as_deref(), Some("using [secret stripe/live]"));
    for kind in ["panic", "permanent", "error"] {
        let outcome = with_secret(json!({ "kind": kind })).run(Handler::new("pay", pay));
        let text = format!("{outcome:?}");
        assert!(text.contains("refused [secret stripe/live]") && !text.contains(KEY), "{text}");
    }
}

#[test]
fn a_blocking_handler_receives_the_values_of_secrets() {
    let handler = Handler::blocking("pay", |_ctx: Context, input: Value| -> Result<usize, StepError> {
        Ok(input["card"].as_str().map_or(0, str::len))
    });
    let outcome = Step::with_input(json!({"card": {"$secret": "card"}})).secret("card", "4929-7654").run(handler);
    assert_eq!(outcome.output::<usize>(), 9);
}

#[test]
fn a_step_whose_secret_is_missing_is_not_run() {
    async fn pay(_ctx: Context, _input: Value) -> Result<Value, StepError> {
        panic!("the handler was called")
    }
    let outcome = Step::with_input(json!({"card": {"$secret": "card"}})).secret("x", "y").run(Handler::new("pay", pay));
    assert_eq!((outcome.status, outcome.code()), (Status::Error, "secret_unavailable"));
    let error = outcome.error.unwrap();
    assert_eq!((error.retryable, error.category), (Some(true), None));
    assert_eq!(error.message, "secret 'card': the resolver of this worker does not know it");
}

#[test]
fn an_input_that_does_not_fit_is_refused_without_the_value_of_a_secret() {
    let handler = Handler::new("pay", |_ctx: Context, input: u64| async move { Ok::<_, StepError>(input) });
    let outcome = Step::with_input(json!({"$secret": "card"})).secret("card", "4929-7654-0001").run(handler);
    assert_eq!(outcome.code(), "bad_input");
    assert!(!outcome.error.unwrap().message.contains("4929"));
}
