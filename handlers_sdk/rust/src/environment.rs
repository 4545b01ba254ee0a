//! The environment variables STEPWIRE_*, and checks of endpoints, because libzmq reports only an error number.

use std::collections::BTreeMap;

use crate::actions::Link;
use crate::curve::{self, CurveKeys};
use crate::edge::{SEAL_KEYS_FILE, SECRETS_DIRECTORY};
use crate::errors::ConfigurationError;
use crate::protocol::{limits, topics};
use crate::texts::quoted;

/// Where `stepwire serve` sends steps if nothing else is configured.
pub const STEPS_DEFAULT: &str = "ipc://.stepwire/steps.sock";
/// Where `stepwire serve` receives results if nothing else is configured.
pub const RESULTS_DEFAULT: &str = "ipc://.stepwire/results.sock";
/// The number of steps that run at a time if nothing else is configured.
pub const SLOTS_DEFAULT: u64 = 10;

const SLOTS_MAX: u64 = 10_000;
const IPC_PATH_BYTES_MAX: usize = 107;

/// The settings of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The endpoints that send steps, one for each broker.
    pub steps: Vec<String>,
    /// The endpoints that receive results, in the same order.
    pub results: Vec<String>,
    /// The name of the worker; None: that of the program.
    pub name: Option<String>,
    /// The number of steps that run at a time.
    pub slots: u64,
    /// Labels that selectors match.
    pub labels: BTreeMap<String, String>,
    /// The release of the program's handlers.
    pub handler_version: String,
    /// The keys of CURVE; None: no encryption.
    pub curve: Option<CurveKeys>,
    /// A directory with one file for each secret, to which a step refers as `{"$secret": "stripe/live"}`.
    pub secrets_dir: Option<String>,
    /// A file with the keys of sealed payloads. Needs the feature `sealed`.
    pub seal_keys_file: Option<String>,
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            steps: vec![STEPS_DEFAULT.to_owned()],
            results: vec![RESULTS_DEFAULT.to_owned()],
            name: None,
            slots: SLOTS_DEFAULT,
            labels: BTreeMap::new(),
            handler_version: String::new(),
            curve: None,
            secrets_dir: None,
            seal_keys_file: None,
        }
    }
}

impl Environment {
    /// Reads STEPWIRE_STEPS, _RESULTS, _NAME, _SLOTS, _LABELS, _HANDLER_VERSION, _CURVE_*, _SECRETS_DIR and
    /// _SEAL_KEYS_FILE.
    pub fn read() -> Result<Self, ConfigurationError> {
        Self::read_from(|name| std::env::var(name).ok())
    }

    pub(crate) fn read_from(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigurationError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        Ok(Self {
            steps: list(&set("STEPWIRE_STEPS").unwrap_or_else(|| STEPS_DEFAULT.to_owned())),
            results: list(&set("STEPWIRE_RESULTS").unwrap_or_else(|| RESULTS_DEFAULT.to_owned())),
            name: set("STEPWIRE_NAME"),
            slots: set("STEPWIRE_SLOTS").map_or(Ok(SLOTS_DEFAULT), |text| slots(&text))?,
            labels: labels(&set("STEPWIRE_LABELS").unwrap_or_default())?,
            handler_version: set("STEPWIRE_HANDLER_VERSION").unwrap_or_default(),
            curve: curve::read(&set)?,
            secrets_dir: set(SECRETS_DIRECTORY),
            seal_keys_file: set(SEAL_KEYS_FILE),
        })
    }
}

/// The endpoints in pairs, one pair for each broker.
pub(crate) fn links(steps: &[String], results: &[String]) -> Result<Vec<Link>, ConfigurationError> {
    if steps.is_empty() || steps.len() != results.len() {
        return Err(ConfigurationError::new(format!(
            "{} endpoints for steps and {} for results: each broker needs one of each, in the same order \
             (STEPWIRE_STEPS, STEPWIRE_RESULTS; separate several with commas)",
            steps.len(),
            results.len()
        )));
    }
    steps.iter().try_for_each(|endpoint| check_endpoint("steps", endpoint))?;
    results.iter().try_for_each(|endpoint| check_endpoint("results", endpoint))?;
    Ok(steps.iter().zip(results).map(|(steps, results)| Link::new(&**steps, &**results)).collect())
}

