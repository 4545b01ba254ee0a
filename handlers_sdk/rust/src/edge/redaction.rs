//! Removes the values of secrets from texts that leave this process: errors, backtraces, progress and log lines.
//!
//! The values of all secrets that this process has resolved count, whichever run a text comes from.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::RwLock;

use super::node::Node;

const VALUES_MAX: usize = 1_000; // the latest resolved values; earlier ones are forgotten
const LINE_CHARS_MIN: usize = 4; // of one line of a value with several lines
const OUTPUT_CHARS_MIN: usize = 8; // of a value that is removed from an output: a shorter one may be part of any data

/// The texts in which a value occurs: itself, its lines, and both as a JSON string has them.
fn forms_of(value: &str) -> Vec<String> {
    let mut plain = vec![value, value.trim()];
    let lines: Vec<&str> = value.split(&['\n', '\r'][..]).map(str::trim).collect();
    if lines.len() > 1 {
        plain.extend(lines.into_iter().filter(|line| line.chars().count() >= LINE_CHARS_MIN));
    }
    let escaped = |text: &str| {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        text.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
    };
    plain.iter().filter(|text| !text.is_empty()).flat_map(|text| [(*text).to_owned(), escaped(text)]).collect()
}

/// The values to remove, and what replaces each: `[secret stripe/live]`.
#[derive(Debug, Default)]
pub(crate) struct Redactor {
    names: Vec<(String, String)>, // value and name, the latest last
    forms: Vec<(String, usize)>,  // with the number of the value; the longest first
}

impl Redactor {
    pub const fn new() -> Self {
        Self { names: Vec::new(), forms: Vec::new() }
    }

    /// Remove this value from now on. A value that is added again with another name counts as the latest.
    pub fn add(&mut self, name: &str, value: &str) {
        if value.is_empty() || self.knows(name, value) {
            return;
        }
        self.names.retain(|(known, _)| known != value);
        self.names.push((value.to_owned(), name.to_owned()));
        if self.names.len() > VALUES_MAX {
            self.names.remove(0);
        }
        let of_value = |(number, (value, _)): (usize, &(String, String))| -> Vec<(String, usize)> {
            forms_of(value).into_iter().map(|form| (form, number)).collect()
        };
        self.forms = self.names.iter().enumerate().flat_map(of_value).collect();
        self.forms.reverse(); // of two equal forms, that of the latest value counts
        self.forms.sort_by_key(|(form, _)| std::cmp::Reverse(form.len()));
    }

    fn knows(&self, name: &str, value: &str) -> bool {
        self.names.iter().any(|(known, by)| known == value && by == name)
    }

    pub fn is_active(&self) -> bool {
        !self.forms.is_empty()
    }

    /// The text with the names of secrets in the place of their values.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut out = String::new();
        let mut copied = 0;
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            match self.forms.iter().find(|(form, _)| rest.starts_with(&**form)) {
                Some((form, number)) => {
                    out.push_str(&text[copied..at]);
                    out.push_str(&format!("[secret {}]", self.names[*number].1));
                    at += form.len();
                    copied = at;
                }
                None => at += rest.chars().next().map_or(1, char::len_utf8),
            }
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        out.push_str(&text[copied..]);
        Cow::Owned(out)
    }

    /// A copy of a value without the secrets' values in its strings and keys.
    fn redacted(&self, node: Node) -> Node {
        match node {
            Node::Text(text) => Node::Text(self.redact(&text).into_owned()),
            Node::List(list) => Node::List(list.into_iter().map(|item| self.redacted(item)).collect()),
            Node::Object(members) => Node::Object(
                members
                    .into_iter()
                    .map(|(key, value)| (self.redact(&key).into_owned(), self.redacted(value)))
                    .collect(),
            ),
            other => other,
        }
    }
}

static OF_PROCESS: RwLock<Redactor> = RwLock::new(Redactor::new());
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// Remove these values, each with the name of its secret, from all texts of this process from now on.
pub(crate) fn remember(values: &[(String, String)]) {
    let is_known = {
        let known = OF_PROCESS.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        values.iter().all(|(name, value)| known.knows(name, value))
    };
    if !is_known {
        let mut redactor = OF_PROCESS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        values.iter().for_each(|(name, value)| redactor.add(name, value));
        IS_ACTIVE.store(true, Ordering::SeqCst);
    }
}

/// The text without the values of secrets that this process has resolved.
pub(crate) fn redact(text: &str) -> Cow<'_, str> {
    if !IS_ACTIVE.load(Ordering::SeqCst) {
        return Cow::Borrowed(text);
    }
    OF_PROCESS.read().unwrap_or_else(|poisoned| poisoned.into_inner()).redact(text)
}

/// The output with the names of secrets in the place of these values, if they are long enough.
pub(crate) fn without_values(output: String, values: &[(String, String)]) -> String {
    let mut redactor = Redactor::default();
    for (name, value) in values.iter().filter(|(_, value)| value.chars().count() >= OUTPUT_CHARS_MIN) {
        redactor.add(name, value);
    }
    match Node::read(&output) {
        Some(node) if redactor.is_active() => redactor.redacted(node).json(),
        _ => output,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::tests::{members_of, vectors};

    #[test]
    fn texts_lose_the_values() {
        for vector in vectors("secrets.json")["redact"].as_array().unwrap() {
            let mut redactor = Redactor::default();
            for (name, value) in members_of(&vector["secrets"]) {
                redactor.add(&name, &value);
            }
            assert_eq!(redactor.redact(vector["text"].as_str().unwrap()), vector["redacted"].as_str().unwrap());
        }
    }

    #[test]
    fn outputs_lose_the_values() {
        for vector in vectors("secrets.json")["output"].as_array().unwrap() {
            let output = without_values(vector["output"].to_string(), &members_of(&vector["secrets"]));
            assert_eq!(serde_json::from_str::<serde_json::Value>(&output).unwrap(), vector["redacted"]);
        }
    }

    #[test]
    fn a_redactor_keeps_the_latest_values_and_is_bounded() {
        let names = (0..VALUES_MAX).map(|n| (format!("value-{n:06}"), format!("n{n}"))).collect();
        let mut redactor = Redactor { names, ..Redactor::default() };
        redactor.add("last", "value-last");
        assert_eq!(redactor.redact("value-000000 value-000001"), "value-000000 [secret n1]");
    }
}
