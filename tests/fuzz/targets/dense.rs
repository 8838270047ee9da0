//! Fuzzes tensor operations of guests.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("dense"), |bytes: &[u8]| sandbar_fuzz::fuzz("dense", bytes));