pub(crate) fn check_name(name: &str) -> Result<(), ConfigurationError> {
    if topics::is_worker_name(name) {
        return Ok(());
    }
    let name = quoted(name);
    Err(ConfigurationError::new(format!(
        "worker name {name}: it needs 1 to 48 of letters, digits, . _ - (STEPWIRE_NAME)"
    )))
}

pub(crate) fn check_slots(slots: u64) -> Result<(), ConfigurationError> {
    if (1..=SLOTS_MAX).contains(&slots) {
        return Ok(());
    }
    Err(ConfigurationError::new(format!("slots is {slots}: it needs to be 1 to {SLOTS_MAX} (STEPWIRE_SLOTS)")))
}

pub(crate) fn check_handler_version(version: &str) -> Result<(), ConfigurationError> {
    let characters = version.chars().count();
    if characters <= limits::HANDLER_VERSION_MAX {
        return Ok(());
    }
    Err(ConfigurationError::new(format!(
        "handler_version has {characters} characters: it needs at most {} (STEPWIRE_HANDLER_VERSION)",
        limits::HANDLER_VERSION_MAX
    )))
}

fn check_endpoint(kind: &str, endpoint: &str) -> Result<(), ConfigurationError> {
    let subject = format!("the {kind} endpoint {}", quoted(endpoint));
    let fault = |text: String| Err(ConfigurationError::new(text));
    let (scheme, rest) = match endpoint.split_once("://") {
        Some((scheme, rest)) if !rest.is_empty() => (scheme, rest),
        _ => return fault(format!("{subject} needs a form like tcp://127.0.0.1:7411 or ipc://.stepwire/{kind}.sock")),
    };
    match scheme {
        "tcp" => {
            let (host, port) = address(rest);
            if port.is_empty() || port == "0" {
                return fault(format!("{subject} has no port: it needs a form like tcp://127.0.0.1:7411"));
            }
            if !port.bytes().all(|c| c.is_ascii_digit()) || port.parse::<u16>().map_or(true, |port| port == 0) {
                return fault(format!("{subject}: the port {} needs to be 1 to {}", quoted(port), u16::MAX));
            }
            if ["", "*", "[]"].contains(&host) {
                return fault(format!("{subject} names no host: a worker connects, and only a broker may bind to *"));
            }
            Ok(())
        }
        "ipc" if rest.len() > IPC_PATH_BYTES_MAX => fault(format!(
            "{subject}: the path has {} bytes, and the system allows {IPC_PATH_BYTES_MAX}: use a relative path",
            rest.len()
        )),
        "ipc" => Ok(()),
        "inproc" => fault(format!("{subject} reaches only a broker in this process: use ipc:// or tcp://")),
        _ => fault(format!("{subject}: {scheme}:// is not supported; use tcp:// or ipc://")),
    }
}

/// The host and the port of a tcp endpoint; both empty if it has another form.
fn address(text: &str) -> (&str, &str) {
    let end = match text.strip_prefix('[') {
        Some(rest) => rest.find(']').map_or(0, |at| at + 2),
        None => text.find(|c| ":[]".contains(c)).unwrap_or(text.len()),
    };
    match text[end..].strip_prefix(':') {
        Some(port) => (&text[..end], port),
        None => ("", ""),
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn slots(text: &str) -> Result<u64, ConfigurationError> {
    let is_number = text.len() <= 6 && text.bytes().all(|c| c.is_ascii_digit());
    let number = if is_number { text.parse().ok() } else { None };
    let number = number.ok_or_else(|| {
        let text = quoted(text);
        ConfigurationError::new(format!("STEPWIRE_SLOTS is {text}: it needs a whole number, 1 to {SLOTS_MAX}"))
    })?;
    check_slots(number)?;
    Ok(number)
}

fn labels(text: &str) -> Result<BTreeMap<String, String>, ConfigurationError> {
    let mut labels = BTreeMap::new();
    for part in list(text) {
        match part.split_once('=') {
            Some((key, value)) if (1..=128).contains(&key.trim().len()) => {
                labels.insert(key.trim().to_owned(), value.trim().to_owned());
            }
            _ => {
                let part = quoted(&part);
                return Err(ConfigurationError::new(format!(
                    "STEPWIRE_LABELS has {part}: it needs a form like region=eu,gpu=true"
                )));
            }
        }
    }
    Ok(labels)
}
