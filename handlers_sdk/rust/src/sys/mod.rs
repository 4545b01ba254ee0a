//! The only unsafe code: libzmq, and the few functions of the system that the standard library does not have.

#![allow(unsafe_code)]

pub(crate) mod os;
pub(crate) mod zmq;
