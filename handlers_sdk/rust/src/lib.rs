//! Stepwire for Rust: write handlers, and run them in a worker.

pub mod actions;
mod context;
pub mod driver;
pub mod environment;
mod errors;
mod handler;
pub mod identity;
pub mod logs;
pub mod protocol;
pub mod runners;
pub mod session;
mod sys;
mod texts;
mod worker;

pub use actions::StopReason;
pub use context::Context;
pub use environment::{CurveKeys, Environment};
pub use errors::{ConfigurationError, StepError, StepErrorKind, OUTCOME_UNKNOWN};
pub use handler::Handler;
pub use protocol::messages::DeliveryMode;
pub use worker::Worker;
