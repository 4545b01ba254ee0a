//! What the dialogues and lockstep cannot see: the session and a runner on two threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;

use super::{Config, Offer, Session};
use crate::actions::{Action, Run};
use crate::protocol::messages::HeldState;
use crate::runners::run_slots::RunSlots;

const WORKER: &str = "shop-1:0123456789abcdef";
const INBOX: &str = "@shop-1:0123456789abcdef ";

/// A session with broker b1 that has been handed this number of steps, and its runs.
fn with_runs(slots: u64, steps: u64) -> (Session, Vec<Arc<Run>>) {
    let mut session = Session::new(Config::new(WORKER, vec![Offer::new("h")], slots), || 0.5);
    session.start(0.0);
    session.actions(0.0);
    let base = r#""v":"2.0","broker":"b1","epoch":7"#;
    session.receive(INBOX, format!(r#"{{"type":"here",{base},"deployment":"d","versions":["2.0"]}}"#).as_bytes(), 1.0);
    session.actions(300.0);
    let welcome = format!(
        r#"{{"type":"welcome",{base},"session":"7.1","deployment":"d","n":2,"lease_ms":10000,"heartbeat_ms":2000,"max_message_bytes":4194304}}"#
    );
    session.receive(INBOX, welcome.as_bytes(), 301.0);
    let metadata = r#"{"attempt":0,"retry_limit":3,"timeout_ms":0,"idempotency_key":"k"}"#;
    let step = |id| {
        format!(
            r#"{{"step_id":{id},"task_id":1,"step_name":"s","handler_class":"h","delivery":1,"metadata":{metadata}}}"#
        )
    };
    let list: Vec<String> = (1..=steps).map(step).collect();
    let message = format!(
        r#"{{"type":"steps",{base},"session":"7.1","batch_id":"batch_a_1","protocol_version":"2.0","steps":[{}]}}"#,
        list.join(",")
    );
    session.receive(INBOX, message.as_bytes(), 302.0);
    let runs = session.actions(302.0).into_iter().filter_map(|action| match action {
        Action::Run(run) => Some(run),
        _ => None,
    });
    let runs: Vec<_> = runs.collect();
    (session, runs)
}

fn running(session: &Session) -> usize {
    session.holding(310.0).iter().filter(|(_, _, state, _)| *state == HeldState::Running).count()
}

#[test]
fn a_run_either_begins_or_is_taken_back_and_never_both() {
    let begun = Arc::new(AtomicUsize::new(0));
    for _ in 0..200 {
        let (mut session, runs) = with_runs(4, 8);
        assert!(runs.len() >= 4);
        let counter = begun.clone();
        let count = runs.len();
        let runner = thread::spawn(move || runs.iter().filter(|run| run.begin(305.0)).count());
        session.drain(305.0);
        let begun_here = runner.join().unwrap();
        counter.fetch_add(begun_here, Ordering::SeqCst);
        let held = session.holding(306.0).len();
        assert_eq!(held, begun_here, "{count} runs: each begun one is held, each other one was returned");
    }
}

#[test]
fn a_run_does_not_begin_after_the_end_of_its_lease() {
    let (_session, runs) = with_runs(1, 1);
    assert!(!runs[0].begin(300.0 + 9_700.0));
    assert!(runs[0].begin(300.0 + 9_699.0));
}

#[test]
fn a_heartbeat_never_lists_more_runs_than_slots() {
    let (session, runs) = with_runs(2, 6);
    for run in &runs[..2] {
        assert!(run.begin(303.0));
    }
    assert_eq!(running(&session), 2);
    // Two runs have ended, and two have begun in their slots. The session has no result yet.
    runs[0].end();
    runs[1].end();
    for run in &runs[2..4] {
        assert!(run.begin(304.0));
    }
    assert_eq!(running(&session), 2);
    let states: Vec<_> = session.holding(310.0).iter().map(|(_, _, state, _)| *state).collect();
    assert_eq!(states[..4], [HeldState::Done, HeldState::Done, HeldState::Running, HeldState::Running]);
    // A run that begins while the list is made waits for the next list.
    assert!(runs[4].begin(304.0));
    assert_eq!(running(&session), 2);
}

#[test]
fn run_slots_keep_to_the_slots_and_to_the_concurrency_of_a_handler() {
    let mut limited = Offer::new("limited");
    limited.concurrency = Some(1);
    let slots = RunSlots::new(2, &[limited, Offer::new("free")]);
    let started = slots.add([call(0, 1), call(0, 2), call(1, 3), call(1, 4)]);
    assert_eq!(started.iter().map(|call| call.1).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(slots.release(0).map(|call| call.1), Some(2), "the place of the handler goes to its next call");
    assert_eq!(slots.release(1).map(|call| call.1), Some(4));
    assert!(slots.release(0).is_none());
    assert_eq!(slots.add([call(0, 5)]).len(), 1);
}

#[derive(Debug)]
struct TestCall(usize, u64);

fn call(offer: usize, number: u64) -> TestCall {
    TestCall(offer, number)
}

impl crate::runners::run_slots::Call for TestCall {
    fn offer(&self) -> usize {
        self.0
    }
}
