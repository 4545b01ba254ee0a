//! The edge between the wire and the handlers of a worker: opens a step before its handler, and closes its result after.
//!
//! A step is opened by unsealing its context and the outputs before it, and by replacing its references to secrets. The
//! result is closed by removing the values of secrets, and by sealing it. SPEC.md section 21 has the rules.

mod node;
pub(crate) mod redaction;
mod sealed_steps;
#[cfg(feature = "sealed")]
mod sealing;
mod secret_files;
mod secret_values;

use std::sync::Arc;

use crate::errors::ConfigurationError;
use crate::protocol::messages::{StepRequest, StepResult};
use crate::sys::os;

pub(crate) use redaction::redact;
pub(crate) use sealed_steps::FILE as SEAL_KEYS_FILE;
use sealed_steps::{NotUnsealed, SealedTask};
#[cfg(feature = "sealed")]
use sealing::SealKeys;
pub(crate) use secret_values::{Resolver, DIRECTORY as SECRETS_DIRECTORY};
use secret_values::{SecretUnavailable, Source};

#[cfg(not(feature = "sealed"))]
const NO_FEATURE: &str = "this worker was built without the feature `sealed`: cargo add stepwire --features sealed";

/// Without the feature `sealed`, no worker has keys.
#[cfg(not(feature = "sealed"))]
pub(crate) enum SealKeys {}

#[cfg(not(feature = "sealed"))]
impl SealKeys {
    fn of_file(_path: &str) -> Result<Self, ConfigurationError> {
        Err(ConfigurationError::new(format!("{SEAL_KEYS_FILE} is set, and {NO_FEATURE}")))
    }

    fn seal(&self, _kind: &str, _task: &SealedTask, _step: &str, _plaintext: &str) -> String {
        match *self {}
    }

    fn unseal(&self, _: &str, _: &SealedTask, _: &str, _: &node::Node) -> Result<String, NotUnsealed> {
        match *self {}
    }
}

/// The secrets and the seal keys of a worker.
pub(crate) struct Edge {
    source: Source,
    keys: Option<SealKeys>,
}

/// A step as its handler receives it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub step: Arc<StepRequest>,
    values: Vec<(String, String)>, // by the names of their secrets
    task: Option<SealedTask>,
}

impl Opened {
    /// True for a sealed step, whose texts are not logged.
    pub fn is_sealed(&self) -> bool {
        self.task.is_some()
    }
}

/// Why a step cannot be opened: its handler is not called. `opened` is set if the refusal must be sealed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub code: &'static str,
    pub message: String,
    pub category: Option<&'static str>,
    pub opened: Option<Box<Opened>>,
}

impl Edge {
    /// A process that has any secrets or keys writes no core dumps. A function wins over a directory.
    pub fn new(
        directory: Option<&str>,
        resolver: Option<Resolver>,
        seal_keys_file: Option<&str>,
    ) -> Result<Self, ConfigurationError> {
        let source = match (resolver, directory) {
            (Some(resolver), _) => Source::Function(resolver),
            (None, Some(directory)) => Source::Directory(directory.to_owned()),
            (None, None) => Source::None,
        };
        if !matches!(source, Source::None) || seal_keys_file.is_some() {
            os::write_no_core_dumps();
        }
        Ok(Self { source, keys: seal_keys_file.map(SealKeys::of_file).transpose()? })
    }

    /// False if the step can be passed to its handler as it is. The codec has searched the whole message, so this costs
    /// nothing for most steps.
    pub fn is_needed(step: &StepRequest) -> bool {
        step.may_need_opening && (secret_values::may_need(step) || sealed_steps::may_be_sealed(step.task_context.get()))
    }

    /// Opens the step. May wait for files.
    pub fn open(&self, step: &StepRequest) -> Result<Opened, Refusal> {
        let mut step = step.clone();
        let task = self.unsealed(&mut step).map_err(not_unsealed)?; // another worker may have the key
                                                                    // The secret may arrive, or another worker may have it, so the step's policy decides about a retry.
        match secret_values::resolve(&mut step, &self.source) {
            Ok(values) => Ok(Opened { step: Arc::new(step), values, task }),
            Err(error) => Err(unavailable(error, step, task)),
        }
    }

