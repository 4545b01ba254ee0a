//! Sealed steps at a worker: the handler works with plaintext, and only sealed outputs and errors leave the worker.
//!
//! A step is sealed if its context is. The broker stores no unsealed output of such a step.

use serde_json::value::RawValue;

use super::node::Node;
use super::secret_values::may_hold;
use super::SealKeys;
use crate::protocol::messages::{ErrorDetail, Status, StepRequest, StepResult};

pub(crate) const FILE: &str = "STEPWIRE_SEAL_KEYS_FILE";
pub(crate) const MEMBER: &str = "$sealed";
#[cfg(feature = "sealed")]
pub(crate) const VERSION: &str = "v1";

const ERROR_MESSAGE: &str = "the error is sealed: stepwire task show --unseal prints it";
const ERROR_BYTES_MAX: usize = 5_000; // of an error's text as JSON: sealed, it fits into the 8 KiB that a broker stores
const MESSAGE_CHARS_MAX: usize = 1_000;
const WORD_CHARS_MAX: usize = 64;

/// The payload cannot be unsealed. The text holds nothing of the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotUnsealed(pub String);

/// The task to which a sealed payload belongs: its namespace, workflow and idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SealedTask {
    pub namespace: String,
    pub workflow: String,
    pub key: String,
}

/// False if this JSON is certainly no sealed payload.
pub(crate) fn may_be_sealed(text: &str) -> bool {
    text.starts_with('{') && may_hold(text, MEMBER)
}

/// The task for which the context of this step was sealed; None if it is not sealed.
pub(crate) fn task_of(step: &StepRequest) -> Result<Option<SealedTask>, NotUnsealed> {
    let text = step.task_context.get();
    let node = match may_be_sealed(text).then(|| Node::read(text)).flatten() {
        Some(node) if node.get(MEMBER).is_some() => node,
        _ => return Ok(None),
    };
    let name = |name| node.get("task").and_then(|task| task.get(name)).and_then(Node::text).map(str::to_owned);
    match (name("namespace"), name("workflow"), name("key")) {
        (Some(namespace), Some(workflow), Some(key)) => Ok(Some(SealedTask { namespace, workflow, key })),
        _ => Err(NotUnsealed("the context is sealed, and does not name its task".to_owned())),
    }
}

/// Replaces the context of a step, and the outputs of the steps that it depends on, by their plaintext. An `input` stays
/// as it is, because it is made of clear members.
pub(crate) fn unseal(step: &mut StepRequest, task: &SealedTask, keys: &SealKeys) -> Result<(), NotUnsealed> {
    let no_json = || NotUnsealed("the step cannot be read".to_owned());
    let raw = |text: String| RawValue::from_string(text).map_err(|_| no_json());
    let context = Node::read(step.task_context.get()).ok_or_else(no_json)?;
    let context = keys.unseal("context", task, "", &context)?;
    let mut outputs = Node::read(step.previous_results.get()).ok_or_else(no_json)?;
    if let Node::Object(members) = &mut outputs {
        for (name, output) in members.iter_mut().filter(|(_, output)| output.get(MEMBER).is_some()) {
            let plaintext = keys.unseal("output", task, name, output)?;
            *output = Node::read(&plaintext).ok_or_else(no_json)?;
        }
    }
    step.task_context = raw(context)?;
    step.previous_results = raw(outputs.json())?;
    Ok(())
}

/// The result with a sealed output or error. `code` and `category` stay readable if they are words.
pub(crate) fn sealed(step_name: &str, task: &SealedTask, keys: &SealKeys, mut result: StepResult) -> StepResult {
    if result.status == Status::Completed {
        let output = result.output.as_deref().unwrap_or("null");
        result.output = Some(keys.seal("output", task, step_name, output));
    } else if let Some(error) = &mut result.error {
        let lines = error.backtrace.take().unwrap_or_default();
        let plaintext = error_plaintext(&error.message, &lines);
        *error = ErrorDetail {
            message: ERROR_MESSAGE.to_owned(),
            code: error.code.take().filter(|code| is_word(code)),
            category: error.category.take().filter(|category| is_word(category)),
            backtrace: Some(vec![keys.seal("error", task, step_name, &plaintext)]),
            retryable: error.retryable,
            retry_after_ms: error.retry_after_ms,
        };
    }
    result
}

/// At most ERROR_BYTES_MAX bytes: lines at the beginning of the backtrace are left out.
fn error_plaintext(message: &str, lines: &[String]) -> String {
    let mut characters: Vec<char> = message.chars().take(MESSAGE_CHARS_MAX).collect();
    let mut first = 0;
    loop {
        let text = |text: &str| Node::Text(text.to_owned());
        let plaintext = Node::Object(vec![
            ("message".to_owned(), Node::Text(characters.iter().collect())),
            ("backtrace".to_owned(), Node::List(lines[first..].iter().map(|line| text(line)).collect())),
        ])
        .json();
        if plaintext.len() <= ERROR_BYTES_MAX {
            return plaintext;
        }
        if first == lines.len() {
            characters.truncate(characters.len() / 2);
        } else {
            first += 1;
        }
    }
}

fn is_word(text: &str) -> bool {
    (1..=WORD_CHARS_MAX).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.:-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_sealed_error_is_cut_at_its_beginning() {
        let lines: Vec<String> = (0..100).map(|number| format!("{number:04} {}", "x".repeat(100))).collect();
        let plaintext = error_plaintext(&"é".repeat(2_000), &lines);
        let text: serde_json::Value = serde_json::from_str(&plaintext).unwrap();
        assert!(plaintext.len() <= ERROR_BYTES_MAX);
        assert_eq!(text["message"].as_str().unwrap().chars().count(), MESSAGE_CHARS_MAX);
        assert!(text["backtrace"].as_array().unwrap().last().unwrap().as_str().unwrap().starts_with("0099 "));
        assert!(error_plaintext(&"\u{1}".repeat(1_000), &[]).len() <= ERROR_BYTES_MAX);
    }

    #[test]
    fn a_word_stays_readable_and_any_other_text_does_not() {
        assert!(is_word("card_declined") && is_word("std::io::Error"));
        assert!(!is_word("A. Lovelace") && !is_word("") && !is_word(&"x".repeat(65)));
    }
}
