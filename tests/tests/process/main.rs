//! The host from outside: what it is given, what it says, what it leaves.

mod compiler;
mod hostile;
mod job;
mod lifecycle;
mod pool;
mod programs;
mod real;
mod stored;
mod usage;
