//! Contents of the shipped programs: what must be linked into them, and what must not.

use sandbar_tests::{host, workspace};

/// Texts of the fuzz harnesses. They are compiled with the runtime and the worker, since a feature for them would split the
/// build; the linker leaves out what a program does not call.
const HARNESS_TEXTS: [(&str, &str); 2] = [
    ("host/runtime/src/engine/fuzz/mod.rs", "the scheduler has tasks or objects of ended jobs"),
    ("host/worker/src/program/fuzz.rs", "frames are misplaced although only honest writers ran"),
];

const PROGRAMS: [&str; 3] = ["host", "host-worker", "host-gpu"];

#[test]
fn the_programs_contain_no_fuzz_harness() {
    for (source, text) in HARNESS_TEXTS {
        assert!(std::fs::read_to_string(workspace().join(source)).unwrap().contains(text), "{source} lacks `{text}`");
        for name in PROGRAMS {
            assert!(!contains(name, text), "{name} contains {source}");
        }
    }
}

/// Unpacked, the relocations of `host-worker` take 2 MB of each worker.
#[test]
fn the_programs_pack_their_relocations_alike() {
    let packed = PROGRAMS.map(|name| contains(name, ".relr.dyn"));
    assert!(packed == [true; 3] || packed == [false; 3], "{packed:?}");
}

/// Returns whether a program's file contains a text.
fn contains(program: &str, text: &str) -> bool {
    let program = std::fs::read(host().with_file_name(program)).unwrap();
    program.windows(text.len()).any(|part| part == text.as_bytes())
}
