//! Fuzzes events of the scheduler.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("events"), |bytes: &[u8]| sandbar_fuzz::fuzz("events", bytes));
