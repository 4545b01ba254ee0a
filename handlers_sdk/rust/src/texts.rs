//! Texts of handlers in a form that every broker accepts, without the values of secrets.

use crate::edge::redact;

pub(crate) const MESSAGE_CHARS_MAX: usize = 2000;
pub(crate) const CODE_CHARS_MAX: usize = 128;

/// The text without U+0000 and without values of secrets, cut to `chars_max` characters.
pub(crate) fn clean(text: &str, chars_max: usize) -> String {
    redact(text).chars().take(chars_max).map(|c| if c == '\0' { '\u{FFFD}' } else { c }).collect()
}

/// The same, but a text that was cut ends with `…`.
pub(crate) fn shortened(text: &str, chars_max: usize) -> String {
    let text = &*redact(text); // before the cut, which could leave a part of a value
    if text.chars().nth(chars_max).is_none() {
        return clean(text, chars_max);
    }
    let mut cut = clean(text, chars_max - 1);
    cut.push('…');
    cut
}

/// `12.5 s` as `12.5`, `12 s` as `12`.
pub(crate) fn seconds(ms: f64) -> String {
    format!("{}", (ms / 10.0).round() / 100.0)
}

/// Quotes a text as Python's `repr` does for plain texts: the same sentences in every SDK.
pub(crate) fn quoted(text: &str) -> String {
    if text.contains('\'') {
        format!("{text:?}")
    } else {
        format!("'{}'", text.escape_debug().to_string().replace("\\\"", "\""))
    }
}
