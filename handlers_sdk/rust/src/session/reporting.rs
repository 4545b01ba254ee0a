//! Sends the results of finished runs, and ends their deliveries when a broker acknowledges or refuses the message.

use std::rc::Rc;
use std::sync::Arc;

use super::brokers::PeerId;
use super::deliveries::{HeldBatch, HeldDelivery, ResultsMessage};
use super::outgoing::{parts, V};
use super::Session;
use crate::actions::{Action, Event, Level, NEVER};
use crate::errors::OUTCOME_UNKNOWN;
use crate::protocol::codec;
use crate::protocol::limits::RESULTS_RETRANSMIT_MS;
use crate::protocol::messages::{Ack, ErrorDetail, HeldState, Refused, ResultsHead, Status, StepResult};

const HOLD_MS: f64 = 1.0;
const MIB: f64 = 1024.0 * 1024.0;

// With these codes the broker does not refuse the content of a results message, so other content would not help.
const HOPELESS: [&str; 5] = ["wrong_batch", "wrong_sender", "unknown_delivery", "unknown_session", "unknown_type"];

/// A finished delivery with its result, encoded for the message.
type Finished = (Rc<HeldDelivery>, Encoded);

/// A result in the form of its message. The result itself is kept while its parts may still be left out.
#[derive(Clone)]
struct Encoded {
    body: Rc<Vec<u8>>,
    without_stderr: Option<Rc<Vec<u8>>>,
}

impl Encoded {
    fn new(result: &StepResult) -> Self {
        let has_stderr = result.metadata.as_ref().map_or(false, |metadata| metadata.stderr.is_some());
        let without_stderr = has_stderr.then(|| {
            let mut shorter = result.clone();
            if let Some(metadata) = &mut shorter.metadata {
                metadata.stderr = None; // for people only: it must not cost the outcome
            }
            Rc::new(codec::encode_result(&shorter))
        });
        Self { body: Rc::new(codec::encode_result(result)), without_stderr }
    }

    fn of_bytes(body: Vec<u8>) -> Self {
        Self { body: Rc::new(body), without_stderr: None }
    }
}

/// A message holds results of one batch, so a result waits at most HOLD_MS for others of its batch: until the batch is
/// whole, or nothing runs, or the observed pace promises none in that time.
#[derive(Debug)]
pub(super) struct Reporting {
    pub send_at_ms: f64,
    ready: Vec<Rc<HeldBatch>>, // batches with results that are not sent
    whole: Vec<Rc<HeldBatch>>, // those of them whose steps have all ended
    rid: u64,
}

impl Reporting {
    pub fn new() -> Self {
        Self { send_at_ms: NEVER, ready: Vec::new(), whole: Vec::new(), rid: 0 }
    }

    /// True if all steps of a batch have ended, so its results can be sent.
    pub fn has_whole(&self) -> bool {
        !self.whole.is_empty()
    }
}

impl Session {
    pub(super) fn add_result(&mut self, held: &Rc<HeldDelivery>, result: StepResult, now_ms: f64) {
        let (batch, reporting) = (&held.batch, &mut self.reporting);
        let was_empty = {
            let mut ready = batch.ready.borrow_mut();
            ready.push((held.clone(), result));
            ready.len() == 1
        };
        batch.open.set(batch.open.get() - 1);
        if batch.open.get() == 0 {
            reporting.whole.push(batch.clone());
        }
        if was_empty {
            reporting.ready.push(batch.clone());
        }
        if reporting.send_at_ms == NEVER {
            reporting.send_at_ms = now_ms + HOLD_MS;
        }
    }

    /// True if results must be sent now. `slots.taken` is the number of steps that could still add to them.
    pub(super) fn is_report_due(&mut self, now_ms: f64) -> bool {
        let send_at_ms = self.reporting.send_at_ms;
        send_at_ms != NEVER
            && (now_ms >= send_at_ms
                || self.slots.taken == 0
                || self.reporting.has_whole()
                || self.holdings.pace.steps_in(HOLD_MS, now_ms) < 1.0) // none is expected in time
    }

