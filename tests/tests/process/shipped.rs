//! What the shipped programs consist of.

use sandbar_tests::{host, workspace};

/// Texts of the fuzz harnesses. They are compiled with the runtime and the worker, since a feature for them would split the
/// build; the linker leaves out what a program does not call.
const HARNESS_TEXTS: [(&str, &str); 2] = [
    ("host/runtime/src/engine/fuzz/mod.rs", "the scheduler has tasks or objects of ended jobs"),
    ("host/worker/src/program/fuzz.rs", "frames are misplaced although only honest writers ran"),
];

#[test]
fn the_programs_contain_no_fuzz_harness() {
    for (source, text) in HARNESS_TEXTS {
        assert!(std::fs::read_to_string(workspace().join(source)).unwrap().contains(text), "{source} lacks `{text}`");
        for name in ["host", "host-worker", "host-gpu"] {
            let program = std::fs::read(host().with_file_name(name)).unwrap();
            assert!(!program.windows(text.len()).any(|part| part == text.as_bytes()), "{name} contains {source}");
        }
    }
}
