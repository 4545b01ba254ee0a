//! A registered handler, and the results that are made of its return values and errors.

use std::future::Future;
use std::pin::Pin;

use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Number;

use crate::actions::StopReason;
use crate::context::Context;
use crate::errors::{ConfigurationError, StepError, StepErrorKind, OUTCOME_UNKNOWN};
use crate::finite;
use crate::protocol::messages::{DeliveryMode, ErrorDetail, ResultMetadata, Status, StepRequest, StepResult};
use crate::protocol::{codec, strict_json, topics};
use crate::session::Offer;
use crate::texts::{clean, CODE_CHARS_MAX, MESSAGE_CHARS_MAX};

const OUTPUT_DEPTH: usize = 3; // the output is below the message, its results, and the result

/// How a call of a handler ended, if the handler did not panic.
pub(crate) enum Ended {
    /// It returned this output, as JSON.
    Output(String),
    BadInput(String),
    BadOutput(String),
    Failed(StepError),
}

pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Ended> + Send>>;

pub(crate) enum Function {
    Async(Box<dyn Fn(Context) -> HandlerFuture + Send + Sync>),
    Blocking(Box<dyn Fn(Context) -> Ended + Send + Sync>),
}

/// A function with its settings.
///
/// ```
/// use stepwire::{Context, Handler, StepError};
///
/// async fn ship(ctx: Context, order: serde_json::Value) -> Result<serde_json::Value, StepError> {
///     ctx.log().info("shipping");
///     Ok(order)
/// }
///
/// let handler = Handler::new("ship_order", ship).concurrency(8).timeout_ms(5_000);
/// ```
pub struct Handler {
    pub(crate) function: Function,
    pub(crate) offer: Offer,
    pub(crate) version: Option<String>,
    pub(crate) is_cooperative: bool,
}

impl Handler {
    /// An async function for a handler_class, or for a pattern (`Billing::**`). It runs on the worker's tokio runtime.
    ///
    /// When the run should stop (its timeout, a cancelled task, the end of the worker), its future is dropped at its
    /// next `.await`, unless the handler is `cooperative`.
    pub fn new<F, Fut, I, O, E>(name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Context, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
        I: DeserializeOwned,
        O: Serialize,
        E: Into<StepError>,
    {
        let call = move |ctx: Context| -> HandlerFuture {
            let input = match codec::decode_data::<I>(ctx.raw_input()) {
                Ok(input) => input,
                Err(error) => {
                    let text = error.to_string();
                    return Box::pin(async { Ended::BadInput(text) });
                }
            };
            let running = function(ctx, input);
            Box::pin(async move { ended(running.await) })
        };
        Self::with(name, Function::Async(Box::new(call)))
    }

    /// A plain function, which runs on a thread of its own: for code that computes or blocks. Nothing stops a thread, so
    /// a long function should look at [`Context::is_cancelled`].
    pub fn blocking<F, I, O, E>(name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Context, I) -> Result<O, E> + Send + Sync + 'static,
        I: DeserializeOwned,
        O: Serialize,
        E: Into<StepError>,
    {
        let call = move |ctx: Context| match codec::decode_data::<I>(ctx.raw_input()) {
            Ok(input) => ended(function(ctx, input)),
            Err(error) => Ended::BadInput(error.to_string()),
        };
        Self::with(name, Function::Blocking(Box::new(call)))
    }

    fn with(name: impl Into<String>, function: Function) -> Self {
        Self { function, offer: Offer::new(name), version: None, is_cooperative: false }
    }

    /// The maximum number of runs of this handler at a time. Without it: the number of slots.
    pub fn concurrency(mut self, runs: u64) -> Self {
        self.offer.concurrency = Some(runs);
        self
    }

    /// Shortens the timeout of the steps.
    pub fn timeout_ms(mut self, timeout_ms: u64) -> Self {
        self.offer.timeout_ms = Some(timeout_ms);
        self
    }

    /// The handler has no effects in shadow runs, so it may receive them.
    pub fn shadow_safe(mut self) -> Self {
        self.offer.shadow_safe = true;
        self
    }

    /// The release of this handler, which its results carry.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// The async handler ends by itself when [`Context::cancelled`] does: its future is never dropped before its end.
    pub fn cooperative(mut self) -> Self {
        self.is_cooperative = true;
        self
    }

    /// The name or pattern.
    pub fn name(&self) -> &str {
        &self.offer.pattern
    }

    /// Faults that would otherwise only show at run time.
    pub(crate) fn check(&self) -> Result<(), ConfigurationError> {
        let name = self.name();
        if !topics::is_handler_pattern(name) {
            return Err(ConfigurationError::new(format!(
                "handler name '{name}': it needs 1 to 128 letters, digits, _ . : - and, for patterns, *"
            )));
        }
        for (setting, value) in [("concurrency", self.offer.concurrency), ("timeout_ms", self.offer.timeout_ms)] {
            if value == Some(0) {
                return Err(ConfigurationError::new(format!(
                    "handler '{name}': {setting} is 0: it needs to be at least 1"
                )));
            }
        }
        Ok(())
    }
}

fn ended<O: Serialize, E: Into<StepError>>(returned: Result<O, E>) -> Ended {
    match returned {
        Ok(output) => match encode_output(&output) {
            Ok(output) => Ended::Output(output),
            Err(why) => Ended::BadOutput(why),
        },
        Err(error) => Ended::Failed(error.into()),
    }
}

/// The output as JSON that every language can read, or what is wrong with it, and what to return instead.
fn encode_output<O: Serialize>(output: &O) -> Result<String, String> {
    let text = serde_json::to_string(output).map_err(|error| match &*error.to_string() {
        "key must be a string" => {
            "it holds a map whose keys are no text, which has no form in JSON: return plain data".to_owned()
        }
        other => other.to_owned(),
    })?;
    // serde_json writes null in place of NaN and the infinities.
    if text.contains("null") && finite::check(output).is_err() {
        return Err(reason_of("not_a_number").to_owned());
    }
    strict_json::check_at_depth(text.as_bytes(), OUTPUT_DEPTH).map_err(|refusal| match reason_of(refusal.code) {
        "" => refusal.message,
        reason => reason.to_owned(),
    })?;
    Ok(text)
}

/// The same sentences in every SDK.
fn reason_of(code: &str) -> &'static str {
    match code {
        "not_a_number" => "it holds NaN or Infinity, which JSON does not have: return null instead",
        "integer_out_of_range" => "it holds an integer outside ±(2^53 - 1): return it as text",
        "nul_character" => "it holds U+0000, which databases cannot store: remove it, or return the text as Base64",
        "lone_surrogate" => "it holds half of a surrogate pair: return well-formed text, or Base64",
        _ => "",
    }
}

