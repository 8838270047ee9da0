//! Fuzzes job files with overrides.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("job"), |bytes: &[u8]| sandbar_fuzz::fuzz("job", bytes));
