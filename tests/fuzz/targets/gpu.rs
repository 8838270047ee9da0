//! Fuzzes messages of the GPU process.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("gpu"), |bytes: &[u8]| sandbar_fuzz::fuzz("gpu", bytes));
