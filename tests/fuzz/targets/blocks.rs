//! Fuzzes blocks of rows that a worker has cut.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("blocks"), |bytes: &[u8]| sandbar_fuzz::fuzz("blocks", bytes));
