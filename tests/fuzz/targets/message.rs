//! Fuzzes messages of a program's workers.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("message"), |bytes: &[u8]| sandbar_fuzz::fuzz("message", bytes));
