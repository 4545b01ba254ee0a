//! The `Worker` for programs: configuration, handlers, signals, start and stop.

mod events;
mod mailbox;
mod reachability;
mod search;
mod socket_thread;
mod sockets;

use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::io::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::actions::{Event, Level};
use crate::context::Context;
use crate::curve;
use crate::edge::{Edge, Resolver};
use crate::environment::{self, Environment};
use crate::errors::{short_name, ConfigurationError, StepError};
use crate::handler::Handler;
use crate::identity;
use crate::protocol::limits;
use crate::session::Config;
use crate::sys::os;
use mailbox::{Mail, Mailbox};

const DRAIN: Duration = Duration::from_secs(25);
const ACCEPT_DELAY_MS: f64 = 5.0;

/// Offers handlers to brokers.
///
/// ```no_run
/// use serde::{Deserialize, Serialize};
/// use stepwire::{Context, StepError, Worker};
///
/// #[derive(Deserialize)]
/// struct Order {
///     order_id: u64,
/// }
///
/// #[derive(Serialize)]
/// struct Shipped {
///     tracking: String,
/// }
///
/// async fn ship(ctx: Context, order: Order) -> Result<Shipped, StepError> {
///     ctx.log().info("shipping");
///     Ok(Shipped { tracking: format!("T{}", order.order_id) })
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let mut worker = Worker::from_env()?;
///     worker.handle("ship_order", ship)?;
///     worker.run()?;
///     Ok(())
/// }
/// ```
pub struct Worker {
    environment: Environment,
    edge: Arc<Edge>,
    prefetch: Option<u64>,
    heartbeat_ms: u64,
    handlers: Vec<Arc<Handler>>,
    running: Option<Running>,
}

/// A worker that has started.
struct Running {
    id: String,
    mailbox: Arc<Mailbox>,
    ended: Arc<Ended>,
}

/// Set when the socket thread has ended, with its fault if there was one.
#[derive(Default)]
struct Ended {
    result: Mutex<Option<Result<(), String>>>,
    condition: Condvar,
    waker: Mutex<Option<UnixStream>>, // wakes the thread that waits for signals
}

impl Worker {
    /// A worker configured by STEPWIRE_STEPS, _RESULTS, _NAME, _SLOTS, _LABELS, _HANDLER_VERSION, _CURVE_*,
    /// _SECRETS_DIR and _SEAL_KEYS_FILE.
    ///
    /// # Errors
    /// A variable that cannot be used; the message names it.
    pub fn from_env() -> Result<Self, ConfigurationError> {
        Self::new(Environment::read()?)
    }

    /// A worker with these settings.
    ///
    /// # Errors
    /// A setting that cannot be used; the message names it.
    pub fn new(environment: Environment) -> Result<Self, ConfigurationError> {
        environment::links(&environment.steps, &environment.results)?;
        if let Some(name) = &environment.name {
            environment::check_name(name)?;
        }
        environment::check_slots(environment.slots)?;
        environment::check_handler_version(&environment.handler_version)?;
        if let Some(keys) = &environment.curve {
            curve::check(keys)?;
        }
        let edge = Arc::new(edge_of(&environment, None)?);
        Ok(Self {
            environment,
            edge,
            prefetch: None,
            heartbeat_ms: limits::HEARTBEAT_MS,
            handlers: Vec::new(),
            running: None,
        })
    }

    /// The number of steps that may wait in the worker at least. 0: no step waits here. Without it, as many wait as the
    /// worker is observed to finish in 40 ms.
    pub fn prefetch(&mut self, steps: u64) -> &mut Self {
        self.prefetch = Some(steps);
        self
    }

    /// Asks this function for the value of each secret, in place of the directory of the environment. It returns None for
    /// an unknown name. If it fails, the step fails with the category `unavailable`. It runs before a handler, on any
    /// thread.
    ///
    /// # Errors
    /// The file of seal keys cannot be used any more.
    pub fn secrets<F, E>(&mut self, resolver: F) -> Result<&mut Self, ConfigurationError>
    where
        F: Fn(&str) -> Result<Option<String>, E> + Send + Sync + 'static,
    {
        let kind = short_name(std::any::type_name::<E>());
        let resolver: Resolver = Box::new(move |name| resolver(name).map_err(|_| kind.to_owned()));
        self.edge = Arc::new(edge_of(&self.environment, Some(resolver))?);
        Ok(self)
    }

