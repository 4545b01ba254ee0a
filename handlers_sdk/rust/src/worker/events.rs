//! The worker's events as log lines: one sentence each.

use std::collections::HashMap;

use crate::actions::{DropReason, Event, Level, Link};
use crate::logs::{self, Record};
use crate::protocol::messages::ResetCode;

const LISTED_MAX: usize = 5; // handlers that a line names

/// Logs the events of one worker.
#[derive(Debug, Default)]
pub(super) struct WorkerEvents {
    epochs: HashMap<String, String>, // of each broker's last session
    public_key: Option<String>,      // the CURVE key that the worker connects with
}

impl WorkerEvents {
    /// `public_key` is the CURVE key that the worker connects with, for its lines about refusals.
    pub fn new(public_key: Option<String>) -> Self {
        Self { public_key, ..Self::default() }
    }

    /// `link_of` finds the endpoints of a broker.
    pub fn log(&mut self, level: Level, event: &Event, link_of: impl Fn(&str) -> Option<Link>) {
        let mut text = match event {
            Event::SessionOpened { broker, session } => self.opened(broker, session, link_of(broker)),
            other => sentence(other),
        };
        if is_refusal(event) {
            text.push_str("; ");
            text.push_str(&key_of(self.public_key.as_deref()));
        }
        write(level, event, text);
    }

    fn opened(&mut self, broker: &str, session: &str, link: Option<Link>) -> String {
        let epoch = session.split('.').next().unwrap_or_default().to_owned();
        let before = self.epochs.insert(broker.to_owned(), epoch.clone());
        let at = link.map_or_else(String::new, |link| format!(" at {}", link.steps));
        let again = match before {
            None => "",
            Some(before) if before == epoch => " again",
            Some(_) => " again, after its restart",
        };
        format!("connected to broker {broker}{at}{again}")
    }
}

/// How a refused worker names its key, and what to do.
pub(super) fn key_of(public_key: Option<&str>) -> String {
    let key = public_key
        .map_or_else(|| "this worker has no key".to_owned(), |key| format!("this worker's public key is {key}"));
    format!("{key}; on the broker's host see `stepwire keys list` and `stepwire keys allow`")
}

fn is_refusal(event: &Event) -> bool {
    match event {
        Event::SessionDropped { why, .. } => matches!(why, DropReason::Reset(ResetCode::Unauthorized)),
        Event::MessageRefused { code, .. } => code == "unauthorized",
        _ => false,
    }
}

/// Logs an event that needs no memory.
pub(super) fn log(level: Level, event: &Event) {
    write(level, event, sentence(event));
}

fn write(level: Level, event: &Event, text: String) {
    logs::write(&Record { level, logger: logs::WORKER, event: name(event), step: None, text });
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::WorkerStarted { .. } => "worker_started",
        Event::WorkerDrains { .. } => "worker_drains",
        Event::WorkerEnded { .. } => "worker_ended",
        Event::WorkerFailed { .. } => "worker_failed",
        Event::SessionOpened { .. } => "session_opened",
        Event::SessionDropped { .. } => "session_dropped",
        Event::DeploymentReplaced { .. } => "deployment_replaced",
        Event::StepsRefused { .. } => "steps_refused",
        Event::MessageUnreadable { .. } => "message_unreadable",
        Event::MessageRefused { .. } => "message_refused",
        Event::LinkRebuilt { .. } => "link_rebuilt",
        Event::LinkMoved { .. } => "link_moved",
        Event::LinkRemoved { .. } => "link_removed",
        Event::ServerKeyChanged { .. } => "server_key_changed",
        Event::BrokerIgnored { .. } => "broker_ignored",
        Event::ConnectFailed { .. } => "connect_failed",
        Event::NoBroker { .. } => "no_broker",
    }
}

