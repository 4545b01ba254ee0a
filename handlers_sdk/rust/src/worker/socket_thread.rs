//! The thread that owns both sockets. No handler runs on this thread, so heartbeats continue while handlers run.
//!
//! The thread passes frames and outcomes of calls to the session, and the session's actions to sockets and runners.

use std::collections::HashMap;
use std::sync::Arc;

use super::events::{self, WorkerEvents};
use super::mailbox::{Mail, Mailbox};
use super::search::BrokerSearch;
use super::sockets::WorkerSockets;
use crate::actions::{Action, Event, Level, Run, StopReason, NEVER};
use crate::context::{Context, ProgressReport};
use crate::curve::CurveKeys;
use crate::handler::Handler;
use crate::identity::{jitter, now_ms};
use crate::protocol::codec;
use crate::protocol::messages::Item;
use crate::runners::{run_log, HandlerCall, Outcome, Runners};
use crate::session::{Config, Session};
use crate::sys::zmq;

const DRAIN_MS: f64 = 25_000.0; // time for runs to end after the worker began to stop
const EXPEL_MS: f64 = 2_000.0; // time for runs to end after a request to stop
const RECEIVE_MAX: usize = 500; // frames received before actions are performed
const RECEIVE_BYTES_MAX: usize = 64 * 1024; // the same in bytes: the first steps run while the next are received
const POLL_MAX_MS: f64 = 60_000.0;

/// What the thread needs to start.
pub(super) struct Setup {
    pub config: Config,
    pub handlers: Vec<Arc<Handler>>,
    pub curve: Option<CurveKeys>,
    pub mailbox: Arc<Mailbox>,
}

/// Runs a worker from its first hello until it has quit.
pub(super) fn run(setup: Setup) -> Result<(), String> {
    let mailbox = setup.mailbox.clone();
    let report = Box::new(move |item, outcome| mailbox.put(Mail::Outcome(item, outcome)));
    let mut runners = Runners::new(&setup.handlers, setup.config.slots, report).map_err(|error| error.to_string())?;
    let context = zmq::Context::new()?;
    let sockets = WorkerSockets::new(&context, &setup.config.worker, &setup.config.links, setup.curve.as_ref())?;
    let mailbox = setup.mailbox.clone();
    let report_progress: ProgressReport =
        Arc::new(move |item, done, total, note| mailbox.put(Mail::Progress { item, done, total, note }));
    let started = Event::WorkerStarted {
        name: setup.config.worker.split(':').next().unwrap_or_default().to_owned(),
        handlers: setup.config.offers.iter().map(|offer| offer.pattern.clone()).collect(),
        slots: setup.config.slots,
        pid: setup.config.pid,
    };
    let public_key = setup.curve.as_ref().map(|keys| keys.public_key.clone());
    let mut thread = SocketThread {
        session: Session::new(setup.config, jitter()),
        sockets,
        runners: &mut runners,
        mailbox: setup.mailbox,
        handlers: setup.handlers,
        report_progress,
        events: WorkerEvents::new(public_key.clone()),
        search: BrokerSearch::new(public_key),
        calls: HashMap::new(),
        frame: Vec::new(),
        expel_at_ms: NEVER,
        leave_at_ms: NEVER,
        has_quit: false,
    };
    events::log(Level::Info, &started);
    thread.work();
    let unacknowledged = thread.session.held();
    thread.sockets.linger();
    drop(thread);
    runners.stop();
    drop(context);
    events::log(Level::Info, &Event::WorkerEnded { unacknowledged });
    Ok(())
}

struct SocketThread<'a> {
    session: Session,
    sockets: WorkerSockets<'a>,
    runners: &'a mut Runners,
    mailbox: Arc<Mailbox>,
    handlers: Vec<Arc<Handler>>,
    report_progress: ProgressReport,
    events: WorkerEvents,
    search: BrokerSearch,
    calls: HashMap<Item, Arc<HandlerCall>>,
    frame: Vec<u8>, // reused for each frame sent
    expel_at_ms: f64,
    leave_at_ms: f64,
    has_quit: bool,
}

