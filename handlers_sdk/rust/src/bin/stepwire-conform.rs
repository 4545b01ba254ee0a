//! The conformance worker: the handlers `conform.*` of `protocol/conformance/CONTRACT.md`, on this SDK.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{json, Value};
use stepwire::identity::now_ms;
use stepwire::{Context, DeliveryMode, Handler, StepError, Worker};

type Output = Result<Value, StepError>;

fn main() -> ExitCode {
    let ended = worker().and_then(|mut worker| worker.run());
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stepwire: {error}");
            ExitCode::from(2)
        }
    }
}

fn worker() -> Result<Worker, stepwire::ConfigurationError> {
    let mut worker = Worker::from_env()?;
    worker.handle("conform.echo", echo)?;
    worker.handle("conform.fail", fail)?;
    worker.handle("conform.crash", crash)?;
    worker.add(Handler::new("conform.wait", wait).cooperative())?;
    worker.handle_blocking("conform.compute", compute)?;
    worker.handle("conform.big", big)?;
    worker.handle("conform.bad_output", bad_output)?;
    worker.handle("conform.context", context)?;
    worker.handle("conform.trace", trace)?;
    worker.handle("conform.progress", progress)?;
    worker.handle("conform.typed", typed)?;
    worker.add(Handler::new("conform.limited", wait).cooperative().concurrency(2))?;
    worker.add(Handler::new("conform.short", wait).cooperative().timeout_ms(300))?;
    worker.add(Handler::new("conform.book", book).cooperative())?;
    Ok(worker)
}

async fn echo(_ctx: Context, input: Value) -> Output {
    Ok(input)
}

async fn fail(ctx: Context, input: Value) -> Output {
    if let Some(line) = input["log"].as_str() {
        ctx.log().info(line);
    }
    let text = input["text"].as_str().unwrap_or("configured to fail");
    Err(match input["kind"].as_str() {
        Some("permanent") => StepError::permanent(text).code("conform"),
        Some("retry") => StepError::retry_after(Duration::from_millis(1_500), text),
        Some("unknown") => StepError::outcome_unknown(text),
        Some("unavailable") => StepError::new(text).category("unavailable"),
        _ => std::io::Error::new(std::io::ErrorKind::Other, text).into(),
    })
}

async fn crash(_ctx: Context, _input: Value) -> Output {
    std::process::exit(70)
}

async fn wait(ctx: Context, input: Value) -> Output {
    let started = Instant::now();
    let limit = Duration::from_millis(input["ms"].as_u64().unwrap_or(60_000));
    if input["ignore"].as_bool().unwrap_or(false) {
        tokio::time::sleep(limit).await;
    } else {
        let _ = tokio::time::timeout(limit, ctx.cancelled()).await;
    }
    let reason = ctx.cancel_reason().map(|reason| reason.as_str());
    Ok(json!({"stopped": reason, "ms": started.elapsed().as_millis() as u64}))
}

fn compute(_ctx: Context, input: Value) -> Output {
    let (started, limit) = (Instant::now(), Duration::from_millis(input["ms"].as_u64().unwrap_or(0)));
    while started.elapsed() < limit {
        std::hint::spin_loop();
    }
    Ok(json!({"ms": started.elapsed().as_millis() as u64}))
}

async fn big(_ctx: Context, input: Value) -> Output {
    Ok(json!({"text": "x".repeat(input["bytes"].as_u64().unwrap_or(0) as usize)}))
}

/// Values of Rust that are no JSON for every language.
#[derive(Serialize)]
#[serde(untagged)]
enum BadOutput {
    Number { value: f64 },
    Integer { value: u64 },
    Text { value: String },
    Object { value: BTreeMap<(u8, u8), u8> },
    Raw { value: Box<RawValue> },
}

