//! Trainers that break the rules of the contract.

use sandbar_tests::component;

use super::Outcome::{self, Groups, Harmless, SomeGroups};
use super::{AttackLab, Role, attack_beside_a_victim};

#[rustfmt::skip]
const ATTACKS: &[(&str, Outcome)] = &[
    ("honest",                  Harmless),
    ("settle-nothing",          Groups("bad-output", "returned before all groups were settled")),
    ("settle-without-group",    Groups("bad-request", "it has no current group")),
    // A call after a group is settled has no effect on it.
    ("settle-twice",            Harmless),
    ("next-without-settling",   Groups("bad-request", "before it has settled the current one")),
    ("next-after-the-end",      Harmless),
    ("too-few-predictions",     Groups("bad-output", "it returned 2 predictions for 3 test rows")),
    ("too-many-predictions",    Groups("bad-output", "it returned 4 predictions for 3 test rows")),
    ("half-a-prediction",       Groups("bad-output", "a fractional number of predictions for 3 test rows")),
    ("nan-predictions",         Groups("bad-output", "NaN or infinity for 3 of 3 rows")),
    ("infinite-predictions",    Groups("bad-output", "NaN or infinity for 3 of 3 rows")),
    ("largest-predictions",     Harmless),
    ("params-not-json",         Groups("bad-output", "not JSON")),
    ("params-empty",            Groups("bad-output", "not JSON")),
    ("params-huge",             Groups("bad-output", "the limit is 1048576")),
    ("params-deep",             Groups("bad-output", "nest deeper than 64 levels")),
    ("model-huge",              Groups("output-limit", "model_bytes_max")),
    ("model-while-fitting",     Groups("bad-request", "no stored models")),
    ("predicted-while-fitting", Groups("bad-request", "fits, it does not predict")),
    ("long-excuse",             Groups("refused", "because because")),
    ("long-excuse-for-all",     Groups("refused", "because because")),
    ("excuse-with-escapes",     Groups("refused", "fine: all groups fitted")),
    ("open-refuses",            Groups("refused", "not today")),
    ("open-refuses-at-length",  Groups("refused", "not today")),
    ("open-loops",              Groups("time-out", "300 ms")),
    ("open-asks",               Groups("bad-request", "before it has settled the current one")),
];

#[test]
fn trainers_that_break_the_rules() {
    attack_beside_a_victim("tests/hostile/raw", &[(Role::Model, ATTACKS)]);
}

#[rustfmt::skip]
const ATTACKS_AMONG_MANY: &[(&str, Outcome)] = &[
    ("honest",               Harmless),
    ("trap-in-some-groups",  SomeGroups("trap", "unreachable")),
    ("trap-in-one-group",    SomeGroups("trap", "unreachable")),
    ("greedy-before-the-trap", SomeGroups("trap", "unreachable")),
    ("loop-in-one-group",    SomeGroups("time-out", "300 ms")),
    ("settle-one",           SomeGroups("bad-output", "returned before all groups were settled")),
];

/// Many groups share a call: a failing group fails alone.
#[test]
fn one_group_among_many() {
    let attack_lab = AttackLab::new(1_500, 10);
    let raw = component("tests/hostile/raw");
    attack_lab.attack_each(&raw, Role::Model, ATTACKS_AMONG_MANY);
}

/// A model that exceeds the space left by earlier models goes into another call.
#[test]
fn models_are_not_refused_for_their_neighbours() {
    let attack_lab = AttackLab::new(6, 10);
    let raw = component("tests/hostile/raw");
    attack_lab.attack(&raw, "models-side-by-side", Role::Model, Harmless);
    let limits = "limits={ output_bytes_max = 1500000, model_bytes_max = 1048576 }";
    attack_lab.lab().host(&["submit", "attack.toml", "--output", "attack.parquet", "--set", limits]).expect_code(0);
}

/// Attacks of models that trained without one, and the message expected of `host predict`.
#[rustfmt::skip]
const PREDICTIONS: &[(&str, &str, &str)] = &[
    ("predict-too-few",  "bad-output", "it returned 0 predictions for"),
    ("predict-too-many", "bad-output", "it returned 12 predictions for 11 test rows"),
    ("predict-fits",     "bad-request", "predicts, it does not fit"),
    ("predict-nothing",  "bad-output", "returned before all groups were settled"),
    ("predict-traps",    "trap", "unreachable"),
];

#[test]
fn models_that_attack_when_they_predict() {
    let attack_lab = AttackLab::new(4, 10);
    let raw = component("tests/hostile/raw");
    for (name, code, expected_text) in PREDICTIONS {
        attack_lab.attack(&raw, name, Role::Model, Harmless);
        let line = ["predict", "attack.parquet", "--input", "rows.csv", "--output", "p.parquet", "--model", name];
        attack_lab.lab().host(&line).expect_code(1).expect_stderr(&[&format!("[{code}]"), expected_text]);
    }
}
