//! Fuzzes rings in shared memory.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("ring"), |bytes: &[u8]| sandbar_fuzz::fuzz("ring", bytes));