    fn unsealed(&self, step: &mut StepRequest) -> Result<Option<SealedTask>, NotUnsealed> {
        let task = match sealed_steps::task_of(step)? {
            Some(task) => task,
            None => return Ok(None),
        };
        #[cfg(not(feature = "sealed"))]
        let why = NO_FEATURE.to_owned();
        #[cfg(feature = "sealed")]
        let why = format!("this worker has no keys: set {SEAL_KEYS_FILE}");
        let keys = self.keys.as_ref().ok_or_else(|| NotUnsealed(format!("the step is sealed, and {why}")))?;
        sealed_steps::unseal(step, &task, keys)?;
        Ok(Some(task))
    }

    /// The result as it may leave the worker.
    pub fn close(&self, opened: &Opened, mut result: StepResult) -> StepResult {
        if !opened.values.is_empty() {
            result.output = result.output.map(|output| redaction::without_values(output, &opened.values));
        }
        match (&opened.task, &self.keys) {
            (Some(task), Some(keys)) => sealed_steps::sealed(&opened.step.step_name, task, keys, result),
            _ => result,
        }
    }
}

fn not_unsealed(NotUnsealed(message): NotUnsealed) -> Refusal {
    Refusal { code: "not_unsealed", message, category: None, opened: None }
}

fn unavailable(error: SecretUnavailable, step: StepRequest, task: Option<SealedTask>) -> Refusal {
    let opened = task.map(|task| Box::new(Opened { step: Arc::new(step), values: Vec::new(), task: Some(task) }));
    let category = error.is_service_at_fault.then_some("unavailable");
    Refusal { code: "secret_unavailable", message: error.message, category, opened }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{json, Value};

    use super::*;

    pub(crate) fn vectors(file: &str) -> Value {
        let path = format!("{}/../../protocol/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn members_of(value: &Value) -> Vec<(String, String)> {
        let members = value.as_object().unwrap().iter();
        members.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
    }

    /// A new folder in which a test makes files.
    pub(crate) fn temporary() -> PathBuf {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let folder = std::env::temp_dir().join(format!("stepwire-edge-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        folder.canonicalize().unwrap()
    }

    /// A step with this context.
    pub(crate) fn step(context: &str) -> StepRequest {
        let context: Value = serde_json::from_str(context).unwrap();
        let step = json!({
            "step_id": 1, "task_id": 1, "step_name": "charge", "handler_class": "pay", "task_context": context,
            "delivery": 1, "metadata": {"attempt": 0, "retry_limit": 3, "timeout_ms": 1, "idempotency_key": "k"},
        });
        serde_json::from_str(&step.to_string()).unwrap()
    }

    #[test]
    fn a_sealed_step_without_keys_is_refused_in_a_sentence() {
        let vectors = vectors("sealed.json");
        let edge = Edge::new(None, None, None).unwrap();
        let refusal = edge.open(&step(&vectors["sealed"][0]["payload"].to_string())).unwrap_err();
        let why = match cfg!(feature = "sealed") {
            true => "this worker has no keys: set STEPWIRE_SEAL_KEYS_FILE",
            false => "this worker was built without the feature `sealed`: cargo add stepwire --features sealed",
        };
        assert_eq!((refusal.code, refusal.message), ("not_unsealed", format!("the step is sealed, and {why}")));
    }

    #[cfg(not(feature = "sealed"))]
    #[test]
    fn a_file_of_keys_without_the_feature_ends_the_start_in_a_sentence() {
        let error = Edge::new(None, None, Some("seal.keys")).err().unwrap();
        assert_eq!(
            error.to_string(),
            "STEPWIRE_SEAL_KEYS_FILE is set, and this worker was built without the feature `sealed`: \
             cargo add stepwire --features sealed"
        );
    }
}
