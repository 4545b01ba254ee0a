//! Every error of the SDK.
//!
//! A handler returns `Result<Output, StepError>`. Any error of Rust becomes a `StepError` with `?`: an ordinary failure,
//! which the step's policy may retry. The constructors of `StepError` are more precise.

use std::fmt;
use std::time::Duration;

/// The code of a failure that is no verdict: the effect may have happened.
pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";

const RETRY_AFTER_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);
const CAUSES_MAX: usize = 20;

/// A worker or a handler cannot be set up as requested. The message names the setting at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationError(pub(crate) String);

impl ConfigurationError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for ConfigurationError {}

/// What a failure means for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepErrorKind {
    /// An error that the handler did not expect: `?` on any error of Rust. The step's policy decides about a retry.
    Ordinary,
    /// The handler reports a failure. The step's policy decides about a retry.
    Failed,
    /// A retry cannot help: a declined card, an address that does not exist.
    Permanent,
    /// A retry must not start before this time has passed.
    Retry(Duration),
    /// The effect may or may not have happened, and the handler cannot find out. The broker retries an at_least_once
    /// step, and holds an at_most_once step for an operator.
    OutcomeUnknown,
    /// The handler stopped because it was asked to: see [`Context::check`](crate::Context::check).
    Stopped,
}

/// The step failed.
///
/// `StepError` does not implement `std::error::Error`, because every such error can become a `StepError`.
#[derive(Clone, PartialEq, Eq)]
pub struct StepError {
    kind: StepErrorKind,
    message: String,
    code: Option<String>,
    category: Option<String>,
    causes: Vec<String>,
}

impl StepError {
    fn of(kind: StepErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), code: None, category: None, causes: Vec::new() }
    }

    /// The step failed. The step's policy decides about a retry.
    pub fn new(message: impl Into<String>) -> Self {
        Self::of(StepErrorKind::Failed, message)
    }

    /// The step failed, and a retry cannot help.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::of(StepErrorKind::Permanent, message)
    }

    /// The step failed, and must not be retried before `after` has passed (at most ten years).
    pub fn retry_after(after: Duration, message: impl Into<String>) -> Self {
        Self::of(StepErrorKind::Retry(after.min(RETRY_AFTER_MAX)), message)
    }

    /// The effect may or may not have happened, and the handler cannot find out.
    pub fn outcome_unknown(message: impl Into<String>) -> Self {
        Self::of(StepErrorKind::OutcomeUnknown, message).code(OUTCOME_UNKNOWN)
    }

    pub(crate) fn stopped() -> Self {
        Self::of(StepErrorKind::Stopped, "the handler stopped because it was asked to")
    }

    /// The reason for programs, such as `card_declined`.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// The kind of the failure. `unavailable` means that a resource that the handler needs cannot be reached: after
    /// several such failures the broker stops sending steps to the handler for a while.
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = Some(category.into());
        self
    }

    /// What the failure means for a retry.
    pub fn kind(&self) -> StepErrorKind {
        self.kind
    }

    /// The reason for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn code_text(&self) -> Option<&str> {
        self.code.as_deref()
    }

    pub(crate) fn category_text(&self) -> Option<&str> {
        self.category.as_deref()
    }

    /// The errors that led to this one, the first cause last.
    pub fn causes(&self) -> &[String] {
        &self.causes
    }
}

impl<E: std::error::Error + 'static> From<E> for StepError {
    /// An ordinary failure. Its message begins with the type of the error, and its code is that type.
    fn from(error: E) -> Self {
        let name = short_name(std::any::type_name::<E>());
        let mut step_error = Self::of(StepErrorKind::Ordinary, format!("{name}: {error}")).code(name);
        let mut source = error.source();
        while let Some(cause) = source {
            if step_error.causes.len() >= CAUSES_MAX {
                break;
            }
            step_error.causes.push(format!("caused by: {cause}"));
            source = cause.source();
        }
        step_error
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl fmt::Debug for StepError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "StepError({:?}, {:?}", self.kind, self.message)?;
        if let Some(code) = &self.code {
            write!(out, ", code {code:?}")?;
        }
        out.write_str(")")
    }
}

/// `std::num::error::ParseIntError` → `ParseIntError`; parameters of generic types are left out.
pub(crate) fn short_name(type_name: &str) -> &str {
    let plain = type_name.split('<').next().unwrap_or(type_name);
    plain.rsplit("::").next().unwrap_or(plain)
}
