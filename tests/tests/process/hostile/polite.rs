//! Attacks in ordinary Rust.

use super::Outcome::{self, Groups, Harmless, Job};
use super::{Role, attack_beside_a_victim};

#[rustfmt::skip]
const TRANSFORMS: &[(&str, Outcome)] = &[
    ("batch_loops",          Job("time-out", "ran longer than 300 ms (time_ms_max)")),
    ("batch_takes_memory",   Job("memory-limit", "the limit is 67108864 (memory_bytes_max)")),
    ("batch_panics",         Job("panic", "3 columns are too many for me")),
    ("batch_gives_too_much", Job("output-limit", "the limit is 4194304 (output_bytes_max)")),
    ("batch_gives_bits",     Job("output-limit", "the limit is 34603008 (8 times output_bytes_max)")),
    ("batch_refuses",        Job("refused", "no, no, ")),
    ("batch_complains",      Job("refused", "batch_complains: warn: I have seen better rows")),
    ("scalar_panics",        Job("panic", "3 is more than I can take")),
    ("scalar_divides",       Job("panic", "divide by zero")),
];

#[rustfmt::skip]
const MODELS: &[(&str, Outcome)] = &[
    ("fit_loops",           Groups("time-out", "ran longer than 300 ms (time_ms_max)")),
    ("fit_takes_memory",    Groups("memory-limit", "the limit is 67108864 (memory_bytes_max)")),
    ("fit_takes_a_gib",     Groups("memory-limit", "the limit is 67108864 (memory_bytes_max)")),
    ("fit_recurses",        Groups("stack-overflow", "recurses too deep")),
    ("fit_panics",          Groups("panic", "help! help!")),
    ("fit_panics_twice",    Groups("panic", "")),
    ("fit_writes_anywhere", Groups("trap", "out of bounds memory access")),
    ("fit_reads_beyond",    Groups("panic", "index out of bounds")),
    ("model_is_large",      Groups("output-limit", "the limit is 1048576 (model_bytes_max)")),
    ("predicts_nan",        Groups("bad-output", "NaN or infinity for 3 of 3 rows")),
    ("predict_loops",       Groups("time-out", "ran longer than 300 ms")),
    ("predict_panics",      Groups("panic", "I see nothing")),
    ("params_unspeakable",  Groups("refused", "not JSON")),
    ("exits",               Groups("exit", "exit(0)")),
    ("exits_with_7",        Groups("exit", "exit(1)")),
    ("aborts",              Groups("trap", "unreachable")),
    ("sleeps",              Groups("time-out", "ran longer than 300 ms")),
    ("waits",               Harmless),
    ("prints",              Harmless),
    ("probes_the_host",     Harmless),
];

#[test]
fn ordinary_rust() {
    attack_beside_a_victim("tests/hostile/polite", &[(Role::Transform, TRANSFORMS), (Role::Model, MODELS)]);
}
