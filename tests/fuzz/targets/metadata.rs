//! Fuzzes the metadata of model files.
#![no_main]

libfuzzer_sys::fuzz_target!(init: sandbar_fuzz::prepare("metadata"), |bytes: &[u8]| sandbar_fuzz::fuzz("metadata", bytes));
