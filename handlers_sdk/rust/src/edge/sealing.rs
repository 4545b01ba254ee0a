//! Seals and unseals payloads: AES-256-GCM with a nonce that follows from the content, so a repeated submission has the
//! same bytes and its idempotency key holds. SPEC.md section 21 has the format.

use std::collections::HashMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::node::Node;
use super::sealed_steps::{NotUnsealed, SealedTask, FILE, MEMBER, VERSION};
use super::secret_files::{is_own, open, reason_of};
use crate::errors::ConfigurationError;

const FILE_BYTES_MAX: u64 = 64 * 1024;
const KEY_BYTES: usize = 32;
const KEYS_MAX: usize = 100;
const NONCE_BYTES: usize = 12;
const KID_CHARS_MAX: usize = 64;
const ENCRYPTION: &str = "stepwire sealed v1 encryption";
const NONCE: &str = "stepwire sealed v1 nonce";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Keys by their `kid`. The first seals, all of them unseal.
pub(crate) struct SealKeys {
    kid: String,
    ciphers: HashMap<String, (Aes256Gcm, [u8; KEY_BYTES])>,
}

impl SealKeys {
    /// The keys of a file with lines `KID=BASE64`.
    pub fn of_file(path: &str) -> Result<Self, ConfigurationError> {
        Ok(Self::new(read_keys(path)?))
    }

    fn new(keys: Vec<(String, Vec<u8>)>) -> Self {
        let kid = keys.first().map(|(kid, _)| kid.clone()).unwrap_or_default();
        let cipher = |key: &[u8]| (Aes256Gcm::new(&derived(key, ENCRYPTION).into()), derived(key, NONCE));
        Self { kid, ciphers: keys.into_iter().map(|(kid, key)| (kid, cipher(&key))).collect() }
    }

    /// The sealed payload as JSON. Its `clear` is the member `clear` of the plaintext, if that is an object.
    pub fn seal(&self, kind: &str, task: &SealedTask, step: &str, plaintext: &str) -> String {
        let (cipher, nonce_key) = &self.ciphers[&self.kid];
        let aad = associated_data(kind, &self.kid, task, step);
        let nonce = &mac(nonce_key, &[&aad, plaintext.as_bytes()])[..NONCE_BYTES];
        let payload = Payload { msg: plaintext.as_bytes(), aad: &aad };
        let data =
            cipher.encrypt(Nonce::from_slice(nonce), payload).expect("a message is far below the cipher's limit");
        let text = |text: &str| Node::Text(text.to_owned());
        let member = |name: &str, value: Node| (name.to_owned(), value);
        let mut members = vec![member(MEMBER, text(VERSION)), member("kid", text(&self.kid))];
        if kind == "context" {
            let names = [("namespace", &task.namespace), ("workflow", &task.workflow), ("key", &task.key)];
            members.push(member("task", Node::Object(names.map(|(name, value)| member(name, text(value))).into())));
        }
        members.push(member("nonce", Node::Text(base64(nonce))));
        members.push(member("data", Node::Text(base64(&data))));
        let clear = if kind == "error" { Node::Object(Vec::new()) } else { clear_part(plaintext) };
        members.push(member("clear", clear));
        Node::Object(members).json()
    }

    /// The plaintext of a payload.
    pub fn unseal(&self, kind: &str, task: &SealedTask, step: &str, payload: &Node) -> Result<String, NotUnsealed> {
        let place = if step.is_empty() { "another task" } else { "another task or step" };
        let changed = || NotUnsealed(format!("the {kind} was changed after it was sealed, or it belongs to {place}"));
        let member = |name| payload.get(name).and_then(Node::text).ok_or_else(changed);
        let (kid, nonce, data) = (member("kid")?, member("nonce")?, member("data")?);
        if member(MEMBER).ok() != Some(VERSION) {
            return Err(NotUnsealed(format!("the {kind} is sealed in a version that this program does not know")));
        }
        let (cipher, _) = self.ciphers.get(kid).ok_or_else(|| {
            let kid: String = kid.chars().take(KID_CHARS_MAX).collect();
            NotUnsealed(format!("the {kind} is sealed with the key '{kid}', which is not in the file of keys"))
        })?;
        let nonce = decoded(nonce).filter(|nonce| nonce.len() == NONCE_BYTES).ok_or_else(changed)?;
        let data = decoded(data).ok_or_else(changed)?;
        let aad = associated_data(kind, kid, task, step);
        let payload = Payload { msg: &data, aad: &aad };
        let plaintext = cipher.decrypt(Nonce::from_slice(&nonce), payload).map_err(|_| changed())?;
        String::from_utf8(plaintext).map_err(|_| changed())
    }
}

