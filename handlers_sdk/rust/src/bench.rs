//! Two bare sockets for `stepwire-echo`, which measures the binding without the SDK.

use crate::sys::zmq;

/// A SUB that is subscribed to `steps `, and a PUB.
pub struct BareSockets {
    steps: String,
    results: String,
}

impl BareSockets {
    /// Notes the endpoints.
    ///
    /// # Errors
    /// An empty endpoint.
    pub fn connect(steps: &str, results: &str) -> Result<Self, String> {
        if steps.is_empty() || results.is_empty() {
            return Err("STEPWIRE_STEPS and STEPWIRE_RESULTS need an endpoint each".to_owned());
        }
        Ok(Self { steps: steps.to_owned(), results: results.to_owned() })
    }

    /// Sends what the function makes of each frame, until the process ends.
    ///
    /// # Errors
    /// A socket that cannot be made or connected.
    pub fn serve(&self, answer: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Result<(), Box<dyn std::error::Error>> {
        let context = zmq::Context::new()?;
        let (sub, publisher) = (context.socket(zmq::SUB)?, context.socket(zmq::PUB)?);
        sub.set_int(zmq::RCVHWM, 0)?;
        sub.connect(&self.steps)?;
        publisher.connect(&self.results)?;
        sub.set(zmq::SUBSCRIBE, b"steps ")?;
        loop {
            match sub.receive(&answer) {
                None => {
                    sub.poll(None, -1);
                }
                Some(reply) => {
                    if let Some(reply) = reply.flatten() {
                        publisher.send(&reply);
                    }
                }
            }
        }
    }
}
