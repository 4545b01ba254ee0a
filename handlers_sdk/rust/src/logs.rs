//! Log lines, which go to stderr unless the program takes them.
//!
//! ```text
//! 2026-11-19 10:03:15 INFO    task 9 step 12 pay: charged 12.50 EUR
//! ```
//!
//! A program that has its own logging passes a function to [`set_sink`], for example one that calls `log` or `tracing`.

use std::borrow::Cow;
use std::io::Write;
use std::sync::RwLock;
use std::time::{SystemTime, UNIX_EPOCH};

pub use crate::actions::Level;
use crate::edge::redact;
use crate::protocol::messages::StepRequest;
use crate::sys::os;

/// The ids of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StepIds {
    pub task_id: u64,
    pub step_id: u64,
    pub step_name: String,
    pub attempt: u64,
    pub delivery: u64,
}

impl StepIds {
    pub(crate) fn of(step: &StepRequest) -> Self {
        Self {
            task_id: step.task_id,
            step_id: step.step_id,
            step_name: step.step_name.clone(),
            attempt: step.metadata.attempt,
            delivery: step.delivery,
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its importance.
    pub level: Level,
    /// `stepwire.worker` for the worker's own events, `stepwire.handler` for lines of handlers.
    pub logger: &'static str,
    /// A name for programs, such as `session_opened` or `run_failed`; empty for lines of handlers.
    pub event: &'static str,
    /// The step that the line is about.
    pub step: Option<StepIds>,
    /// The text, for people.
    pub text: String,
}

type Sink = Box<dyn Fn(&Record) + Send + Sync>;

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Passes every record to this function in place of stderr, also those of level debug.
pub fn set_sink(sink: impl Fn(&Record) + Send + Sync + 'static) {
    *SINK.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Box::new(sink));
}

pub(crate) fn write(record: &Record) {
    let redacted;
    let record = match redact(&record.text) {
        Cow::Borrowed(_) => record,
        Cow::Owned(text) => {
            redacted = Record { text, ..record.clone() };
            &redacted
        }
    };
    let sink = SINK.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    match &*sink {
        Some(sink) => sink(record),
        None if record.level >= Level::Info => {
            let line = readable(record, os::is_stderr_terminal());
            let _ = std::io::stderr().write_all(line.as_bytes()); // a closed stderr must not end the worker
        }
        None => {}
    }
}

/// Time, level, step and text of a record. On a terminal without the date, and with colours for faults.
fn readable(record: &Record, is_terminal: bool) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let [year, month, day, hour, minute, second] = os::local_time(now);
    let date = if is_terminal { String::new() } else { format!("{year:04}-{month:02}-{day:02} ") };
    let name = match record.level {
        Level::Debug => "DEBUG",
        Level::Info => "INFO",
        Level::Warning => "WARNING",
        Level::Error => "ERROR",
    };
    let mut level = format!("{name:<7}");
    if is_terminal && record.level >= Level::Warning && std::env::var_os("NO_COLOR").map_or(true, |set| set.is_empty())
    {
        let colour = if record.level == Level::Error { 31 } else { 33 };
        level = format!("\x1b[{colour}m{level}\x1b[0m");
    }
    let prefix = match &record.step {
        Some(step) if record.logger == HANDLER => {
            let attempt = match step.attempt {
                0 => String::new(),
                failed => format!(" attempt {}", failed + 1), // people count from 1
            };
            format!("task {} step {} {}{attempt}: ", step.task_id, step.step_id, step.step_name)
        }
        _ => String::new(),
    };
    format!("{date}{hour:02}:{minute:02}:{second:02} {level} {prefix}{}\n", record.text)
}

pub(crate) const WORKER: &str = "stepwire.worker";
pub(crate) const HANDLER: &str = "stepwire.handler";

/// The logger of a run: every record has the step's ids.
#[derive(Debug, Clone, Copy)]
pub struct StepLogger<'a> {
    step: &'a StepRequest,
}

impl<'a> StepLogger<'a> {
    pub(crate) fn new(step: &'a StepRequest) -> Self {
        Self { step }
    }

    /// For the authors of the handler; only a sink receives it.
    pub fn debug(&self, text: impl AsRef<str>) {
        self.log(Level::Debug, text.as_ref());
    }

    /// What happened.
    pub fn info(&self, text: impl AsRef<str>) {
        self.log(Level::Info, text.as_ref());
    }

    /// What needs attention if it continues.
    pub fn warning(&self, text: impl AsRef<str>) {
        self.log(Level::Warning, text.as_ref());
    }

    /// What has failed.
    pub fn error(&self, text: impl AsRef<str>) {
        self.log(Level::Error, text.as_ref());
    }

    fn log(&self, level: Level, text: &str) {
        let step = Some(StepIds::of(self.step));
        write(&Record { level, logger: HANDLER, event: "", step, text: text.to_owned() });
    }
}
