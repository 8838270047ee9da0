//! Fuzzes join tokens, with valid checksums.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("token"), |bytes: &[u8]| sandbar_fuzz::fuzz("token", bytes));
