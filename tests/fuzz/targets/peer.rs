//! Fuzzes messages of other nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("peer"), |bytes: &[u8]| sandbar_fuzz::fuzz("peer", bytes));