impl SocketThread<'_> {
    fn work(&mut self) {
        self.session.start(now_ms());
        self.look_for_brokers();
        while !self.has_quit {
            for action in self.session.actions(now_ms()) {
                self.perform(action);
            }
            self.runners.flush();
            self.wait();
            let now = now_ms();
            self.receive(now);
            self.read_mailbox();
            self.check_drain(now);
            if now >= self.search.report_at_ms {
                self.look_for_brokers();
            }
        }
    }

    /// Waits for a frame, for mail, or for the time at which the session has to act.
    fn wait(&mut self) {
        let at_ms = self.session.wake_at().min(self.expel_at_ms).min(self.leave_at_ms).min(self.search.report_at_ms);
        let wait_ms = at_ms - now_ms();
        if wait_ms <= 0.0 || self.has_quit {
            return;
        }
        if self.session.awaits_results() {
            // Results wait for others that end within this millisecond. No outcome needs to wake this thread meanwhile.
            self.sockets.sub.poll(None, 1);
        } else if self.mailbox.may_sleep() {
            let fd = self.mailbox.fd();
            let is_readable = self.sockets.sub.poll(Some(fd), wait_ms.min(POLL_MAX_MS) as i64 + 1);
            self.mailbox.wake_up(is_readable);
        }
    }

    fn receive(&mut self, now: f64) {
        let session = &mut self.session;
        let mut left_bytes = RECEIVE_BYTES_MAX;
        for _ in 0..RECEIVE_MAX {
            let received = self.sockets.sub.receive(|frame| {
                if let Ok((topic, body)) = codec::split(frame) {
                    session.receive(topic, body, now);
                }
                frame.len()
            });
            match received {
                None => return,
                Some(bytes) => left_bytes = left_bytes.saturating_sub(bytes.unwrap_or(0)),
            }
            if left_bytes == 0 {
                return;
            }
        }
    }

    fn read_mailbox(&mut self) {
        let now = now_ms();
        for mail in self.mailbox.take() {
            match mail {
                Mail::Outcome(item, outcome) => {
                    self.calls.remove(&item);
                    match outcome {
                        Outcome::GiveBack => self.session.give_back(item, now),
                        Outcome::Result(result) => self.session.finished(item, result, now),
                    }
                }
                Mail::Progress { item, done, total, note } => self.session.progressed(item, done, total, note, now),
                Mail::Quiet => self.session.quiet(now),
                Mail::Drain { drain_ms } => {
                    self.session.drain(now);
                    self.expel_at_ms = self.expel_at_ms.min(now + drain_ms);
                }
            }
        }
    }

    /// After the time to drain, asks runs to stop. After EXPEL_MS, quits without waiting for them.
    fn check_drain(&mut self, now: f64) {
        if self.session.is_draining() && self.expel_at_ms == NEVER && self.leave_at_ms == NEVER {
            self.expel_at_ms = now + DRAIN_MS; // a broker has ordered the worker to quit
        }
        if now >= self.expel_at_ms {
            self.expel_at_ms = NEVER;
            self.leave_at_ms = now + if self.session.expel() > 0 { EXPEL_MS } else { 0.0 };
        }
        if now >= self.leave_at_ms {
            self.has_quit = true;
        }
    }

    // -- actions of the session ---------------------------------------------------------------------------------------

    fn perform(&mut self, action: Action) {
        match action {
            Action::Run(run) => self.run(run),
            Action::Send { topic, body } => {
                self.frame.clear();
                self.frame.extend_from_slice(topic.as_bytes());
                self.frame.extend_from_slice(&body);
                self.sockets.send(&self.frame);
            }
            Action::CancelRun { item, reason } => self.cancel(item, reason),
            Action::Connect { link, server_key } => self.sockets.connect(&link, server_key.as_deref()),
            Action::Disconnect { link } => self.sockets.disconnect(&link),
            Action::Rebuild { link } => self.sockets.rebuild(&link),
            Action::ResultTooLarge { step, result } => {
                if let Some(error) = &result.error {
                    run_log::not_reported(&step, error);
                }
            }
            Action::Log { level, event } => {
                let session = &self.session;
                self.events.log(level, &event, |broker| session.link_of(broker));
                self.look_for_brokers();
            }
            Action::Quit => self.has_quit = true,
        }
    }

    fn run(&mut self, run: Arc<Run>) {
        let context = Context::new(run.step.clone(), self.report_progress.clone());
        let handler = self.handlers[run.offer].clone();
        let call = Arc::new(HandlerCall { run, handler, context });
        self.calls.insert(call.run.item, call.clone());
        self.runners.submit(call);
    }

    fn look_for_brokers(&mut self) {
        self.search.update(self.session.links_without_session(), now_ms());
    }

    fn cancel(&mut self, item: Item, reason: StopReason) {
        if let Some(call) = self.calls.get(&item) {
            run_log::interrupted(call.context.step(), reason);
            call.context.stop(reason);
        }
    }
}
