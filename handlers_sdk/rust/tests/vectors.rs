//! The codec against `protocol/vectors`: every message of a broker that a worker has to read, or has to refuse.

use std::fs;

use serde_json::Value;
use stepwire::protocol::{codec, patterns};

fn vectors(file: &str) -> Value {
    let path = format!("{}/../../protocol/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap()
}

fn bytes_of(vector: &Value) -> Vec<u8> {
    match vector["text"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => {
            let parts = vector["parts"].as_array().expect("a vector has `text` or `parts`");
            let repeated = |part: &Value| {
                let times = part["times"].as_u64().unwrap_or(1) as usize;
                part["text"].as_str().expect("a part has `text`").repeat(times).into_bytes()
            };
            parts.iter().flat_map(repeated).collect()
        }
    }
}

/// Equal, with numbers compared as numbers: `-0` is 0, and `1e3` is 1000.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).map_or(false, |other| is_same(value, other)))
        }
        _ => one == other,
    }
}

#[test]
fn every_accepted_message_of_a_broker_has_its_value() {
    let vectors = vectors("accepted.json");
    let mut count = 0;
    for vector in vectors["messages"].as_array().unwrap() {
        if vector["sender"] != "broker" || vector["level"] != 1 {
            continue;
        }
        let name = &vector["name"];
        let message = codec::decode_broker(&bytes_of(vector)).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let text = serde_json::to_string(&message).unwrap();
        let value = serde_json::from_str::<Value>(&text).unwrap();
        assert!(is_same(&value, &vector["value"]), "{name}: {value} is not {}", vector["value"]);
        count += 1;
    }
    assert!(count >= 24, "only {count} vectors");
}

#[test]
fn every_refused_message_to_a_worker_is_refused() {
    let vectors = vectors("refused.json");
    let mut count = 0;
    for vector in vectors["messages"].as_array().unwrap() {
        if vector["to"] != "worker" {
            continue;
        }
        // The code may be one of its own: what a broker sees is the refusal.
        assert!(codec::decode_broker(&bytes_of(vector)).is_err(), "{}", vector["name"]);
        count += 1;
    }
    assert!(count >= 9, "only {count} vectors");
}

/// A worker refuses what a broker refuses: the rules of JSON are the same for both.
#[test]
fn json_that_a_broker_refuses_is_refused_here_for_the_same_reason() {
    let rules = [
        "empty",
        "not_utf8",
        "not_json",
        "not_an_object",
        "not_a_number",
        "number_out_of_range",
        "integer_out_of_range",
        "duplicate_key",
        "nul_character",
        "lone_surrogate",
        "too_deep",
    ];
    let mut count = 0;
    for vector in vectors("refused.json")["messages"].as_array().unwrap() {
        let has_bytes = vector.get("text").is_some() || vector.get("parts").is_some();
        if vector["to"] != "broker" || !has_bytes || !rules.contains(&vector["code"].as_str().unwrap_or_default()) {
            continue;
        }
        if vector["parts"].as_array().map_or(false, |parts| parts.iter().any(|part| part.get("text").is_none())) {
            continue;
        }
        let refused =
            stepwire::protocol::strict_json::check_object(&bytes_of(vector)).expect_err(&vector["name"].to_string());
        assert_eq!(vector["code"], refused.code, "{}", vector["name"]);
        count += 1;
    }
    assert!(count >= 30, "only {count} vectors");
}

#[test]
fn accepted_json_of_every_sender_is_strict() {
    for vector in vectors("accepted.json")["messages"].as_array().unwrap() {
        stepwire::protocol::strict_json::check_object(&bytes_of(vector))
            .unwrap_or_else(|fault| panic!("{}: {fault}", vector["name"]));
    }
}

#[test]
fn messages_of_a_later_minor_version_are_ignored_by_their_type() {
    for vector in vectors("accepted.json")["ignored"].as_array().unwrap() {
        if vector["sender"] == "broker" {
            assert_eq!(codec::decode_broker(&bytes_of(vector)).unwrap_err().code, "unknown_type");
        }
    }
}

#[test]
fn patterns_match_as_everywhere() {
    let vectors = vectors("patterns.json");
    let table = vectors["patterns"].as_array().or_else(|| vectors["cases"].as_array()).expect("a list of patterns");
    assert!(!table.is_empty());
    for vector in table {
        let (pattern, path) = (vector["pattern"].as_str().unwrap(), vector["path"].as_str().unwrap());
        assert_eq!(vector["matches"], patterns::matches(pattern, path), "{pattern} {path}");
    }
}