fn sentence(event: &Event) -> String {
    match event {
        Event::WorkerStarted { name, handlers, slots, pid } => {
            let more = match handlers.len().checked_sub(LISTED_MAX) {
                Some(more) if more > 0 => format!(" and {more} more"),
                _ => String::new(),
            };
            let slots = if *slots == 1 { "1 slot".to_owned() } else { format!("{slots} slots") };
            let listed = &handlers[..handlers.len().min(LISTED_MAX)];
            format!("started as {name}, process {pid}, {slots}; offers {}{more}", listed.join(", "))
        }
        Event::WorkerDrains { running: 0 } => "stopping: no step is running".to_owned(),
        Event::WorkerDrains { running } => format!("stopping: {} may still finish", steps(*running)),
        Event::WorkerEnded { unacknowledged: 0 } => "the worker has ended".to_owned(),
        Event::WorkerEnded { unacknowledged } => format!(
            "the worker has ended, and no broker has acknowledged {}: they may run again",
            steps(*unacknowledged)
        ),
        Event::WorkerFailed { why } => format!("the worker ends, because its socket thread has failed: {why}"),
        Event::SessionOpened { broker, .. } => format!("connected to broker {broker}"),
        Event::SessionDropped { broker, why, not_started, .. } => {
            let elsewhere = match not_started {
                0 => String::new(),
                count => format!("; {} that had not started will run elsewhere", steps(*count)),
            };
            dropped(broker, *why) + &elsewhere
        }
        Event::DeploymentReplaced { broker, deployment, results_discarded } => {
            let lost = match results_discarded {
                1 => "1 message".to_owned(),
                count => format!("{count} messages"),
            };
            format!(
                "broker {broker} has another database ({deployment}): {lost} with results for the earlier one discarded"
            )
        }
        Event::StepsRefused { broker, code, steps: count, .. } => {
            format!("returned {} to broker {broker}: {}", steps(*count), code.as_str())
        }
        Event::MessageUnreadable { code, why } => {
            format!("a message of a broker cannot be read: {}: {why}", code.as_str())
        }
        Event::MessageRefused { broker, refused, code, message } => {
            let refused = refused.as_deref().unwrap_or("None");
            format!("broker {broker} refused a message of this worker ({refused}): {code}: {message}")
        }
        Event::LinkRebuilt { link, .. } => format!("connecting to {} again, because it is silent", link.steps),
        Event::LinkMoved { link, broker } => format!("connecting to broker {broker} at its new address {}", link.steps),
        Event::LinkRemoved { broker, .. } => {
            format!("disconnected from broker {broker}, because no list names it")
        }
        Event::ServerKeyChanged { broker, .. } => {
            format!("connecting to broker {broker} again, because it has a new CURVE key")
        }
        Event::BrokerIgnored { broker } => {
            format!("broker {broker} is not connected, because it requires CURVE keys: set STEPWIRE_CURVE_FILE")
        }
        Event::ConnectFailed { endpoint, error } => format!("cannot connect to {endpoint}: {error}"),
        Event::NoBroker { endpoint, reason, seconds } => format!("no broker for {seconds} s: {endpoint}: {reason}"),
    }
}

fn dropped(broker: &str, why: DropReason) -> String {
    match why {
        DropReason::LeaseOver => format!("lost broker {broker}: it has not answered for a whole lease"),
        DropReason::DeploymentReplaced => {
            format!("the session with broker {broker} has ended, because its database is another one")
        }
        DropReason::Reset(ResetCode::UnknownSession) => {
            format!("broker {broker} has ended the session: it no longer knows this worker")
        }
        DropReason::Reset(ResetCode::Expired) => {
            format!("broker {broker} has ended the session: it did not receive heartbeats of this worker in time")
        }
        DropReason::Reset(ResetCode::Version) => format!(
            "broker {broker} refuses this worker: they have no protocol version in common; \
             use a broker and an SDK of the same release"
        ),
        DropReason::Reset(ResetCode::Unauthorized) => {
            format!("broker {broker} refuses this worker: unauthorized")
        }
        DropReason::Reset(ResetCode::Shutdown) => format!("broker {broker} shuts down"),
    }
}

fn steps(number: usize) -> String {
    if number == 1 {
        "1 step".to_owned()
    } else {
        format!("{number} steps")
    }
}
