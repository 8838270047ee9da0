//! Fuzzes requests of tenants to nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("door"), |bytes: &[u8]| sandbar_fuzz::fuzz("door", bytes));
