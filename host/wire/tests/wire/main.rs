//! End-to-end tests with real endpoints on loopback, real files, and certificates generated for each test.
//!
//! Random tests print their seed; `SANDBAR_SEED=7` replays one, `SANDBAR_SEEDS` sets how many are tried.

mod certificates;
mod channels;
mod folders;
mod hostile;
mod joins;
mod life;
mod peers;
mod raw;
mod renewals;
mod strangers;
mod support;
mod tokens;
mod versions;
