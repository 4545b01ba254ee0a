//! The frames of the protocol: limits, topics, patterns, strict JSON, messages, and their codec.

pub mod codec;
pub mod limits;
pub mod messages;
pub mod patterns;
pub mod strict_json;
pub mod topics;

use std::fmt;

/// A message that breaks the protocol. `code` is one of SPEC section 18.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidMessage {
    /// The code of the refusal.
    pub code: &'static str,
    /// The place and the reason, for people.
    pub message: String,
}

impl InvalidMessage {
    /// Makes a refusal with this code and reason.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl fmt::Display for InvalidMessage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            out.write_str(self.code)
        } else {
            write!(out, "{}: {}", self.code, self.message)
        }
    }
}

impl std::error::Error for InvalidMessage {}
