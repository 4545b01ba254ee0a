//! Passes outcomes and requests from other threads to the socket thread, and wakes it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::io::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use crate::protocol::messages::Item;
use crate::runners::Outcome;

/// What other threads tell the socket thread.
pub(super) enum Mail {
    Outcome(Item, Outcome),
    Progress { item: Item, done: f64, total: Option<f64>, note: Option<String> },
    Quiet,
    Drain { drain_ms: f64 },
}

/// Any thread may add mail; only the socket thread removes it.
pub(super) struct Mailbox {
    state: Mutex<State>,
    reader: UnixStream,
    writer: UnixStream,
}

struct State {
    mail: VecDeque<Mail>,
    is_awake: bool, // the socket thread reads the mailbox soon without being woken
}

impl Mailbox {
    pub fn new() -> std::io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let state = State { mail: VecDeque::new(), is_awake: true };
        Ok(Self { state: Mutex::new(state), reader, writer })
    }

    /// A descriptor that is readable when the socket thread must wake up.
    pub fn fd(&self) -> RawFd {
        self.reader.as_raw_fd()
    }

    pub fn put(&self, mail: Mail) {
        let must_wake = {
            let mut state = self.state();
            state.mail.push_back(mail);
            !std::mem::replace(&mut state.is_awake, true)
        };
        if must_wake {
            let _ = (&self.writer).write(&[0]); // a full pipe has wake-ups already
        }
    }

    /// Called by the socket thread before it sleeps: from now on, additions wake it. False if there are some now.
    pub fn may_sleep(&self) -> bool {
        let mut state = self.state();
        state.is_awake = !state.mail.is_empty();
        !state.is_awake
    }

    /// Called by the socket thread after it slept: additions need not wake it.
    pub fn wake_up(&self, is_readable: bool) {
        self.state().is_awake = true;
        if is_readable {
            let _ = (&self.reader).read(&mut [0; 64]);
        }
    }

    /// All mail, oldest first.
    pub fn take(&self) -> VecDeque<Mail> {
        std::mem::take(&mut self.state().mail)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
