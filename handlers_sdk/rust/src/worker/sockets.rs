//! The worker's two sockets: SUB receives from brokers, PUB sends to brokers. The worker connects, brokers bind.
//!
//! `protocol/SDK_GUIDE.md` section 13 explains each option.

use std::collections::HashMap;

use super::events;
use crate::actions::{Event, Level, Link};
use crate::curve::CurveKeys;
use crate::protocol::limits::FRAME_BYTES_MAX;
use crate::protocol::topics;
use crate::sys::zmq::{self, Context, Socket};

const LINGER_MS: i32 = 2_000;

/// Both sockets. One thread makes, uses and drops them.
pub(super) struct WorkerSockets<'a> {
    pub sub: Socket<'a>,
    pub publisher: Socket<'a>,
    server_key: Option<String>,
    key_of: HashMap<Link, String>, // of brokers that another broker has listed
}

impl<'a> WorkerSockets<'a> {
    pub fn new(context: &'a Context, worker: &str, links: &[Link], curve: Option<&CurveKeys>) -> Result<Self, String> {
        let sub = context.socket(zmq::SUB)?;
        let publisher = context.socket(zmq::PUB)?;
        for socket in [&sub, &publisher] {
            let options = [
                (zmq::LINGER, 0),
                (zmq::IMMEDIATE, 0),
                (zmq::TCP_KEEPALIVE, 1),
                (zmq::TCP_KEEPALIVE_IDLE, 15),
                (zmq::TCP_KEEPALIVE_INTVL, 5),
                (zmq::TCP_KEEPALIVE_CNT, 3),
                (zmq::RECONNECT_IVL, 100),
                (zmq::RECONNECT_IVL_MAX, 1000),
                (zmq::HANDSHAKE_IVL, 5000),
                (zmq::IPV6, 1),
            ];
            for (option, value) in options {
                socket.set_int(option, value)?;
            }
            if let Some(keys) = curve {
                socket.set_key(zmq::CURVE_SERVERKEY, &keys.server_key)?;
                socket.set_key(zmq::CURVE_PUBLICKEY, &keys.public_key)?;
                socket.set_key(zmq::CURVE_SECRETKEY, &keys.secret_key)?;
            }
        }
        sub.set_int(zmq::RCVHWM, 0)?; // credit limits the number of messages, and a finite mark can abort the process
        sub.set_long(zmq::MAXMSGSIZE, FRAME_BYTES_MAX)?;
        publisher.set_int(zmq::SNDHWM, 10_000)?;
        publisher.set_long(zmq::MAXMSGSIZE, 64 * 1024)?;
        publisher.set_int(zmq::TCP_MAXRT, 20_000)?;
        sub.set(zmq::SUBSCRIBE, topics::to_worker(worker).as_bytes())?;
        sub.set(zmq::SUBSCRIBE, topics::BROKERS.as_bytes())?;
        let server_key = curve.map(|keys| keys.server_key.clone());
        let mut sockets = Self { sub, publisher, server_key, key_of: HashMap::new() };
        for link in links {
            sockets.connect(link, None);
        }
        Ok(sockets)
    }

    /// `server_key`: that of this broker; None: the configured one.
    pub fn connect(&mut self, link: &Link, server_key: Option<&str>) {
        if let (Some(own), Some(_)) = (server_key, &self.server_key) {
            self.key_of.insert(link.clone(), own.to_owned());
        }
        let own_key = self.key_of.get(link).cloned();
        for (socket, endpoint) in [(&self.sub, &link.steps), (&self.publisher, &link.results)] {
            if let Some(own) = &own_key {
                self.use_key(socket, own, endpoint);
            }
            if let Err(error) = socket.connect(endpoint) {
                events::log(Level::Error, &Event::ConnectFailed { endpoint: endpoint.clone(), error });
            }
            if let (Some(_), Some(configured)) = (&own_key, &self.server_key) {
                self.use_key(socket, configured, endpoint); // the option counts for later connections only
            }
        }
    }

    pub fn disconnect(&mut self, link: &Link) {
        self.close_link(link);
        self.key_of.remove(link);
    }

    pub fn rebuild(&mut self, link: &Link) {
        self.close_link(link);
        self.connect(link, None);
    }

    /// Sends one frame.
    pub fn send(&self, frame: &[u8]) {
        self.publisher.send(frame);
    }

    /// Lets the end of the context wait for the last messages.
    pub fn linger(&self) {
        let _ = self.publisher.set_int(zmq::LINGER, LINGER_MS);
    }

    fn close_link(&self, link: &Link) {
        // An error means that libzmq has dropped the connection already.
        let _ = self.sub.disconnect(&link.steps);
        let _ = self.publisher.disconnect(&link.results);
    }

    fn use_key(&self, socket: &Socket<'_>, key: &str, endpoint: &str) {
        if let Err(error) = socket.set_key(zmq::CURVE_SERVERKEY, key) {
            events::log(Level::Error, &Event::ConnectFailed { endpoint: endpoint.to_owned(), error });
        }
    }
}