    pub(crate) fn edge(&self) -> &Arc<Edge> {
        &self.edge
    }

    /// Registers an async function for a handler_class, or for a pattern (`Billing::**`).
    ///
    /// # Errors
    /// A name that cannot be used or is taken, or a worker that has started.
    pub fn handle<F, Fut, I, O, E>(&mut self, name: impl Into<String>, function: F) -> Result<(), ConfigurationError>
    where
        F: Fn(Context, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
        I: DeserializeOwned,
        O: Serialize,
        E: Into<StepError>,
    {
        self.add(Handler::new(name, function))
    }

    /// Registers a plain function, which runs on a thread of its own: for code that computes or blocks.
    ///
    /// # Errors
    /// As `handle`.
    pub fn handle_blocking<F, I, O, E>(
        &mut self,
        name: impl Into<String>,
        function: F,
    ) -> Result<(), ConfigurationError>
    where
        F: Fn(Context, I) -> Result<O, E> + Send + Sync + 'static,
        I: DeserializeOwned,
        O: Serialize,
        E: Into<StepError>,
    {
        self.add(Handler::blocking(name, function))
    }

    /// Registers a handler with settings of its own.
    ///
    /// # Errors
    /// As `handle`.
    pub fn add(&mut self, handler: Handler) -> Result<(), ConfigurationError> {
        handler.check()?;
        let name = handler.name();
        if self.running.is_some() {
            return Err(ConfigurationError::new(format!(
                "handler '{name}' is registered too late: register handlers before the worker starts"
            )));
        }
        if self.handlers.iter().any(|known| known.name() == name) {
            return Err(ConfigurationError::new(format!("handler '{name}' is registered twice in this worker")));
        }
        if self.handlers.len() >= limits::HANDLERS_MAX {
            return Err(ConfigurationError::new(format!(
                "more than {} handlers: register a pattern instead",
                limits::HANDLERS_MAX
            )));
        }
        self.handlers.push(Arc::new(handler));
        Ok(())
    }

    pub(crate) fn handlers(&self) -> &[Arc<Handler>] {
        &self.handlers
    }

    /// The worker id of this process; None before the start.
    pub fn id(&self) -> Option<&str> {
        self.running.as_ref().map(|running| &*running.id)
    }

    // -- life ---------------------------------------------------------------------------------------------------------

    /// Runs until a signal ends the worker. TERM and INT drain; a second INT exits at once with 130. After TSTP the
    /// worker accepts no new steps. Blocks, so call it from `main`, or from a thread of your own in an async program.
    ///
    /// # Errors
    /// As `start`, or a fault of the SDK that ended the worker.
    pub fn run(&mut self) -> Result<(), ConfigurationError> {
        let (mut reader, writer) = UnixStream::pair().map_err(fault)?;
        writer.set_nonblocking(true).map_err(fault)?;
        let _signals = os::Signals::pass_to(writer.as_raw_fd());
        self.start()?;
        if let Some(running) = &self.running {
            *lock(&running.ended.waker) = Some(writer.try_clone().map_err(fault)?);
            if lock(&running.ended.result).is_some() {
                return self.wait();
            }
        }
        let mut byte = [0];
        loop {
            match reader.read(&mut byte) {
                Ok(1) if i32::from(byte[0]) == os::SIGTSTP => self.quiet(),
                Ok(1) if i32::from(byte[0]) == os::SIGTERM || i32::from(byte[0]) == os::SIGINT => self.drain(DRAIN),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => return self.wait(), // the socket thread has ended
            }
        }
    }

    /// Connects, and runs in the background. The worker gets its id here, and not before: after a fork, the child needs
    /// a worker of its own.
    ///
    /// # Errors
    /// No handlers, a worker that runs already, or a system that has no threads or sockets left.
    pub fn start(&mut self) -> Result<(), ConfigurationError> {
        if self.handlers.is_empty() {
            return Err(ConfigurationError::new("the worker has no handlers: register some with worker.handle(...)"));
        }
        if self.running.as_ref().map_or(false, |running| lock(&running.ended.result).is_none()) {
            return Err(ConfigurationError::new("the worker has started already"));
        }
        let config = self.config()?;
        let mailbox = Arc::new(Mailbox::new().map_err(fault)?);
        let ended = Arc::new(Ended::default());
        let id = config.worker.clone();
        let setup = socket_thread::Setup {
            config,
            handlers: self.handlers.clone(),
            curve: self.environment.curve.clone(),
            edge: self.edge.clone(),
            mailbox: mailbox.clone(),
        };
        let for_thread = ended.clone();
        let main = move || {
            let result = catch_unwind(AssertUnwindSafe(|| socket_thread::run(setup)))
                .unwrap_or_else(|_| Err("a panic, which is a fault of the SDK".to_owned()));
            if let Err(why) = &result {
                events::log(Level::Error, &Event::WorkerFailed { why: why.clone() });
            }
            for_thread.set(result);
        };
        thread::Builder::new().name("stepwire-sockets".to_owned()).spawn(main).map_err(fault)?;
        self.running = Some(Running { id, mailbox, ended });
        Ok(())
    }

    /// Accept no new steps, finish the steps that are held, and stay connected.
    pub fn quiet(&self) {
        if let Some(running) = &self.running {
            running.mailbox.put(Mail::Quiet);
        }
    }

    /// Begin to stop: return steps that have not started, let runs finish for at most this time, then end.
    pub fn drain(&self, at_most: Duration) {
        if let Some(running) = &self.running {
            running.mailbox.put(Mail::Drain { drain_ms: at_most.as_secs_f64() * 1000.0 });
        }
    }

    /// Drains for at most 25 s, and waits for the end.
    ///
    /// # Errors
    /// A fault of the SDK that ended the worker.
    pub fn stop(&self) -> Result<(), ConfigurationError> {
        self.drain(DRAIN);
        self.wait()
    }

    /// Waits for the end of the worker.
    ///
    /// # Errors
    /// A fault of the SDK that ended the worker.
    pub fn wait(&self) -> Result<(), ConfigurationError> {
        let running = match &self.running {
            Some(running) => running,
            None => return Ok(()),
        };
        let mut result = lock(&running.ended.result);
        loop {
            if let Some(result) = &*result {
                return result
                    .clone()
                    .map_err(|why| ConfigurationError::new(format!("the worker's socket thread has failed: {why}")));
            }
            result = running.ended.condition.wait(result).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn config(&self) -> Result<Config, ConfigurationError> {
        let settings = &self.environment;
        let process = identity::this_process();
        let name = settings.name.clone().unwrap_or_else(default_name);
        let offers = self.handlers.iter().map(|handler| handler.offer.clone()).collect();
        let mut config = Config::new(identity::new_worker_id(&name), offers, settings.slots);
        config.prefetch = self.prefetch;
        config.labels = settings.labels.clone();
        config.links = environment::links(&settings.steps, &settings.results)?;
        config.heartbeat_ms = self.heartbeat_ms;
        config.accept_delay_ms = ACCEPT_DELAY_MS;
        config.sdk = format!("stepwire-rust/{}", env!("CARGO_PKG_VERSION"));
        config.handler_version = settings.handler_version.clone();
        config.has_curve = settings.curve.is_some();
        config.host = process.host;
        config.pid = process.pid;
        config.pid_started = process.pid_started;
        config.proof = process.is_provable;
        Ok(config)
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.handlers.iter().map(|handler| handler.name()).collect();
        write!(out, "Worker({}, {names:?})", self.id().unwrap_or("not started"))
    }
}

impl Ended {
    fn set(&self, result: Result<(), String>) {
        *lock(&self.result) = Some(result);
        self.condition.notify_all();
        if let Some(mut waker) = lock(&self.waker).take() {
            let _ = waker.write(&[0]);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn edge_of(environment: &Environment, resolver: Option<Resolver>) -> Result<Edge, ConfigurationError> {
    Edge::new(environment.secrets_dir.as_deref(), resolver, environment.seal_keys_file.as_deref())
}

fn fault(error: std::io::Error) -> ConfigurationError {
    ConfigurationError::new(format!("the worker cannot start: {error}"))
}

/// The program's name, so that logs and lists of workers show which program runs.
fn default_name() -> String {
    let program = std::env::args().next().unwrap_or_default();
    let stem = std::path::Path::new(&program).file_stem().and_then(|stem| stem.to_str()).unwrap_or("worker");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = stem.chars().map(|c| if is_plain(c) { c } else { '-' }).take(48).collect();
    match name.trim_matches('-') {
        "" => "worker".to_owned(),
        name => name.to_owned(),
    }
}
