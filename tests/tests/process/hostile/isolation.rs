//! No guest sees what another guest leaves behind or overwrites.

use sandbar_tests::component;

use super::Outcome::{self, Harmless};
use super::{AttackLab, Role, beside_a_victim};

#[rustfmt::skip]
const ATTACKS: &[(&str, Outcome)] = &[
    ("scribble-over-input", Harmless),
    ("hide-secrets",        Harmless),
    ("seek-secrets",        Harmless),
];

/// Enough for inputs of several hundred pages.
const ROWS_EACH: u32 = 20_000;

#[test]
fn guests_do_not_see_memory_of_other_guests() {
    beside_a_victim(|| {
        let attack_lab = AttackLab::new(4, ROWS_EACH);
        let raw = component("tests/hostile/raw");
        attack_lab.attack_each(&raw, Role::Model, ATTACKS);
    });
}
