//! A file of text, and what a job says of it.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::begin("text"), |bytes: &[u8]| sandbar_fuzz::fuzz("text", bytes));
