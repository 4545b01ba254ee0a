//! Decodes frames of brokers into messages, and encodes messages of a worker. No other module handles the bytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::limits::{INTEGER_MAX, NAME_BYTES_MAX, PROTOCOL_LEVEL_1, TRACESTATE_MAX};
use super::messages::{BrokerMessage, Endpoints, Remains, ResultsHead, StepRemains, StepRequest, StepResult, Steps};
use super::{strict_json, topics, InvalidMessage};

/// The JSON of a message, as it follows the topic.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages are maps with string keys")
}

/// Splits a frame into its topic with the space, and its JSON, which starts after the first space.
pub fn split(frame: &[u8]) -> Result<(&str, &[u8]), InvalidMessage> {
    let space = frame.iter().position(|c| *c == b' ').ok_or_else(|| {
        let code = if frame.is_empty() { "empty" } else { "no_topic" };
        InvalidMessage::new(code, "the frame has no space after its topic")
    })?;
    let topic = std::str::from_utf8(&frame[..=space]).map_err(|_| InvalidMessage::new("unknown_topic", ""))?;
    Ok((topic, &frame[space + 1..]))
}

/// Decodes a message of a broker. The caller ignores `unknown_type`.
pub fn decode_broker(body: &[u8]) -> Result<BrokerMessage, InvalidMessage> {
    strict_json::check_object(body)?;
    let kind = from_json::<Kind>(body)?.kind;
    let message = match &*kind {
        "here" => BrokerMessage::Here(from_json(body)?),
        "welcome" => BrokerMessage::Welcome(from_json(body)?),
        "heartbeat_ack" => BrokerMessage::HeartbeatAck(from_json(body)?),
        "steps" => {
            let mut message: Steps = from_json(body)?;
            if may_need_opening(body) {
                message.steps.iter_mut().for_each(|step| step.may_need_opening = true);
            }
            BrokerMessage::Steps(message)
        }
        "go" => BrokerMessage::Go(from_json(body)?),
        "cancel" => BrokerMessage::Cancel(from_json(body)?),
        "ack" => BrokerMessage::Ack(from_json(body)?),
        "adopt" => BrokerMessage::Adopt(from_json(body)?),
        "reset" => BrokerMessage::Reset(from_json(body)?),
        "refused" => BrokerMessage::Refused(from_json(body)?),
        _ => {
            let shown: String = kind.chars().take(32).collect();
            return Err(InvalidMessage::new("unknown_type", format!("type {shown:?}")));
        }
    };
    check_rules(&message)?;
    Ok(message)
}

/// Searches a whole message once for the beginning of `$secret` and `$sealed`, so that most steps cost nothing more. A key
/// may also be written with escapes.
fn may_need_opening(body: &[u8]) -> bool {
    let has = |part: &[u8]| body.windows(part.len()).any(|window| window == part);
    // Most messages have neither character, and a search for one character is many times as fast.
    body.contains(&b'$') && has(b"$se") || body.contains(&b'\\') && has(b"\\u00")
}

/// What can still be read of a `steps` message that breaks the protocol.
pub fn decode_remains(body: &[u8]) -> Option<Remains> {
    let text = String::from_utf8_lossy(body); // bytes that are not UTF-8 may be in any other member
    let remains: Remains = serde_json::from_str(&text).ok()?;
    let own = [&remains.kind, &remains.broker, &remains.session, &remains.batch_id];
    let is_whole = !own.into_iter().any(|member| member.contains('\u{FFFD}'));
    let are_ids = |step: &StepRemains| [step.step_id, step.delivery].iter().all(|id| (1..=INTEGER_MAX).contains(id));
    (is_whole && remains.steps.iter().all(are_ids)).then_some(remains)
}

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
}

fn from_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, InvalidMessage> {
    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        let code = if text.starts_with("missing field `v`") { "missing_version" } else { "bad_field" };
        InvalidMessage::new(code, text)
    })
}

// -- rules that types cannot express ----------------------------------------------------------------------------------

