//! Ends of the wire as they are met: real endpoints on the loopback, real files, certificates made for the test.
//!
//! Random tests print their seed; `SANDBAR_SEED=7` replays one, `SANDBAR_SEEDS` is how many are tried.

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
