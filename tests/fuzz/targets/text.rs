//! Fuzzes text files and their options.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("text"), |bytes: &[u8]| sandbar_fuzz::fuzz("text", bytes));
