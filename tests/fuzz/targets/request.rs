//! Fuzzes requests of tasks to their workers.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("request"), |bytes: &[u8]| sandbar_fuzz::fuzz("request", bytes));
