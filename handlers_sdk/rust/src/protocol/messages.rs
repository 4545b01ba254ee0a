//! The messages of level 1 as types. Business data (contexts, configurations, outputs) stays raw JSON.
//!
//! The members are written in the order of SPEC.md, and left out where they have their default: sizes of messages are
//! compared with a limit, and every SDK has to come to the same sizes.

#![allow(missing_docs)] // SPEC.md sections 5 and 6 describe every member

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::Number;

use super::limits;

/// `[step_id, delivery]`: one delivery of a step.
pub type Item = (u64, u64);

/// The state of a held delivery, as brokers read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldState {
    /// It waits for a slot.
    Queued,
    /// at_most_once: it has a slot, and waits for the broker's `go`.
    Asking,
    /// Its handler was entered.
    Running,
    /// Its result is kept until a broker acknowledges it.
    Done,
    /// Only in `adopted`: it never starts in this process.
    Unknown,
}

/// `[step_id, delivery, state, age_ms]`.
pub type HeldItem = (u64, u64, HeldState, u64);
/// `[step_id, delivery, done, total, note]`.
pub type ProgressItem = (u64, u64, Number, Option<Number>, Option<String>);

/// Why a worker refuses items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefuseCode {
    Busy,
    UnknownHandler,
    Draining,
    Stale,
    BadMessage,
    TooLarge,
}

impl RefuseCode {
    /// The code on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            RefuseCode::Busy => "busy",
            RefuseCode::UnknownHandler => "unknown_handler",
            RefuseCode::Draining => "draining",
            RefuseCode::Stale => "stale",
            RefuseCode::BadMessage => "bad_message",
            RefuseCode::TooLarge => "too_large",
        }
    }
}

/// How often a step may be dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryMode {
    /// The step may run again after a lost worker.
    #[default]
    AtLeastOnce,
    /// The step runs only after the broker's grant, and never twice.
    AtMostOnce,
}

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The handler returned.
    Completed,
    /// The handler failed the step.
    Failed,
    /// The step could not be run, or its outcome could not be reported.
    Error,
}

// -- messages of a worker ---------------------------------------------------------------------------------------------

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_heartbeat_default(value: &u64) -> bool {
    *value == limits::HEARTBEAT_MS
}

fn is_bytes_default(value: &u64) -> bool {
    *value == limits::MESSAGE_BYTES_MAX
}

/// A map whose members keep their order on the wire.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Members<T>(pub Vec<(String, T)>);

impl<T: Serialize> Serialize for Members<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<T> Members<T> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "hello")]
pub struct Hello<'a> {
    pub v: &'a str,
    pub worker: &'a str,
    pub n: u64,
    pub versions: &'a [&'a str],
    #[serde(skip_serializing_if = "Members::is_empty")]
    pub next: Members<u64>,
    #[serde(skip_serializing_if = "Members::is_empty")]
    pub sessions: Members<String>,
    pub handlers: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shadow_safe: Vec<&'a str>,
    #[serde(skip_serializing_if = "is_default")]
    pub labels: std::collections::BTreeMap<String, String>,
    pub slots: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub prefetch: u64,
    #[serde(skip_serializing_if = "Members::is_empty")]
    pub free: Members<u64>,
    #[serde(skip_serializing_if = "Members::is_empty")]
    pub slots_free: Members<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holding: Vec<HeldItem>,
    #[serde(skip_serializing_if = "is_heartbeat_default")]
    pub heartbeat_ms: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub lang: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub sdk: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub handler_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub host: &'a str,
    #[serde(skip_serializing_if = "is_default")]
    pub pid: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub pid_started: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub proof: bool,
    #[serde(skip_serializing_if = "is_bytes_default")]
    pub max_message_bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "heartbeat")]
pub struct Heartbeat<'a> {
    pub v: &'a str,
    pub worker: &'a str,
    pub n: u64,
    #[serde(skip_serializing_if = "Members::is_empty")]
    pub next: Members<u64>,
    #[serde(skip_serializing_if = "Members::is_empty")]
    pub sessions: Members<String>,
    #[serde(skip_serializing_if = "Members::is_empty")]
    pub free: Members<u64>,
    #[serde(skip_serializing_if = "Members::is_empty")]
    pub slots_free: Members<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holding: Vec<HeldItem>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "bye")]
pub struct Bye<'a> {
    pub v: &'a str,
    pub worker: &'a str,
    pub n: u64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "accept")]
pub struct Accept<'a> {
    pub v: &'a str,
    pub worker: &'a str,
    pub session: &'a str,
    pub batch_id: &'a str,
    pub free: u64,
    pub slots_free: u64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "refuse")]
pub struct Refuse<'a> {
    pub v: &'a str,
    pub worker: &'a str,
    pub session: &'a str,
    pub batch_id: &'a str,
    pub items: &'a [Item],
    pub code: RefuseCode,
    #[serde(skip_serializing_if = "is_default")]
    pub free: u64,
    pub slots_free: u64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "start")]
pub struct Start<'a> {
    pub v: &'a str,
    pub worker: &'a str,
    pub session: &'a str,
    pub items: &'a [Item],
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "adopted")]
pub struct Adopted<'a> {
    pub v: &'a str,
    pub worker: &'a str,
    pub session: &'a str,
    pub items: &'a [HeldItem],
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "progress")]
pub struct Progress<'a> {
    pub v: &'a str,
    pub worker: &'a str,
    pub session: &'a str,
    pub items: &'a [ProgressItem],
}

/// The members of `results` before its list.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "results")]
pub struct ResultsHead<'a> {
    pub v: &'a str,
    pub worker: &'a str,
    pub session: &'a str,
    pub deployment: &'a str,
    pub batch_id: &'a str,
    pub protocol_version: &'a str,
    pub rid: u64,
    pub n: u64,
    pub free: u64,
    pub slots_free: u64,
}

