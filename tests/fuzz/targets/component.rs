//! Fuzzes components that users submit.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("component"), |bytes: &[u8]| sandbar_fuzz::fuzz("component", bytes));
