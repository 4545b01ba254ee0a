//! The rules of JSON that every language can read and every database can store (SPEC section 3).
//!
//! One pass over the bytes, without recursion and without copies: it checks the grammar, depth, integers, duplicate keys,
//! U+0000 and surrogates. `serde_json` then decodes the text, and need not be strict itself.

use std::borrow::Cow;

use super::limits::{CONTAINERS_MAX, DEPTH_MAX, INTEGER_MAX};
use super::InvalidMessage;

const PAIRWISE_MAX: usize = 8; // keys of an object that are compared with each other; more are sorted

/// Checks one JSON value, which fills the whole text.
pub fn check(body: &[u8]) -> Result<(), InvalidMessage> {
    check_at_depth(body, 0)
}

/// The same for a value that a message will hold `outer` levels deep.
pub fn check_at_depth(body: &[u8], outer: usize) -> Result<(), InvalidMessage> {
    if let Err(error) = std::str::from_utf8(body) {
        return Err(InvalidMessage::new("not_utf8", format!("byte {} is not UTF-8", error.valid_up_to())));
    }
    Scanner { body, at: 0, keys: Vec::new(), containers: 0 }.document(outer)
}

/// Checks a message: one JSON object.
pub fn check_object(body: &[u8]) -> Result<(), InvalidMessage> {
    if body.is_empty() {
        return Err(InvalidMessage::new("empty", ""));
    }
    check(body)?;
    match body.iter().find(|c| !is_space(**c)) {
        Some(b'{') => Ok(()),
        _ => Err(InvalidMessage::new("not_an_object", "the JSON is not an object")),
    }
}

struct Scanner<'a> {
    body: &'a [u8],
    at: usize,
    keys: Vec<Cow<'a, [u8]>>, // of all open objects
    containers: usize,
}

/// An open array, or an open object with the number of keys before its own.
enum Open {
    Array,
    Object(usize),
}

fn is_space(c: u8) -> bool {
    matches!(c, b' ' | b'\t' | b'\n' | b'\r')
}