async fn bad_output(_ctx: Context, input: Value) -> Result<BadOutput, StepError> {
    Ok(match input["kind"].as_str() {
        Some("nan") => BadOutput::Number { value: f64::NAN },
        Some("bigint") => BadOutput::Integer { value: (1 << 53) + 1 },
        Some("nul") => BadOutput::Text { value: "a\0b".to_owned() },
        // A text of Rust cannot hold half a surrogate pair, but raw JSON can.
        Some("surrogate") => BadOutput::Raw { value: RawValue::from_string("\"\\ud800\"".to_owned())? },
        _ => BadOutput::Object { value: BTreeMap::from([((1, 2), 3)]) },
    })
}

async fn context(ctx: Context, _input: Value) -> Output {
    Ok(json!({
        "step_id": ctx.step_id(),
        "task_id": ctx.task_id(),
        "step_name": ctx.step_name(),
        "attempt": ctx.attempt(),
        "delivery": ctx.delivery(),
        "delivery_mode": mode(&ctx),
        "idempotency_key": ctx.idempotency_key(),
        "traceparent": ctx.traceparent(),
        "tracestate": ctx.tracestate(),
        "config": ctx.config::<Value>()?,
        "results": ctx.results::<Value>()?,
        "handler_class": ctx.handler_class(),
    }))
}

async fn trace(ctx: Context, _input: Value) -> Output {
    Ok(json!({"traceparent": ctx.traceparent()}))
}

async fn progress(ctx: Context, input: Value) -> Output {
    ctx.progress(1.0, Some(2.0), Some(input["note"].as_str().unwrap_or("half")))?;
    tokio::time::sleep(Duration::from_millis(input["ms"].as_u64().unwrap_or(0))).await;
    Ok(json!({}))
}

#[derive(Serialize, Deserialize)]
struct Typed {
    order_id: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

async fn typed(_ctx: Context, input: Typed) -> Result<Typed, StepError> {
    Ok(input)
}

/// Writes what happens to a run into a book, for campaigns that look for lost and doubled effects.
async fn book(ctx: Context, _input: Value) -> Output {
    let folder = std::env::var("CONFORM_BOOK").map_err(|_| StepError::permanent("CONFORM_BOOK is not set"))?;
    let config: Value = ctx.config()?;
    let results: BTreeMap<String, Value> = ctx.results()?;
    let seen: BTreeMap<&String, &Value> = results.iter().map(|(name, output)| (name, &output["token"])).collect();
    let entry = |event: &str, more: Value| write_line(&folder, &ctx, event, more);
    entry("started", json!({"mode": mode(&ctx), "key": ctx.idempotency_key(), "seen": seen}))?;
    let limit = Duration::from_millis(config["work_ms"].as_u64().unwrap_or(0));
    if tokio::time::timeout(limit, ctx.cancelled()).await.is_ok() {
        let reason = ctx.cancel_reason().map(|reason| reason.as_str());
        entry("stopped", json!({ "reason": reason }))?;
        return Err(StepError::new("stopped").code("stopped"));
    }
    entry("effect", json!({"key": ctx.idempotency_key()}))?;
    if ctx.attempt() < config["failures"].as_u64().unwrap_or(0) {
        entry("failed", json!({}))?;
        return Err(StepError::new("configured to fail").code("told_to"));
    }
    entry("finished", json!({}))?;
    Ok(json!({"token": format!("{}/{}/{}", ctx.step_id(), ctx.delivery(), std::process::id())}))
}

fn write_line(folder: &str, ctx: &Context, event: &str, more: Value) -> Result<(), StepError> {
    let pid = std::process::id();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
    let mut line = json!({
        "event": event,
        "at": (now_ms() * 1e6) as u64,
        "wall": wall,
        "step_id": ctx.step_id(),
        "task_id": ctx.task_id(),
        "step": ctx.step_name(),
        "delivery": ctx.delivery(),
        "attempt": ctx.attempt(),
        "pid": pid,
    });
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    let name = std::env::var("STEPWIRE_NAME").unwrap_or_default();
    let path = format!("{folder}/worker-{name}-{pid}.jsonl");
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())?;
    Ok(())
}

fn mode(ctx: &Context) -> &'static str {
    match ctx.delivery_mode() {
        DeliveryMode::AtLeastOnce => "at_least_once",
        DeliveryMode::AtMostOnce => "at_most_once",
    }
}
