//! Fuzzes output batches of guests.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::begin("batch"), |bytes: &[u8]| sandbar_fuzz::fuzz("batch", bytes));
