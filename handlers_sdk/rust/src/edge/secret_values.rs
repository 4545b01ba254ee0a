//! The source of a worker's secrets, and the replacement of references in a step.
//!
//! A reference counts in `handler_config`, and in the input of the handler. Outputs of other steps are data: a reference
//! in `previous_results` stays a reference.

use serde_json::value::RawValue;

use super::node::Node;
use super::{redaction, secret_files};
use crate::protocol::messages::StepRequest;

pub(crate) const DIRECTORY: &str = "STEPWIRE_SECRETS_DIR";

const MEMBER: &str = "$secret";
const NAME_CHARS_MAX: usize = 200;
const SHOWN_CHARS_MAX: usize = 60;
const NAME_FORM: &str =
    "names of letters, digits, _, - and ., joined by /, at most 200 characters; none begins with . or -";

/// The secret has no value that may be used. The message never holds the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretUnavailable {
    pub message: String,
    /// The function that resolves secrets has failed.
    pub is_service_at_fault: bool,
}

impl SecretUnavailable {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_service_at_fault: false }
    }
}

/// Returns the value of a secret: None for an unknown name, the type of the error if the function failed.
pub(crate) type Resolver = Box<dyn Fn(&str) -> Result<Option<String>, String> + Send + Sync>;

/// Where the values of secrets come from.
pub(crate) enum Source {
    None,
    Directory(String),
    Function(Resolver),
}

impl Source {
    pub fn value_of(&self, name: &str) -> Result<String, SecretUnavailable> {
        let unavailable = |why: &str| Err(SecretUnavailable::new(format!("secret '{name}': {why}")));
        let resolver = match self {
            Source::Directory(directory) => return secret_files::read_secret(directory, name),
            Source::Function(resolver) => resolver,
            Source::None => {
                return unavailable(&format!(
                    "this worker reads no secrets: set {DIRECTORY} to a directory of files, or pass Worker::secrets"
                ));
            }
        };
        let returned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| resolver(name)));
        match returned.unwrap_or_else(|_| Err("panic".to_owned())) {
            Ok(Some(value)) if value.is_empty() => unavailable("the resolver of this worker returned no text"),
            Ok(Some(value)) => Ok(value),
            Ok(None) => unavailable("the resolver of this worker does not know it"),
            Err(kind) => Err(SecretUnavailable {
                message: format!("secret '{name}': the resolver of this worker failed with {kind}"),
                is_service_at_fault: true,
            }),
        }
    }
}

/// False if this JSON certainly does not have this key. A key may also be written with escapes.
pub(crate) fn may_hold(text: &str, key: &str) -> bool {
    text.contains(key) || text.contains("\\u00")
}

/// False if the step certainly names no secret.
pub(crate) fn may_need(step: &StepRequest) -> bool {
    may_hold(step.raw_config(), MEMBER) || may_hold(step.raw_input(), MEMBER)
}

/// Puts the value in the place of each reference in the step. Returns the names and the values.
///
/// Each secret is read once for a step, so its values agree with each other, and again for the next step, so a rotated
/// secret is used at once.
pub(crate) fn resolve(step: &mut StepRequest, source: &Source) -> Result<Vec<(String, String)>, SecretUnavailable> {
    let input = step.input.as_mut().unwrap_or(&mut step.task_context);
    let mut found = Vec::new();
    for raw in [&mut step.handler_config, input] {
        if may_hold(raw.get(), MEMBER) {
            let node = Node::read(raw.get()).ok_or_else(|| SecretUnavailable::new("the step cannot be read"))?;
            check(&node)?; // the broker checks references, but not the outputs of which it makes an `input`
            found.push((raw, node));
        }
    }
    let mut values = Vec::new();
    for (raw, node) in found {
        let text = replaced(node, source, &mut values)?.json();
        *raw = RawValue::from_string(text).expect("the SDK writes JSON");
    }
    redaction::remember(&values);
    Ok(values)
}

fn check(node: &Node) -> Result<(), SecretUnavailable> {
    match node {
        Node::List(list) => list.iter().try_for_each(check),
        Node::Object(members) => {
            if let Some(name) = node.get(MEMBER) {
                if members.len() > 1 {
                    return Err(SecretUnavailable::new(format!(
                        "a reference to a secret has the one member {MEMBER}: move the others out of this object"
                    )));
                }
                let is_name = name.text().map_or(false, is_name);
                if !is_name {
                    let shown = shown(name);
                    return Err(SecretUnavailable::new(format!("{shown} is not the name of a secret: {NAME_FORM}")));
                }
            }
            members.iter().try_for_each(|(_, value)| check(value))
        }
        _ => Ok(()),
    }
}