/// Why a step failed, as its handler reports it. All members are optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The kind of the failure; `unavailable`: a resource that the handler needs cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// False: a retry cannot help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// A retry may start after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The stack of the failure, the innermost frame last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backtrace: Option<Vec<String>>,
}

/// Facts about a run from the handler's side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultMetadata {
    /// The duration of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_time_ms: Option<Number>,
    /// The release of the handler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler_version: Option<String>,
    /// False: a retry cannot help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// What the run wrote to standard error, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

/// The outcome of one delivery.
#[derive(Debug, Clone)]
pub struct StepResult {
    pub item: Item,
    pub status: Status,
    /// The output as compact, strict JSON.
    pub output: Option<String>,
    pub error: Option<ErrorDetail>,
    pub metadata: Option<ResultMetadata>,
}

// -- messages of a broker ---------------------------------------------------------------------------------------------

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Endpoints {
    pub broker: String,
    pub steps: String,
    pub results: String,
    #[serde(default)]
    pub server_key: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Here {
    pub v: String,
    pub broker: String,
    pub epoch: u64,
    pub deployment: String,
    pub versions: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Welcome {
    pub v: String,
    pub broker: String,
    pub epoch: u64,
    pub session: String,
    pub deployment: String,
    pub n: u64,
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
    pub max_message_bytes: u64,
    #[serde(default)]
    pub brokers: Vec<Endpoints>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct HeartbeatAck {
    pub v: String,
    pub broker: String,
    pub epoch: u64,
    pub session: String,
    pub n: u64,
    #[serde(default)]
    pub quiet: bool,
    #[serde(default)]
    pub quit: bool,
    #[serde(default)]
    pub brokers: Option<Vec<Endpoints>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepMetadata {
    pub attempt: u64,
    pub retry_limit: u64,
    pub timeout_ms: u64,
    pub idempotency_key: String,
    #[serde(default)]
    pub traceparent: Option<String>,
    #[serde(default)]
    pub tracestate: Option<String>,
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    #[serde(default)]
    pub shadow: bool,
}

fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("this is JSON")
}

/// A member that holds any JSON: absent, or its text. `null` is a text, too.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// One step, as a worker receives it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepRequest {
    pub step_id: u64,
    pub task_id: u64,
    pub step_name: String,
    pub handler_class: String,
    #[serde(default = "empty_object")]
    pub handler_config: Box<RawValue>,
    #[serde(default = "empty_object")]
    pub task_context: Box<RawValue>,
    #[serde(default = "empty_object")]
    pub previous_results: Box<RawValue>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub input: Option<Box<RawValue>>,
    pub delivery: u64,
    #[serde(default)]
    pub delivery_mode: DeliveryMode,
    pub metadata: StepMetadata,
    /// False if the message certainly held no reference to a secret and no sealed payload.
    #[serde(skip)]
    pub may_need_opening: bool,
}

impl StepRequest {
    /// The step and its delivery.
    pub fn item(&self) -> Item {
        (self.step_id, self.delivery)
    }

    /// The input as JSON: the step's `input` if its workflow defines one, otherwise the task context.
    pub fn raw_input(&self) -> &str {
        self.input.as_ref().unwrap_or(&self.task_context).get()
    }

    /// The `handler_config` as JSON.
    pub fn raw_config(&self) -> &str {
        self.handler_config.get()
    }

    /// The outputs of the direct dependencies as JSON, by name.
    pub fn raw_results(&self) -> &str {
        self.previous_results.get()
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Steps {
    pub v: String,
    pub broker: String,
    pub epoch: u64,
    pub session: String,
    pub batch_id: String,
    pub protocol_version: String,
    pub steps: Vec<StepRequest>,
}

/// Why a broker asks a worker to stop a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    NotGranted,
    Timeout,
    TaskCancelled,
    Superseded,
}

/// `go` and `adopt`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ItemsMessage {
    pub v: String,
    pub broker: String,
    pub epoch: u64,
    pub session: String,
    pub items: Vec<Item>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Cancel {
    pub v: String,
    pub broker: String,
    pub epoch: u64,
    pub session: String,
    pub items: Vec<Item>,
    pub reason: CancelReason,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Ack {
    pub v: String,
    pub broker: String,
    pub epoch: u64,
    pub rids: Vec<u64>,
}

/// Why a broker rejects a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetCode {
    UnknownSession,
    Expired,
    Version,
    Unauthorized,
    Shutdown,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Reset {
    pub v: String,
    pub broker: String,
    pub epoch: u64,
    pub next: u64,
    pub code: ResetCode,
    #[serde(default)]
    pub versions: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Refused {
    pub v: String,
    pub broker: String,
    pub epoch: u64,
    pub code: String,
    pub message: String,
    #[serde(default)]
    pub refused: Option<String>,
    #[serde(default)]
    pub rid: Option<u64>,
}

/// Every message of a broker.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BrokerMessage {
    Here(Here),
    Welcome(Welcome),
    HeartbeatAck(HeartbeatAck),
    Steps(Steps),
    Go(ItemsMessage),
    Cancel(Cancel),
    Ack(Ack),
    Adopt(ItemsMessage),
    Reset(Reset),
    Refused(Refused),
}

/// The members of a message that cannot be read, as far as a refusal needs them.
#[derive(Debug, Deserialize)]
pub struct Remains {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub broker: String,
    #[serde(default)]
    pub session: String,
    #[serde(default)]
    pub batch_id: String,
    #[serde(default)]
    pub steps: Vec<StepRemains>,
}

#[derive(Debug, Deserialize)]
pub struct StepRemains {
    pub step_id: u64,
    pub delivery: u64,
}
