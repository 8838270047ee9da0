//! Fuzzes messages of workers.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("answer"), |bytes: &[u8]| sandbar_fuzz::fuzz("answer", bytes));