    /// Sends the results of whole batches; all results, if none is expected in time. Called if `is_report_due`.
    pub(super) fn report_due(&mut self, now_ms: f64) {
        let whole = std::mem::take(&mut self.reporting.whole);
        let only_whole = now_ms < self.reporting.send_at_ms
            && self.slots.taken != 0
            && self.holdings.pace.steps_in(HOLD_MS, now_ms) >= 1.0;
        let ready = if only_whole {
            self.reporting.ready.retain(|batch| !whole.iter().any(|other| Rc::ptr_eq(batch, other)));
            whole
        } else {
            std::mem::take(&mut self.reporting.ready)
        };
        if self.reporting.ready.is_empty() {
            self.reporting.send_at_ms = NEVER;
        }
        for batch in ready {
            let results = batch.ready.take();
            let mut owners: Vec<(PeerId, Vec<Finished>)> = Vec::with_capacity(1);
            for (held, result) in results.iter().filter(|(held, _)| held.is(HeldState::Done)) {
                let (owner, pair) = (held.peer.get(), (held.clone(), Encoded::new(result)));
                match owners.iter_mut().find(|(known, _)| *known == owner) {
                    Some((_, pairs)) => pairs.push(pair),
                    None => owners.push((owner, vec![pair])),
                }
            }
            for (peer, done) in owners {
                for part in parts(&done) {
                    self.send_results(peer, &batch, part, now_ms, false);
                }
            }
        }
    }

    pub(super) fn on_ack(&mut self, message: &Ack, now_ms: f64) {
        for rid in &message.rids {
            if let Some(acked) = self.outbox.remove(*rid) {
                for held in &acked.done {
                    self.bury(held, now_ms);
                }
            }
        }
    }

    pub(super) fn on_refused(&mut self, message: Refused, now_ms: f64) {
        let refused = message.rid.and_then(|rid| self.outbox.remove(rid));
        let reason = format!("{}: {}", message.code, message.message);
        let is_hopeless = HOPELESS.contains(&&*message.code);
        self.out.log(
            Level::Error,
            Event::MessageRefused {
                broker: message.broker,
                refused: message.refused,
                code: message.code,
                message: message.message,
            },
        );
        let refused = match refused {
            Some(refused) => refused,
            None => return,
        };
        if refused.is_replacement || is_hopeless {
            for held in &refused.done {
                self.bury(held, now_ms);
            }
            return;
        }
        // The broker will never accept these results. If they were only dropped, the steps would run again.
        for held in &refused.done {
            let failure = sdk_failure(held, "result_refused", &reason);
            let pair = (held.clone(), Encoded::new(&failure));
            self.send_results(refused.peer, &refused.batch, &[pair], now_ms, true);
        }
    }

    /// Moves results to the broker that now owns their deliveries. Results for the previous owner get a separate
    /// message.
    pub(super) fn change_owner(&mut self, rid: u64, adopted: &[Rc<HeldDelivery>], peer: PeerId, now_ms: f64) {
        let message = match self.outbox.get_mut(rid) {
            Some(message) => message,
            None => return,
        };
        let is_adopted = |held: &Rc<HeldDelivery>| adopted.iter().any(|other| Rc::ptr_eq(held, other));
        if message.done.iter().all(is_adopted) {
            message.peer = peer;
            return;
        }
        let message = match self.outbox.remove(rid) {
            Some(message) => message,
            None => return,
        };
        let pairs = message.results();
        let encoded = |held: &Rc<HeldDelivery>, body: &[u8]| (held.clone(), Encoded::of_bytes(body.to_vec()));
        let rest: Vec<Finished> =
            pairs.iter().filter(|(held, _)| !is_adopted(held)).map(|(held, body)| encoded(held, body)).collect();
        let own: Vec<Finished> = adopted
            .iter()
            .filter_map(|held| pairs.iter().find(|(other, _)| Rc::ptr_eq(held, other)))
            .map(|(held, body)| encoded(held, body))
            .collect();
        self.send_results(message.peer, &message.batch, &rest, now_ms, message.is_replacement);
        self.send_results(peer, &message.batch, &own, now_ms, message.is_replacement);
    }