impl<'a> Scanner<'a> {
    fn document(&mut self, outer: usize) -> Result<(), InvalidMessage> {
        let mut open: Vec<Open> = Vec::with_capacity(8);
        loop {
            // A value begins here.
            self.skip_spaces();
            let mut has_ended = true;
            match self.peek() {
                Some(c @ (b'{' | b'[')) => {
                    self.at += 1;
                    self.containers += 1;
                    if self.containers > CONTAINERS_MAX {
                        return Err(InvalidMessage::new("too_large", format!("more than {CONTAINERS_MAX} containers")));
                    }
                    if outer + open.len() >= DEPTH_MAX {
                        return Err(InvalidMessage::new("too_deep", format!("the nesting is deeper than {DEPTH_MAX}")));
                    }
                    self.skip_spaces();
                    if c == b'[' {
                        if self.peek() == Some(b']') {
                            self.at += 1;
                        } else {
                            open.push(Open::Array);
                            has_ended = false;
                        }
                    } else if self.peek() == Some(b'}') {
                        self.at += 1;
                    } else {
                        open.push(Open::Object(self.keys.len()));
                        self.key()?;
                        has_ended = false;
                    }
                }
                Some(b'"') => {
                    self.string(false)?;
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                Some(b'N') if self.rest().starts_with(b"NaN") => return Err(not_a_number()),
                Some(b'I') if self.rest().starts_with(b"Infinity") => return Err(not_a_number()),
                _ => return Err(self.malformed()),
            }
            if !has_ended {
                continue;
            }
            // The value has ended: close what ends with it.
            loop {
                self.skip_spaces();
                match (open.last(), self.peek()) {
                    (None, None) => return Ok(()),
                    (Some(Open::Array), Some(b',')) => {
                        self.at += 1;
                        break;
                    }
                    (Some(Open::Object(_)), Some(b',')) => {
                        self.at += 1;
                        self.skip_spaces();
                        self.key()?;
                        break;
                    }
                    (Some(Open::Array), Some(b']')) => {}
                    (Some(Open::Object(first)), Some(b'}')) => {
                        let first = *first;
                        refuse_duplicates(&mut self.keys[first..])?;
                        self.keys.truncate(first);
                    }
                    _ => return Err(self.malformed()),
                }
                self.at += 1;
                open.pop();
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    fn rest(&self) -> &'a [u8] {
        &self.body[self.at..]
    }

    fn skip_spaces(&mut self) {
        while self.peek().map_or(false, is_space) {
            self.at += 1;
        }
    }

    fn malformed(&self) -> InvalidMessage {
        InvalidMessage::new("not_json", format!("JSON is malformed (byte {})", self.at))
    }

    fn word(&mut self, word: &[u8]) -> Result<(), InvalidMessage> {
        if !self.rest().starts_with(word) {
            return Err(self.malformed());
        }
        self.at += word.len();
        Ok(())
    }

    fn key(&mut self) -> Result<(), InvalidMessage> {
        if self.peek() != Some(b'"') {
            return Err(self.malformed());
        }
        let key = self.string(true)?;
        self.keys.push(key);
        self.skip_spaces();
        if self.peek() != Some(b':') {
            return Err(self.malformed());
        }
        self.at += 1;
        Ok(())
    }

    /// Reads a string. Returns its bytes without escapes if it is a key.
    fn string(&mut self, is_key: bool) -> Result<Cow<'a, [u8]>, InvalidMessage> {
        let start = self.at + 1;
        self.at = start;
        let mut has_escape = false;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    has_escape = true;
                    self.escape()?;
                }
                Some(c) if c >= 0x20 => self.at += 1,
                _ => return Err(self.malformed()),
            }
        }
        let raw = &self.body[start..self.at];
        self.at += 1;
        if is_key && has_escape {
            let quoted = &self.body[start - 1..self.at];
            let key: String = serde_json::from_slice(quoted).map_err(|_| self.malformed())?;
            return Ok(Cow::Owned(key.into_bytes()));
        }
        Ok(Cow::Borrowed(raw))
    }

    fn escape(&mut self) -> Result<(), InvalidMessage> {
        match self.body.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => {
                let unit = self.unit()?;
                match unit {
                    0 => return Err(InvalidMessage::new("nul_character", "a string holds U+0000")),
                    0xD800..=0xDBFF => {
                        let has_second = self.rest().starts_with(b"\\u");
                        if !has_second || !(0xDC00..=0xDFFF).contains(&self.unit()?) {
                            return Err(half_a_pair());
                        }
                    }
                    0xDC00..=0xDFFF => return Err(half_a_pair()),
                    _ => {}
                }
            }
            _ => return Err(self.malformed()),
        }
        Ok(())
    }

    /// Reads `\uXXXX`.
    fn unit(&mut self) -> Result<u32, InvalidMessage> {
        let digits = self.body.get(self.at + 2..self.at + 6).ok_or_else(|| self.malformed())?;
        let mut unit = 0;
        for digit in digits {
            unit = unit * 16 + char::from(*digit).to_digit(16).ok_or_else(|| self.malformed())?;
        }
        self.at += 6;
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), InvalidMessage> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
            if self.rest().starts_with(b"Infinity") {
                return Err(not_a_number());
            }
        }
        let first = self.at;
        match self.digits() {
            0 => return Err(self.malformed()),
            count if count > 1 && self.body[first] == b'0' => return Err(self.malformed()),
            _ => {}
        }
        let whole = &self.body[first..self.at];
        let mut is_float = false;
        if self.peek() == Some(b'.') {
            is_float = true;
            self.at += 1;
            if self.digits() == 0 {
                return Err(self.malformed());
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            is_float = true;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.malformed());
            }
        }
        if is_float {
            let text = std::str::from_utf8(&self.body[start..self.at]).unwrap_or("");
            if !text.parse::<f64>().map_or(false, f64::is_finite) {
                return Err(InvalidMessage::new("number_out_of_range", "a number is too large for a double"));
            }
        } else if whole.len() > 15 {
            let value = std::str::from_utf8(whole).unwrap_or("").parse::<u64>();
            if value.map_or(true, |value| value > INTEGER_MAX) {
                return Err(InvalidMessage::new("integer_out_of_range", "an integer is outside ±(2^53 - 1)"));
            }
        }
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().map_or(false, |c| c.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }
}

fn refuse_duplicates(keys: &mut [Cow<'_, [u8]>]) -> Result<(), InvalidMessage> {
    let twice = if keys.len() <= PAIRWISE_MAX {
        (1..keys.len()).find(|i| keys[..*i].contains(&keys[*i]))
    } else {
        keys.sort_unstable();
        (1..keys.len()).find(|i| keys[i - 1] == keys[*i])
    };
    match twice {
        None => Ok(()),
        Some(i) => {
            let name: String = String::from_utf8_lossy(&keys[i]).chars().take(64).collect();
            Err(InvalidMessage::new("duplicate_key", format!("the key {name:?} occurs twice in one object")))
        }
    }
}

fn not_a_number() -> InvalidMessage {
    InvalidMessage::new("not_a_number", "NaN and Infinity are not JSON")
}

fn half_a_pair() -> InvalidMessage {
    InvalidMessage::new("lone_surrogate", "a string holds half of a surrogate pair")
}
