//! The log lines of runs that end without an output: events `run_failed` and `run_interrupted`.
//!
//! ```text
//! task 9 step 12 pay attempt 1 of 4 failed: ParseIntError: invalid digit found in string
//! ```
//!
//! An unexpected error or a panic is an error. What a handler reports on purpose is a warning of one line.

use crate::actions::{Level, StopReason};
use crate::errors::{StepError, StepErrorKind};
use crate::handler::Ended;
use crate::logs::{self, Record, StepIds};
use crate::protocol::messages::{ErrorDetail, StepRequest};
use crate::texts::{seconds, shortened};

const TEXT_CHARS_MAX: usize = 500; // the result has more

/// Logs the error of a handler; of a sealed step, only its type.
pub(crate) fn ended(step: &StepRequest, ended: &Ended, reason: Option<StopReason>, is_sealed: bool) {
    let error = match ended {
        Ended::Failed(error) => error,
        _ => return,
    };
    if is_sealed {
        return sealed(step, error.code_text().unwrap_or("StepError"));
    }
    if let Some(reason) = reason {
        let text = format!("ended after it was asked to stop ({}): {}", reason.as_str(), error.message());
        return write("run_failed", Level::Info, step, text);
    }
    let mut text = format!("failed: {}", summary(error));
    for cause in error.causes() {
        text.push_str(&format!(" ({cause})"));
    }
    let level = match error.kind() {
        StepErrorKind::Ordinary => Level::Error,
        StepErrorKind::Retry(after) => {
            let seconds = seconds(after.as_secs_f64() * 1000.0);
            text.push_str(&format!("; a retry may start after {seconds} s"));
            Level::Warning
        }
        StepErrorKind::Permanent => {
            text.push_str("; no retry");
            Level::Warning
        }
        StepErrorKind::Failed | StepErrorKind::OutcomeUnknown | StepErrorKind::Stopped => Level::Warning,
    };
    write("run_failed", level, step, text);
}

/// The kind and the text of a failure: `Permanent: card declined`.
fn summary(error: &StepError) -> String {
    let name = match error.kind() {
        StepErrorKind::Ordinary => return error.message().to_owned(), // begins with its type
        StepErrorKind::Failed | StepErrorKind::Stopped => "StepError",
        StepErrorKind::Permanent => "Permanent",
        StepErrorKind::Retry(_) => "Retry",
        StepErrorKind::OutcomeUnknown => "OutcomeUnknown",
    };
    match error.message() {
        "" => name.to_owned(),
        message => format!("{name}: {message}"),
    }
}

/// Logs the failure of a sealed step. `kind` is the code of its error.
pub(crate) fn sealed(step: &StepRequest, kind: &str) {
    write("run_failed", Level::Warning, step, format!("failed: {kind}; the text of the error is sealed"));
}

/// Logs the panic of a handler.
pub(crate) fn panicked(step: &StepRequest, text: &str, at: Option<&str>, reason: Option<StopReason>) {
    let at = at.map_or_else(String::new, |at| format!(" (at {at})"));
    match reason {
        Some(reason) => {
            let text = format!("ended after it was asked to stop ({}): panic: {text}{at}", reason.as_str());
            write("run_failed", Level::Info, step, text);
        }
        None => write("run_failed", Level::Error, step, format!("failed: panic: {text}{at}")),
    }
}

/// Logs a failure that the SDK has found: input that does not fit, output that is not JSON, an output that is too large.
pub(crate) fn not_reported(step: &StepRequest, error: &ErrorDetail) {
    let code = error.code.as_deref().unwrap_or("error");
    write("run_failed", Level::Error, step, format!("failed: {code}: {}", error.message));
}

/// Logs that a run is asked to stop. A handler may ignore it, so the end of the run may never be logged.
pub(crate) fn interrupted(step: &StepRequest, reason: StopReason) {
    let (level, text) = match reason {
        StopReason::Timeout => (Level::Warning, "exceeded its timeout and is asked to stop"),
        StopReason::TaskCancelled => (Level::Info, "is asked to stop: the task was cancelled"),
        StopReason::NotGranted => (Level::Warning, "is asked to stop: the broker does not grant it"),
        StopReason::Superseded => (
            Level::Warning,
            "is asked to stop: the broker has ended this run (its timeout, or a retry elsewhere); \
             its result will not be used",
        ),
        StopReason::Shutdown => (Level::Info, "is asked to stop: the worker shuts down"),
        StopReason::LeaseLost => (Level::Warning, "continues without a broker: its result may come too late"),
    };
    write("run_interrupted", level, step, text.to_owned());
}

fn write(event: &'static str, level: Level, step: &StepRequest, text: String) {
    let attempt = format!("attempt {} of {}", step.metadata.attempt + 1, step.metadata.retry_limit + 1);
    let name = format!("task {} step {} {} {attempt}", step.task_id, step.step_id, step.step_name);
    let text = format!("{name} {}", shortened(&text, TEXT_CHARS_MAX));
    logs::write(&Record { level, logger: logs::WORKER, event, step: Some(StepIds::of(step)), text });
}