    /// Sends one results message, or two halves if the broker does not accept its size.
    fn send_results(
        &mut self,
        peer: PeerId,
        batch: &Rc<HeldBatch>,
        done: &[Finished],
        now_ms: f64,
        is_replacement: bool,
    ) {
        let session = self.brokers[peer].session.clone().unwrap_or_else(|| batch.session.clone());
        let rid = self.reporting.rid + 1;
        let (free, slots_free) = self.offer(peer, now_ms);
        let n = self.out.next_n();
        let bytes_max = self.brokers[peer].bytes_max as usize;
        let mut body = codec::encode_results_head(&ResultsHead {
            v: V,
            worker: &self.out.worker,
            session: &session,
            deployment: self.brokers[peer].deployment.as_deref().unwrap_or(""),
            batch_id: &batch.id,
            protocol_version: V,
            rid,
            n,
            free,
            slots_free,
        });
        let list_at = body.len();
        body.reserve(done.iter().map(|(_, result)| result.body.len() + 1).sum::<usize>() + 1);
        for (i, (_, result)) in done.iter().enumerate() {
            if i > 0 {
                body.push(b',');
            }
            body.extend_from_slice(&result.body);
        }
        body.extend_from_slice(b"]}");
        if body.len() > bytes_max {
            if done.len() > 1 {
                let (first, second) = done.split_at(done.len() / 2);
                self.send_results(peer, batch, first, now_ms, is_replacement);
                self.send_results(peer, batch, second, now_ms, is_replacement);
                return;
            }
            if !is_replacement {
                let (held, result) = &done[0];
                if let Some(shorter) = &result.without_stderr {
                    let pair = (held.clone(), Encoded { body: shorter.clone(), without_stderr: None });
                    self.send_results(peer, batch, &[pair], now_ms, false);
                    return;
                }
                let failure = too_large(held, body.len(), bytes_max);
                if let Some(run) = &*held.run.borrow() {
                    self.out.add(Action::ResultTooLarge { step: run.step.clone(), result: failure.clone() });
                }
                self.send_results(peer, batch, &[(held.clone(), Encoded::new(&failure))], now_ms, true);
                return;
            }
        }
        self.reporting.rid = rid;
        for (held, _) in done {
            if held.rid.replace(Some(rid)).is_none() {
                batch.unsent.set(batch.unsent.get() - 1); // a replacement counts once
            }
        }
        let message = ResultsMessage {
            rid,
            peer,
            batch: batch.clone(),
            session: session.clone(),
            n,
            free,
            slots_free,
            body: Arc::new(body),
            list_at,
            lengths: done.iter().map(|(_, result)| result.body.len()).collect(),
            done: done.iter().map(|(held, _)| held.clone()).collect(),
            is_replacement,
            tries: 1,
            wait_ms: RESULTS_RETRANSMIT_MS,
            at_ms: now_ms + RESULTS_RETRANSMIT_MS,
        };
        self.outbox.send(message, &self.brokers, &mut self.out);
        if batch.unsent.get() == 0 {
            self.cancel_accept(peer, &session, &batch.id);
        }
    }
}

/// The result without a verdict on an at_most_once step: a failure after a request to stop does not prove that the step
/// had no effect.
pub(super) fn without_verdict(held: &HeldDelivery, mut result: StepResult) -> StepResult {
    if held.is_at_most_once {
        if let Some(error) = &mut result.error {
            error.code = Some(OUTCOME_UNKNOWN.to_owned());
        }
    }
    result
}

fn too_large(held: &HeldDelivery, message_bytes: usize, bytes_max: usize) -> StepResult {
    let (has, limit) = (size(message_bytes), size(bytes_max));
    let text = format!("the output has {has}; the limit is {limit}: store it elsewhere and return a reference");
    sdk_failure(held, "too_large", &text)
}

/// Rounded up, so that a size above a limit also reads as one.
fn size(size_bytes: usize) -> String {
    if (size_bytes as f64) < MIB {
        return format!("{size_bytes} bytes");
    }
    format!("{} MiB", (size_bytes as f64 / MIB * 10.0).ceil() / 10.0)
}

/// The result of a step that ran, but whose result cannot be delivered.
fn sdk_failure(held: &HeldDelivery, code: &str, text: &str) -> StepResult {
    let error = if held.is_at_most_once {
        ErrorDetail {
            message: format!("{code}: {text}"),
            code: Some(OUTCOME_UNKNOWN.to_owned()),
            ..ErrorDetail::default()
        }
    } else {
        ErrorDetail {
            message: text.to_owned(),
            code: Some(code.to_owned()),
            retryable: Some(false),
            ..ErrorDetail::default()
        }
    };
    StepResult { item: held.item, status: Status::Error, output: None, error: Some(error), metadata: None }
}
