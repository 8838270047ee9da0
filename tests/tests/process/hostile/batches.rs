//! Batches with false headers.

use sandbar_tests::component;

use super::Outcome::{self, Job};
use super::{AttackLab, Role, beside_a_victim};

#[rustfmt::skip]
const ATTACKS: &[(&str, Outcome)] = &[
    ("nothing",                      Job("bad-output", "it returned no batch")),
    ("bad-magic",                    Job("bad-output", "does not start with SBB1")),
    ("empty-header",                 Job("bad-output", "at least 32 bytes")),
    ("cut-header",                   Job("bad-output", "its parts take")),
    ("long-header",                  Job("bad-output", "its parts take")),
    ("schema-beyond-header",         Job("bad-output", "malformed")),
    ("schema-bytes-max",             Job("bad-output", "over the bounds")),
    ("nodes-max",                    Job("bad-output", "over the bounds")),
    ("buffers-max",                  Job("bad-output", "over the bounds")),
    ("no-nodes",                     Job("bad-output", "fewer nodes")),
    ("too-many-nodes",               Job("bad-output", "more nodes")),
    ("no-buffers",                   Job("bad-output", "fewer buffers")),
    ("too-many-buffers",             Job("bad-output", "more nodes or buffers")),
    ("rows-u32-max",                 Job("bad-output", "4294967295 rows")),
    ("rows-i32-max",                 Job("bad-output", "offsets take")),
    ("rows-u64-max",                 Job("bad-output", "18446744073709551615 rows")),
    ("rows-differ",                  Job("bad-output", "2 rows where 3 are due")),
    ("body-larger",                  Job("bad-output", "it claims a body of")),
    ("body-max",                     Job("bad-output", "malformed")),
    ("body-smaller",                 Job("bad-output", "leaves the body")),
    ("buffer-beyond-body",           Job("bad-output", "leaves the body")),
    ("buffer-longer-than-body",      Job("bad-output", "leaves the body")),
    ("buffer-end-overflows",         Job("bad-output", "leaves the body")),
    ("buffers-overlap",              Job("bad-output", "begins before the end of another")),
    ("buffer-not-aligned",           Job("bad-output", "not aligned")),
    ("offsets-descend",              Job("bad-output", "column `t` is malformed")),
    ("offsets-negative",             Job("bad-output", "column `t` is malformed")),
    ("offsets-beyond-data",          Job("bad-output", "column `t` is malformed")),
    ("offsets-missing",              Job("bad-output", "column `t` is malformed")),
    ("not-utf8",                     Job("bad-output", "column `t` is malformed")),
    ("half-a-character",             Job("bad-output", "column `t` is malformed")),
    ("name-not-utf8",                Job("bad-output", "a name is not UTF-8")),
    ("name-beyond-schema",           Job("bad-output", "in the middle of a field")),
    ("type-unknown",                 Job("bad-output", "250")),
    ("fields-max",                   Job("bad-output", "in the middle of a field")),
    ("schema-with-a-tail",           Job("bad-output", "9 bytes follow the schema")),
    ("deep-schema",                  Job("bad-output", "nest deeper")),
    ("list-descends",                Job("bad-output", "column `l` is malformed")),
    ("list-beyond-child",            Job("bad-output", "column `l` is malformed")),
    ("dictionary-key-beyond-values", Job("bad-output", "column `d` is malformed")),
    ("dictionary-key-negative",      Job("bad-output", "column `d` is malformed")),
    ("dictionary-keys-are-text",     Job("bad-output", "malformed")),
    ("dictionary-keys-are-floats",   Job("bad-output", "malformed")),
    ("struct-children-differ",       Job("bad-output", "malformed")),
    ("map-of-numbers",               Job("bad-output", "malformed")),
    ("map-of-nothing",               Job("bad-output", "malformed")),
    ("map-of-triples",               Job("bad-output", "malformed")),
    ("fixed-list-max",               Job("bad-output", "malformed")),
    ("fixed-binary-max",             Job("bad-output", "malformed")),
    ("fixed-binary-negative",        Job("bad-output", "a size of -1")),
    ("decimal-of-200-digits",        Job("bad-output", "malformed")),
    ("batches-that-differ",          Job("bad-output", "its batches differ")),
    ("columns-that-change",          Job("bad-output", "the columns of a transform differ between batches")),
    ("endless-batches",              Job("output-limit", "output_bytes_max")),
    ("many-buffers",                 Job("bad-output", "100000 buffers")),
    ("scalar-of-no-rows",            Job("bad-output", "a scalar function returns one column of")),
    ("scalar-of-more-rows",          Job("bad-output", "a scalar function returns one column of")),
    ("scalar-of-two-columns",        Job("bad-output", "a scalar function returns one column of")),
    ("scalar-of-another-type",       Job("bad-output", "the columns of a transform differ between batches")),
    ("description-is-no-schema",     Job("bad-output", "its description is malformed")),
    ("description-is-deep",          Job("bad-output", "its description is malformed")),
    // Valid batches that cost a guest nothing to declare: the host must not pay for them either.
    ("two-billion-nulls",            Job("columns", "")),
    ("two-billion-rows-of-nothing",  Job("columns", "")),
    ("fixed-list-of-nothing",        Job("columns", "")),
    ("fixed-binary-of-nothing",      Job("columns", "")),
    ("zone-is-none",                 Job("columns", "")),
    ("nulls-max",                    Job("columns", "key")),
    ("columns-missing",              Job("columns", "key")),
    ("columns-twice",                Job("columns", "key")),
];

#[test]
fn forged_batches() {
    beside_a_victim(|| {
        let attack_lab = AttackLab::new(4, 10);
        let raw = component("tests/hostile/raw");
        ATTACKS.iter().for_each(|(name, outcome)| attack_lab.attack(&raw, name, Role::Transform, *outcome));
    });
}
