//! The configuration of a session: identity, capacity, and the handlers that the worker offers.

use std::collections::{BTreeMap, HashMap};

use crate::actions::Link;
use crate::protocol::{limits, patterns};

const CLASSES_MAX: usize = 10_000; // handler classes whose offer is remembered

/// A handler of this worker, by name or pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The name or pattern.
    pub pattern: String,
    /// The maximum number of runs at a time; None: the number of slots.
    pub concurrency: Option<u64>,
    /// Shortens the timeout of the step.
    pub timeout_ms: Option<u64>,
    /// The handler may receive shadow steps.
    pub shadow_safe: bool,
}

impl Offer {
    /// An offer without limits of its own.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), concurrency: None, timeout_ms: None, shadow_safe: false }
    }
}

/// The worker's identity and capacity: the content of its `hello`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Config {
    pub worker: String,
    pub offers: Vec<Offer>,
    pub slots: u64,
    /// The least room for steps that wait; None: only what the observed pace says.
    pub prefetch: Option<u64>,
    pub labels: BTreeMap<String, String>,
    pub links: Vec<Link>,
    pub heartbeat_ms: u64,
    /// An accept waits this long for results that make it superfluous.
    pub accept_delay_ms: f64,
    pub max_message_bytes: u64,
    pub lang: String,
    pub sdk: String,
    pub host: String,
    pub pid: u64,
    pub pid_started: u64,
    pub proof: bool,
    pub handler_version: String,
    /// The worker's sockets use CURVE.
    pub has_curve: bool,
}

impl Config {
    /// A configuration with the defaults of the protocol.
    pub fn new(worker: impl Into<String>, offers: Vec<Offer>, slots: u64) -> Self {
        Self {
            worker: worker.into(),
            offers,
            slots,
            prefetch: None,
            labels: BTreeMap::new(),
            links: Vec::new(),
            heartbeat_ms: limits::HEARTBEAT_MS,
            accept_delay_ms: 0.0,
            max_message_bytes: limits::MESSAGE_BYTES_MAX,
            lang: "rust".to_owned(),
            sdk: String::new(),
            host: String::new(),
            pid: 0,
            pid_started: 0,
            proof: false,
            handler_version: String::new(),
            has_curve: false,
        }
    }

    /// The number of steps that may wait for a slot before any has ended: the member `prefetch` of hello.
    pub fn queue_max(&self) -> u64 {
        self.prefetch.unwrap_or_else(|| self.slots.max(limits::PREFETCH_MIN))
    }
}

/// The worker's offers by number, and the offer for each handler_class.
#[derive(Debug)]
pub(super) struct Offers {
    pub by_number: Vec<Offer>,
    number_of: HashMap<String, Option<usize>>,
}

impl Offers {
    pub fn new(by_number: Vec<Offer>) -> Self {
        Self { by_number, number_of: HashMap::new() }
    }

    /// The number of the offer for this handler_class; None if no offer matches.
    pub fn find(&mut self, handler_class: &str) -> Option<usize> {
        if let Some(known) = self.number_of.get(handler_class) {
            return *known;
        }
        if self.number_of.len() >= CLASSES_MAX {
            self.number_of.clear();
        }
        let found = find_offer(&self.by_number, handler_class);
        self.number_of.insert(handler_class.to_owned(), found);
        found
    }
}

/// The number of the offer with this exact name, otherwise of the first pattern that matches.
pub fn find_offer(offers: &[Offer], handler_class: &str) -> Option<usize> {
    let exact = offers.iter().position(|offer| offer.pattern == handler_class);
    exact.or_else(|| {
        offers
            .iter()
            .position(|offer| patterns::is_pattern(&offer.pattern) && patterns::matches(&offer.pattern, handler_class))
    })
}
