pub mod actions;
pub mod driver;
mod errors;
pub mod protocol;
pub mod runners;
pub mod session;