fn check_rules(message: &BrokerMessage) -> Result<(), InvalidMessage> {
    use BrokerMessage as M;
    let (v, broker, session) = match message {
        M::Here(m) => (&m.v, &m.broker, None),
        M::Welcome(m) => (&m.v, &m.broker, Some(&m.session)),
        M::HeartbeatAck(m) => (&m.v, &m.broker, Some(&m.session)),
        M::Steps(m) => (&m.v, &m.broker, Some(&m.session)),
        M::Go(m) | M::Adopt(m) => (&m.v, &m.broker, Some(&m.session)),
        M::Cancel(m) => (&m.v, &m.broker, Some(&m.session)),
        M::Ack(m) => (&m.v, &m.broker, None),
        M::Reset(m) => (&m.v, &m.broker, None),
        M::Refused(m) => (&m.v, &m.broker, None),
    };
    if !topics::is_broker(broker) {
        return Err(InvalidMessage::new("bad_field", "`broker` is not the name of a broker"));
    }
    if session.map_or(false, |session| topics::session_parts(session).is_none()) {
        return Err(InvalidMessage::new("bad_field", "`session` is not a session"));
    }
    match message {
        M::Welcome(m) if m.lease_ms == 0 || m.max_message_bytes == 0 => {
            return Err(InvalidMessage::new("bad_field", "`lease_ms` and `max_message_bytes` must be at least 1"));
        }
        M::Steps(m) => {
            let is_id = |id: u64| id >= 1;
            let has_long_state = |step: &StepRequest| {
                step.metadata.tracestate.as_ref().map_or(false, |state| state.chars().count() > TRACESTATE_MAX)
            };
            if !(1..=NAME_BYTES_MAX).contains(&m.batch_id.chars().count()) {
                return Err(InvalidMessage::new("bad_field", "`batch_id` must have 1 to 128 characters"));
            }
            if m.steps.iter().any(has_long_state) {
                return Err(InvalidMessage::new("bad_field", "`tracestate` is too long"));
            }
            if !m.steps.iter().all(|step| is_id(step.step_id) && is_id(step.task_id) && is_id(step.delivery)) {
                return Err(InvalidMessage::new("bad_field", "an id of a step must be at least 1"));
            }
        }
        M::Welcome(m) => check_keys(&m.brokers)?,
        M::HeartbeatAck(m) => check_keys(m.brokers.as_deref().unwrap_or_default())?,
        M::Go(m) | M::Adopt(m) => check_items(&m.items)?,
        M::Cancel(m) => check_items(&m.items)?,
        M::Ack(m) if m.rids.contains(&0) => {
            return Err(InvalidMessage::new("bad_field", "a rid must be at least 1"));
        }
        _ => {}
    }
    check_version(v)
}

fn check_keys(brokers: &[Endpoints]) -> Result<(), InvalidMessage> {
    if brokers.iter().all(|entry| entry.server_key.as_deref().map_or(true, topics::is_curve_key)) {
        return Ok(());
    }
    Err(InvalidMessage::new("bad_field", "`server_key` is no CURVE key"))
}

fn check_items(items: &[(u64, u64)]) -> Result<(), InvalidMessage> {
    if items.len() > super::limits::BATCH_ITEMS_MAX || items.iter().any(|(step, delivery)| *step == 0 || *delivery == 0)
    {
        return Err(InvalidMessage::new("bad_field", "`items` must be at most 1000 items of ids of at least 1"));
    }
    Ok(())
}

fn check_version(v: &str) -> Result<(), InvalidMessage> {
    let is_known = v == PROTOCOL_LEVEL_1
        || v.strip_prefix("2.")
            .map_or(false, |minor| (1..=4).contains(&minor.len()) && minor.bytes().all(|c| c.is_ascii_digit()));
    if is_known {
        return Ok(());
    }
    let shown: String = v.chars().take(32).collect();
    Err(InvalidMessage::new("unknown_version", format!("v is {shown:?}, supported: {PROTOCOL_LEVEL_1}")))
}

// -- results ----------------------------------------------------------------------------------------------------------

/// One result, as an element of the list of a results message.
pub fn encode_result(result: &StepResult) -> Vec<u8> {
    let output = result.output.as_deref().unwrap_or("null");
    let mut body = Vec::with_capacity(output.len() + 160);
    let status = match result.status {
        super::messages::Status::Completed => "completed",
        super::messages::Status::Failed => "failed",
        super::messages::Status::Error => "error",
    };
    let (step_id, delivery) = result.item;
    body.extend_from_slice(
        format!(
            "{{\"step_id\":{step_id},\"delivery\":{delivery},\"status\":\"{status}\",\"output\":{output},\"error\":"
        )
        .as_bytes(),
    );
    append(&mut body, &result.error);
    body.extend_from_slice(b",\"metadata\":");
    append(&mut body, &result.metadata);
    body.push(b'}');
    body
}

fn append<T: Serialize>(body: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(body, value).expect("plain members can be written");
}

/// The members of a results message up to the first result.
pub fn encode_results_head(head: &ResultsHead<'_>) -> Vec<u8> {
    let mut body = encode(head);
    body.pop();
    body.extend_from_slice(b",\"results\":[");
    body
}

/// Decodes JSON of a handler's input, its configuration, or results of dependencies.
pub fn decode_data<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text)
}
