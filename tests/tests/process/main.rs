//! The host from outside: what it is given, what it says, what it leaves.

mod actors;
mod cluster;
mod compiler;
mod deploy;
mod entering;
mod examples;
mod files;
mod gpu;
mod hostile;
mod interrupts;
mod job;
mod lifecycle;
mod machine;
mod numbers;
mod objects;
mod placement;
mod pool;
mod programs;
mod real;
mod seen;
mod soak;
mod stored;
mod streams;
mod takeover;
mod usage;
mod waits;