fn clear_part(plaintext: &str) -> Node {
    let may_have_it = plaintext.contains("\"clear\"") || plaintext.contains("\\u00");
    let clear = if may_have_it { Node::read(plaintext).and_then(|node| node.get("clear").cloned()) } else { None };
    clear.filter(|clear| matches!(clear, Node::Object(_))).unwrap_or_else(|| Node::Object(Vec::new()))
}

/// The bytes to which a payload is bound. Each part follows its length in bytes, so no two lists give the same bytes. A
/// context has no step.
fn associated_data(kind: &str, kid: &str, task: &SealedTask, step: &str) -> Vec<u8> {
    let mut parts = vec!["stepwire sealed v1", kind, kid, &*task.namespace, &*task.workflow, &*task.key];
    if kind != "context" {
        parts.push(step);
    }
    parts.iter().flat_map(|part| format!("{}:{part}", part.len()).into_bytes()).collect()
}

/// A key for one purpose: HKDF-SHA-256 (RFC 5869) without salt, 32 bytes.
fn derived(key: &[u8], purpose: &str) -> [u8; KEY_BYTES] {
    mac(&mac(&[0; KEY_BYTES], &[key]), &[purpose.as_bytes(), &[1]])
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; KEY_BYTES] {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() / 3 * 4 + 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0_usize, |bits, i| (bits << 8) | usize::from(*group.get(i).unwrap_or(&0)));
        for i in 0..4 {
            let digit = BASE64[(bits >> (18 - 6 * i)) & 63];
            text.push(if i <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The bytes of a text in Base64 with padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    if text.len() % 4 != 0 {
        return None;
    }
    let digits = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 3);
    for group in digits.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            bits = (bits << 6) | BASE64.iter().position(|known| known == digit)? as u32;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

/// The keys of a file, in its order. The error names no key.
fn read_keys(path: &str) -> Result<Vec<(String, Vec<u8>)>, ConfigurationError> {
    let fault = |why: String| ConfigurationError::new(format!("{FILE} is '{path}': {why}"));
    let unreadable = |error: std::io::Error| fault(format!("it cannot be read: {}", reason_of(&error)));
    let file = open(Path::new(path)).map_err(unreadable)?;
    let status = file.metadata().map_err(unreadable)?;
    if !status.is_file() {
        return Err(fault("it is no regular file".to_owned()));
    }
    if !is_own(&status) {
        return Err(fault("it belongs to another user".to_owned()));
    }
    if status.mode() & 0o077 != 0 {
        return Err(fault(format!("its group or others may use it: chmod 600 {path}")));
    }
    if status.len() > FILE_BYTES_MAX {
        return Err(fault(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut content).map_err(unreadable)?;
    let text = String::from_utf8(content).map_err(|_| fault("it cannot be read: it is no text".to_owned()))?;
    let mut keys: Vec<(String, Vec<u8>)> = Vec::new();
    for (number, line) in text.split('\n').enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (kid, key) = key_of(line.trim()).ok_or_else(|| {
            ConfigurationError::new(format!(
                "{FILE}: line {} of '{path}' is not KID=KEY, with a key of 32 random bytes in Base64, as made by: \
                 openssl rand -base64 32",
                number + 1
            ))
        })?;
        if keys.iter().any(|(known, _)| *known == kid) {
            return Err(ConfigurationError::new(format!("{FILE}: '{path}' has two keys with the name '{kid}'")));
        }
        keys.push((kid, key));
    }
    if keys.is_empty() || keys.len() > KEYS_MAX {
        return Err(fault(format!("it needs 1 to {KEYS_MAX} keys, and has {}", keys.len())));
    }
    Ok(keys)
}

fn key_of(line: &str) -> Option<(String, Vec<u8>)> {
    let (kid, key) = line.split_once('=')?;
    let is_kid =
        (1..=KID_CHARS_MAX).contains(&kid.len()) && kid.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let key = decoded(key).filter(|key| key.len() == KEY_BYTES)?;
    is_kid.then(|| (kid.to_owned(), key))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use serde_json::Value;

    use super::*;
    use crate::edge::tests::{temporary, vectors};

    fn keys_from(vectors: &Value, kid: &str) -> SealKeys {
        let mut keys: Vec<_> = vectors["keys"].as_array().unwrap().iter().map(key_row).collect();
        keys.sort_by_key(|(known, _)| known != kid);
        SealKeys::new(keys)
    }

    fn key_row(row: &Value) -> (String, Vec<u8>) {
        (row["kid"].as_str().unwrap().to_owned(), decoded(row["key"].as_str().unwrap()).unwrap())
    }

    fn place(vector: &Value) -> (&str, SealedTask, &str) {
        let text = |name: &str| vector[name].as_str().unwrap_or_default().to_owned();
        let task = SealedTask { namespace: text("namespace"), workflow: text("workflow"), key: text("key") };
        (vector["kind"].as_str().unwrap(), task, vector["step"].as_str().unwrap_or_default())
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn two_keys_are_derived_from_each_key() {
        for row in vectors("sealed.json")["keys"].as_array().unwrap() {
            let (_, key) = key_row(row);
            assert_eq!(hex(&derived(&key, ENCRYPTION)), row["encryption_key"].as_str().unwrap());
            assert_eq!(hex(&derived(&key, NONCE)), row["nonce_key"].as_str().unwrap());
        }
    }

    #[test]
    fn sealed_payloads_have_the_bytes_of_the_vectors() {
        let vectors = vectors("sealed.json");
        for vector in vectors["sealed"].as_array().unwrap() {
            let (kind, task, step) = place(vector);
            let kid = vector["payload"]["kid"].as_str().unwrap();
            let keys = keys_from(&vectors, kid);
            assert_eq!(base64(&associated_data(kind, kid, &task, step)), vector["aad"].as_str().unwrap());
            let plaintext = vector["plaintext"].as_str().unwrap();
            let sealed = keys.seal(kind, &task, step, plaintext);
            assert_eq!(serde_json::from_str::<Value>(&sealed).unwrap(), vector["payload"], "{}", vector["name"]);
            let payload = Node::read(&vector["payload"].to_string()).unwrap();
            assert_eq!(keys.unseal(kind, &task, step, &payload).unwrap(), plaintext);
        }
    }

    #[test]
    fn changed_and_foreign_payloads_are_refused_in_their_sentence() {
        let vectors = vectors("sealed.json");
        let keys = keys_from(&vectors, "2026-11");
        for vector in vectors["refused"].as_array().unwrap() {
            let (kind, task, step) = place(vector);
            let payload = Node::read(&vector["payload"].to_string()).unwrap();
            let refusal = keys.unseal(kind, &task, step, &payload).unwrap_err();
            assert_eq!(refusal.0, vector["sentence"].as_str().unwrap(), "{}", vector["name"]);
        }
    }

    #[test]
    fn a_file_of_keys_is_read_or_refused_in_its_sentence() {
        for vector in vectors("sealed.json")["key_files"].as_array().unwrap() {
            let folder = temporary();
            let file = folder.join("seal.keys");
            let path = file.to_str().unwrap();
            if !vector["text"].is_null() {
                let mode = u32::from_str_radix(vector["mode"].as_str().unwrap(), 8).unwrap();
                let text = match vector["text"].as_u64() {
                    Some(bytes) => "#".repeat(bytes as usize),
                    None => vector["text"].as_str().unwrap().to_owned(),
                };
                fs::write(&file, text).unwrap();
                fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            }
            match (read_keys(path), vector["sentence"].as_str()) {
                (Err(error), Some(sentence)) => assert_eq!(error.to_string(), sentence.replace("{path}", path)),
                (Ok(keys), None) => {
                    let kids: Vec<Value> = keys.into_iter().map(|(kid, _)| Value::from(kid)).collect();
                    assert_eq!(Value::from(kids), vector["kids"]);
                }
                (found, _) => panic!("{vector}: {:?}", found.map(|keys| keys.len())),
            }
            fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn bytes_of_any_length_are_the_same_after_base64() {
        for length in 0..70_u8 {
            let bytes: Vec<u8> = (0..length).map(|byte| byte.wrapping_mul(37)).collect();
            assert_eq!(decoded(&base64(&bytes)).as_deref(), Some(&*bytes));
        }
        assert_eq!(decoded("a\n=="), None);
        assert_eq!(decoded("abc"), None);
    }
}
