//! The session and the run slots behind stdin and stdout, for the conformance kit.
//!
//! Each line on stdin is one op, and each line on stdout its reply: `protocol/conformance/DRIVER.md` has both. The clock
//! is the time in the ops, and no socket, thread or handler is involved: the kit plays the broker and the handlers.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use serde_json::{json, Map, Value};

use crate::actions::{Action, Link, Run, NEVER};
use crate::protocol::codec;
use crate::protocol::messages::{ErrorDetail, Item, ResultMetadata, Status, StepResult};
use crate::runners::run_slots::{Call, RunSlots};
use crate::session::{Config, Offer, Session};

impl Call for Arc<Run> {
    fn offer(&self) -> usize {
        self.offer
    }
}

type Fault = Box<dyn std::error::Error>;

/// Answers each line until the input ends. A fault of the session is the reply to the op that caused it.
pub fn serve(lines: impl BufRead, mut replies: impl Write) -> std::io::Result<()> {
    let mut driver: Option<Driver> = None;
    for line in lines.lines() {
        let line = line?;
        let handled = catch_unwind(AssertUnwindSafe(|| handle(&mut driver, &line)));
        let reply = match handled {
            Ok(Ok(reply)) => reply,
            Ok(Err(fault)) => json!({ "error": fault.to_string() }),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                json!({ "error": text.unwrap_or_else(|| "panic".to_owned()) })
            }
        };
        serde_json::to_writer(&mut replies, &reply)?;
        replies.write_all(b"\n")?;
        replies.flush()?;
    }
    Ok(())
}

fn handle(driver: &mut Option<Driver>, line: &str) -> Result<Value, Fault> {
    let op: Value = serde_json::from_str(line)?;
    let now_ms = number(&op, "now_ms")?;
    let name = text(&op, "op")?;
    if name == "start" {
        *driver = Some(Driver::start(&op, now_ms)?);
    }
    let driver = driver.as_mut().ok_or("the first op is not `start`")?;
    match name {
        "start" | "tick" => {} // the reply has the actions that are due
        "receive" => driver.receive(&op, now_ms)?,
        "complete" => {
            let metadata = match op.get("metadata") {
                None | Some(Value::Null) => None,
                Some(metadata) => Some(serde_json::from_value::<ResultMetadata>(metadata.clone())?),
            };
            let output = serde_json::to_string(op.get("output").ok_or("`output` is missing")?)?;
            driver.finish(&op, Status::Completed, Some(output), None, metadata, now_ms)?;
        }
        "fail" => {
            let status = match op.get("status").and_then(Value::as_str) {
                Some("error") => Status::Error,
                _ => Status::Failed,
            };
            let error: ErrorDetail = serde_json::from_value(op.clone())?;
            driver.finish(&op, status, None, Some(error), None, now_ms)?;
        }
        "progress" => {
            let item = item(&op)?;
            if driver.running.contains_key(&item) {
                let total = op.get("total").and_then(Value::as_f64);
                let note = op.get("note").and_then(Value::as_str).map(str::to_owned);
                driver.session.progressed(item, number(&op, "done")?, total, note, now_ms);
            }
        }
        "quiet" => driver.session.quiet(now_ms),
        "full" => driver.session.full(op["is_full"].as_bool().ok_or("`is_full` is missing")?, now_ms),
        "drain" => driver.session.drain(now_ms),
        "expel" => {
            driver.session.expel();
        }
        unknown => return Err(format!("unknown op {unknown:?}").into()),
    }
    let actions = driver.actions(now_ms);
    let wake_at_ms = driver.session.wake_at();
    Ok(json!({
        "actions": actions,
        "wake_at_ms": if wake_at_ms == NEVER { Value::Null } else { json!(wake_at_ms.max(now_ms)) },
        "holding": driver.session.holding(now_ms),
    }))
}

struct Driver {
    session: Session,
    slots: RunSlots<Arc<Run>>,
    running: HashMap<Item, Arc<Run>>,
    begun: Vec<Value>, // runs begun since the last action that was written
}