fn replaced(node: Node, source: &Source, values: &mut Vec<(String, String)>) -> Result<Node, SecretUnavailable> {
    Ok(match node {
        Node::List(list) => {
            Node::List(list.into_iter().map(|item| replaced(item, source, values)).collect::<Result<_, _>>()?)
        }
        Node::Object(members) => {
            if let [(key, Node::Text(name))] = &members[..] {
                if key == MEMBER {
                    if let Some((_, value)) = values.iter().find(|(known, _)| known == name) {
                        return Ok(Node::Text(value.clone()));
                    }
                    let value = source.value_of(name)?;
                    values.push((name.clone(), value.clone()));
                    return Ok(Node::Text(value));
                }
            }
            let replace = |(key, value)| Ok((key, replaced(value, source, values)?));
            Node::Object(members.into_iter().map(replace).collect::<Result<_, SecretUnavailable>>()?)
        }
        other => other,
    })
}

fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let mut characters = part.chars();
        characters.next().map_or(false, |first| first.is_ascii_alphanumeric() || first == '_')
            && characters.all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
    };
    name.len() <= NAME_CHARS_MAX && name.split('/').all(is_part)
}

fn shown(name: &Node) -> String {
    match name.text() {
        None => "a value that is no string".to_owned(),
        Some(name) if name.chars().count() <= SHOWN_CHARS_MAX => format!("'{name}'"),
        Some(name) => format!("'{}…'", name.chars().take(SHOWN_CHARS_MAX).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::tests::{members_of, step, vectors};

    fn function(secrets: Vec<(String, String)>) -> Source {
        let find = move |name: &str| secrets.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        Source::Function(Box::new(move |name| Ok(find(name))))
    }

    #[test]
    fn names_of_secrets_are_valid_or_not() {
        for vector in vectors("secrets.json")["names"].as_array().unwrap() {
            assert_eq!(is_name(vector["name"].as_str().unwrap()), vector["valid"] == true, "{vector}");
        }
    }

    #[test]
    fn references_are_replaced_or_refused_in_their_sentence() {
        for vector in vectors("secrets.json")["resolve"].as_array().unwrap() {
            let mut step = step(&vector["value"].to_string());
            let found = resolve(&mut step, &function(members_of(&vector["secrets"])));
            match vector["sentence"].as_str() {
                Some(sentence) => assert_eq!(found.unwrap_err().message, sentence),
                None => {
                    found.unwrap();
                    let context: serde_json::Value = serde_json::from_str(step.task_context.get()).unwrap();
                    assert_eq!(context, vector["resolved"]);
                }
            }
        }
    }

    #[test]
    fn a_function_without_a_value_is_named_in_a_sentence() {
        for vector in vectors("secrets.json")["resolver"].as_array().unwrap() {
            let returned = vector["returns"].as_str().map(str::to_owned);
            let has_failed = vector["raises"].is_string();
            let source = match vector["source"] == false {
                true => Source::None,
                false => Source::Function(Box::new(move |_| match has_failed {
                    true => Err("ParseIntError".to_owned()),
                    false => Ok(returned.clone()),
                })),
            };
            let sentence = vector["sentence"].as_str().unwrap();
            let sentence = sentence.replace("{error}", "ParseIntError").replace("{argument}", "Worker::secrets");
            let found = source.value_of("card").unwrap_err();
            assert_eq!((&*found.message, found.is_service_at_fault), (&*sentence, vector["category"].is_string()));
        }
    }

    #[test]
    fn an_input_is_resolved_in_the_place_of_the_context_and_results_never() {
        let mut step = step(r#"{"a":{"$secret":"none"}}"#);
        step.input = RawValue::from_string(r#"{"b":{"$secret":"card"}}"#.to_owned()).ok();
        step.previous_results = RawValue::from_string(r#"{"c":{"$secret":"card"}}"#.to_owned()).unwrap();
        resolve(&mut step, &function(vec![("card".to_owned(), "4929".to_owned())])).unwrap();
        assert_eq!(step.raw_input(), r#"{"b":"4929"}"#);
        assert_eq!(step.raw_results(), r#"{"c":{"$secret":"card"}}"#);
    }
}
