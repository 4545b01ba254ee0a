//! The slots of a worker's runners, and the calls that wait for one.
//!
//! All runners share the slots. The calls start in the order in which they were handed over, and wait for a slot and for
//! a place in the concurrency of their handler.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use crate::session::Offer;

/// A call of a handler, with the number of the handler's offer.
pub trait Call {
    /// The number of the offer.
    fn offer(&self) -> usize;
}

/// Gives slots to calls. Any thread may call these methods.
#[derive(Debug)]
pub struct RunSlots<C> {
    state: Mutex<State<C>>,
}

#[derive(Debug)]
struct State<C> {
    free: u64,
    waiting: VecDeque<C>,
    limited: HashMap<usize, Limited<C>>,
}

#[derive(Debug)]
struct Limited<C> {
    places: u64,
    blocked: VecDeque<C>,
}

impl<C: Call> RunSlots<C> {
    /// Slots for the handlers of these offers.
    pub fn new(slots: u64, offers: &[Offer]) -> Self {
        let limit = |(number, offer): (usize, &Offer)| {
            Some((number, Limited { places: offer.concurrency?, blocked: VecDeque::new() }))
        };
        let limited = offers.iter().enumerate().filter_map(limit).collect();
        Self { state: Mutex::new(State { free: slots, waiting: VecDeque::new(), limited }) }
    }

    /// Adds calls. Returns those that have a slot now, and must be started.
    pub fn add(&self, calls: impl IntoIterator<Item = C>) -> Vec<C> {
        let mut state = self.state.lock().expect("no code panics with this lock");
        state.waiting.extend(calls);
        let mut started = Vec::new();
        while state.free > 0 {
            match state.next() {
                Some(call) => started.push(call),
                None => break,
            }
            state.free -= 1;
        }
        started
    }

    /// Releases the slot of a call with this offer. Returns the call that has the slot now, and must be started.
    pub fn release(&self, offer: usize) -> Option<C> {
        let mut state = self.state.lock().expect("no code panics with this lock");
        if let Some(limited) = state.limited.get_mut(&offer) {
            if let Some(following) = limited.blocked.pop_front() {
                return Some(following);
            }
            limited.places += 1;
        }
        let following = state.next();
        if following.is_none() {
            state.free += 1;
        }
        following
    }
}

impl<C: Call> State<C> {
    /// The next call in the queue whose handler has a place. Calls before it wait for their own handlers.
    fn next(&mut self) -> Option<C> {
        while let Some(call) = self.waiting.pop_front() {
            match self.limited.get_mut(&call.offer()) {
                None => return Some(call),
                Some(limited) if limited.places > 0 => {
                    limited.places -= 1;
                    return Some(call);
                }
                Some(limited) => limited.blocked.push_back(call),
            }
        }
        None
    }
}
