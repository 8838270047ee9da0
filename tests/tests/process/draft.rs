//! The host from outside.

mod hostile;
mod job;