// -- results ----------------------------------------------------------------------------------------------------------

/// The result of a handler that returned, or that found its input or its output unusable.
pub(crate) fn result_of(
    handler: &Handler,
    step: &StepRequest,
    ended: Ended,
    reason: Option<StopReason>,
    took_ms: f64,
) -> StepResult {
    let version = handler.version.as_deref();
    match ended {
        Ended::Output(output) => StepResult {
            item: step.item(),
            status: Status::Completed,
            output: Some(output),
            error: None,
            metadata: Some(metadata(took_ms, version)),
        },
        Ended::BadInput(why) => {
            let (name, text) = (&step.step_name, handler.name());
            error(
                step,
                "bad_input",
                format!("the input of '{name}' does not fit handler '{text}': {why}"),
                Some(false),
                None,
            )
        }
        Ended::BadOutput(why) => {
            let text = format!("the output of '{}' cannot be sent as JSON: {why}", handler.name());
            sdk_failure(step, "bad_output", &text, took_ms)
        }
        Ended::Failed(error) => match (error.kind(), reason) {
            (StepErrorKind::Stopped, Some(reason)) => stopped(step, reason, took_ms, version),
            (_, Some(StopReason::Timeout)) => stopped(step, StopReason::Timeout, took_ms, version),
            _ => failed(step, &error, took_ms, version),
        },
    }
}

