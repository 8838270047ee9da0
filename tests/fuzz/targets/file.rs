//! Fuzzes input files.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("file"), |bytes: &[u8]| sandbar_fuzz::fuzz("file", bytes));