impl Driver {
    fn start(op: &Value, now_ms: f64) -> Result<Self, Fault> {
        let mut offers = Vec::new();
        for offer in op["offers"].as_array().ok_or("`offers` is missing")? {
            offers.push(Offer {
                pattern: text(offer, "pattern")?.to_owned(),
                concurrency: offer["concurrency"].as_u64(),
                timeout_ms: offer["timeout_ms"].as_u64(),
                shadow_safe: offer["shadow_safe"].as_bool().unwrap_or(false),
            });
        }
        let slots = op["slots"].as_u64().ok_or("`slots` is missing")?;
        let mut config = Config::new(text(op, "worker")?, offers, slots);
        config.prefetch = op["prefetch"].as_u64();
        let text_or = |name: &str, default: &str| op[name].as_str().unwrap_or(default).to_owned();
        let number_or = |name: &str, default: u64| op[name].as_u64().unwrap_or(default);
        config.heartbeat_ms = number_or("heartbeat_ms", config.heartbeat_ms);
        config.max_message_bytes = number_or("max_message_bytes", config.max_message_bytes);
        config.accept_delay_ms = op["accept_delay_ms"].as_f64().unwrap_or(0.0);
        config.lang = text_or("lang", "rust");
        config.sdk = text_or("sdk", "");
        config.host = text_or("host", "");
        config.handler_version = text_or("handler_version", "");
        config.pid = number_or("pid", 0);
        config.pid_started = number_or("pid_started", 0);
        config.proof = op["proof"].as_bool().unwrap_or(false);
        config.has_curve = op["curve"].as_bool().unwrap_or(false);
        for (key, value) in op["labels"].as_object().unwrap_or(&Map::new()) {
            config.labels.insert(key.clone(), value.as_str().unwrap_or_default().to_owned());
        }
        // Never connected: the kit carries the frames.
        config.links = vec![Link::new("ipc://steps", "ipc://results")];
        if let Some(links) = op["links"].as_array().filter(|links| !links.is_empty()) {
            config.links.clear();
            for link in links {
                config.links.push(Link::new(text(link, "steps")?, text(link, "results")?));
            }
        }
        let slots = RunSlots::new(config.slots, &config.offers);
        let mut session = Session::new(config, || 0.5);
        session.start(now_ms);
        Ok(Self { session, slots, running: HashMap::new(), begun: Vec::new() })
    }

    fn receive(&mut self, op: &Value, now_ms: f64) -> Result<(), Fault> {
        let frame = match op["frame_base64"].as_str() {
            Some(encoded) => from_base64(encoded)?,
            None => text(op, "frame")?.as_bytes().to_vec(),
        };
        if let Ok((topic, body)) = codec::split(&frame) {
            self.session.receive(topic, body, now_ms);
        }
        Ok(())
    }

    /// Ends a run, and begins the one that gets its slot. A run that has not begun cannot end.
    fn finish(
        &mut self,
        op: &Value,
        status: Status,
        output: Option<String>,
        error: Option<ErrorDetail>,
        metadata: Option<ResultMetadata>,
        now_ms: f64,
    ) -> Result<(), Fault> {
        let item = item(op)?;
        if let Some(run) = self.running.remove(&item) {
            let following = self.slots.release(run.offer);
            self.session.finished(item, StepResult { item, status, output, error, metadata }, now_ms);
            self.begin(following, now_ms);
        }
        Ok(())
    }

    /// Does as a runner does: begins a run that has a slot, or gives its step back and begins the next one.
    fn begin(&mut self, mut following: Option<Arc<Run>>, now_ms: f64) {
        while let Some(run) = following {
            let (step_id, delivery) = run.item;
            if run.begin(now_ms) {
                self.running.insert(run.item, run);
                self.begun.push(json!({ "action": "run", "step_id": step_id, "delivery": delivery }));
                return;
            }
            following = self.slots.release(run.offer);
            self.session.give_back(run.item, now_ms);
        }
    }

    /// The due actions. A run is written when it begins, which may be long after its hand-over.
    fn actions(&mut self, now_ms: f64) -> Vec<Value> {
        let mut written = std::mem::take(&mut self.begun);
        for action in self.session.actions(now_ms) {
            match action {
                Action::Run(run) => {
                    for run in self.slots.add([run]) {
                        self.begin(Some(run), now_ms);
                    }
                    written.append(&mut self.begun);
                }
                action => written.extend(as_line(action)),
            }
        }
        written
    }
}

/// The action as the kit reads it. None: the kit has no use for this action.
fn as_line(action: Action) -> Option<Value> {
    Some(match action {
        Action::Send { topic, body } => {
            json!({ "action": "send", "frame": format!("{topic}{}", String::from_utf8_lossy(&body)) })
        }
        Action::CancelRun { item: (step_id, delivery), reason } => {
            json!({"action": "request_stop", "step_id": step_id, "delivery": delivery, "reason": reason.as_str()})
        }
        Action::Connect { link, server_key } => {
            json!({"action": "connect", "steps": link.steps, "results": link.results, "server_key": server_key})
        }
        Action::Disconnect { link } => json!({"action": "disconnect", "steps": link.steps, "results": link.results}),
        Action::Rebuild { link } => json!({"action": "rebuild", "steps": link.steps, "results": link.results}),
        Action::Quit => json!({"action": "quit"}),
        Action::Run(_) | Action::ResultTooLarge { .. } | Action::Log { .. } => return None,
    })
}

fn text<'a>(value: &'a Value, member: &str) -> Result<&'a str, Fault> {
    value[member].as_str().ok_or_else(|| format!("`{member}` is missing").into())
}

fn number(value: &Value, member: &str) -> Result<f64, Fault> {
    value[member].as_f64().ok_or_else(|| format!("`{member}` is missing").into())
}

fn item(op: &Value) -> Result<Item, Fault> {
    match (op["step_id"].as_u64(), op["delivery"].as_u64()) {
        (Some(step_id), Some(delivery)) => Ok((step_id, delivery)),
        _ => Err("`step_id` or `delivery` is missing".into()),
    }
}

fn from_base64(encoded: &str) -> Result<Vec<u8>, Fault> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for c in encoded.bytes().filter(|c| *c != b'=') {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err("not base64".into()),
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Ok(bytes)
}