/// The result of a handler that returned an error.
fn failed(step: &StepRequest, error: &StepError, took_ms: f64, version: Option<&str>) -> StepResult {
    let (retryable, retry_after_ms) = match error.kind() {
        StepErrorKind::Ordinary | StepErrorKind::OutcomeUnknown | StepErrorKind::Stopped => (None, None),
        StepErrorKind::Failed => (Some(true), None),
        StepErrorKind::Permanent => (Some(false), None),
        StepErrorKind::Retry(after) => (Some(true), Some(after.as_millis() as u64)),
    };
    let message = if error.message().is_empty() { "StepError" } else { error.message() };
    let limited = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(|text| clean(text, CODE_CHARS_MAX));
    let causes = error.causes();
    let detail = ErrorDetail {
        message: clean(message, MESSAGE_CHARS_MAX),
        code: limited(error.code_text()),
        category: limited(error.category_text()),
        retryable,
        retry_after_ms,
        backtrace: (!causes.is_empty()).then(|| causes.iter().map(|line| clean(line, 1000)).take(8).collect()),
    };
    failure(step, Status::Failed, detail, Some(metadata(took_ms, version)))
}

/// The result of a handler that was not called, because this worker cannot open the step. A retry may succeed.
pub(crate) fn not_opened(step: &StepRequest, code: &str, message: &str, category: Option<&str>) -> StepResult {
    let mut result = error(step, code, message.to_owned(), Some(true), None);
    if let Some(detail) = &mut result.error {
        detail.category = category.map(str::to_owned);
    }
    result
}

/// The result of a handler that panicked. `at` is the place.
pub(crate) fn panicked(
    handler: &Handler,
    step: &StepRequest,
    text: &str,
    at: Option<String>,
    reason: Option<StopReason>,
    took_ms: f64,
) -> StepResult {
    if reason == Some(StopReason::Timeout) {
        return stopped(step, StopReason::Timeout, took_ms, handler.version.as_deref());
    }
    let detail = ErrorDetail {
        message: clean(&format!("panic: {text}"), MESSAGE_CHARS_MAX),
        code: Some("panic".to_owned()),
        backtrace: at.map(|at| vec![clean(&format!("panicked at {at}"), 1000)]),
        ..ErrorDetail::default()
    };
    failure(step, Status::Failed, detail, Some(metadata(took_ms, handler.version.as_deref())))
}

/// The result of a run that stopped because of a timeout or a cancel.
pub(crate) fn stopped(step: &StepRequest, reason: StopReason, took_ms: f64, version: Option<&str>) -> StepResult {
    let is_timeout = reason == StopReason::Timeout;
    let message = if is_timeout {
        "the run exceeded its timeout".to_owned()
    } else {
        format!("the run was cancelled: {}", reason.as_str())
    };
    let code = match step.delivery_mode {
        DeliveryMode::AtMostOnce => OUTCOME_UNKNOWN,
        DeliveryMode::AtLeastOnce if is_timeout => "timeout",
        DeliveryMode::AtLeastOnce => "cancelled",
    };
    let detail = ErrorDetail { message, code: Some(code.to_owned()), ..ErrorDetail::default() };
    failure(step, Status::Failed, detail, Some(metadata(took_ms, version)))
}

/// The result of a handler that was called, but whose outcome the SDK cannot report.
fn sdk_failure(step: &StepRequest, code: &str, text: &str, took_ms: f64) -> StepResult {
    match step.delivery_mode {
        DeliveryMode::AtMostOnce => error(step, OUTCOME_UNKNOWN, format!("{code}: {text}"), None, Some(took_ms)),
        DeliveryMode::AtLeastOnce => error(step, code, text.to_owned(), Some(false), Some(took_ms)),
    }
}

fn error(step: &StepRequest, code: &str, text: String, retryable: Option<bool>, took_ms: Option<f64>) -> StepResult {
    let detail = ErrorDetail {
        message: clean(&text, MESSAGE_CHARS_MAX),
        code: Some(code.to_owned()),
        retryable,
        ..ErrorDetail::default()
    };
    let metadata = took_ms.map_or_else(ResultMetadata::default, |took_ms| metadata(took_ms, None));
    failure(step, Status::Error, detail, Some(metadata))
}

fn failure(step: &StepRequest, status: Status, detail: ErrorDetail, metadata: Option<ResultMetadata>) -> StepResult {
    StepResult { item: step.item(), status, output: None, error: Some(detail), metadata }
}

/// The time is rounded to microseconds.
fn metadata(took_ms: f64, version: Option<&str>) -> ResultMetadata {
    ResultMetadata {
        execution_time_ms: Number::from_f64((took_ms * 1000.0).round() / 1000.0),
        handler_version: version.map(str::to_owned),
        ..ResultMetadata::default()
    }
}
