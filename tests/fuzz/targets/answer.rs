//! Fuzzes messages of workers.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::begin("answer"), |bytes: &[u8]| sandbar_fuzz::fuzz("answer", bytes));
