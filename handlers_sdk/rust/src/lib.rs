//! Stepwire for Rust: write handlers, and run them in a worker.
//!
//! A handler is a function that does the work of one step of a durable workflow. A [`Worker`] offers handlers to
//! brokers, runs their steps, and keeps each result until a broker has committed it.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use stepwire::{Context, StepError, Worker};
//!
//! #[derive(Deserialize)]
//! struct Order {
//!     order_id: u64,
//! }
//!
//! #[derive(Serialize)]
//! struct Shipped {
//!     tracking: String,
//! }
//!
//! async fn ship(ctx: Context, order: Order) -> Result<Shipped, StepError> {
//!     ctx.log().info("shipping");
//!     Ok(Shipped { tracking: format!("T{}", order.order_id) })
//! }
//!
//! fn main() -> Result<(), stepwire::ConfigurationError> {
//!     let mut worker = Worker::from_env()?;
//!     worker.handle("ship_order", ship)?;
//!     worker.run()
//! }
//! ```

#![doc(test(attr(allow(dead_code, unused))))]
#![deny(unsafe_code)] // except in `sys`
#![warn(missing_docs)]

pub mod actions;
#[doc(hidden)]
pub mod bench;
mod context;
mod curve;
#[doc(hidden)]
pub mod driver;
mod edge;
pub mod environment;
mod errors;
mod finite;
mod handler;
pub mod identity;
pub mod logs;
pub mod protocol;
mod runners;
pub mod session;
mod sys;
pub mod testing;
mod texts;
mod worker;

pub use actions::StopReason;
pub use context::Context;
pub use curve::CurveKeys;
pub use environment::Environment;
pub use errors::{ConfigurationError, StepError, StepErrorKind, OUTCOME_UNKNOWN};
pub use handler::Handler;
pub use protocol::messages::DeliveryMode;
pub use worker::Worker;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
