//! Fuzzes output batches of guests.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("batch"), |bytes: &[u8]| sandbar_fuzz::fuzz("batch", bytes));
