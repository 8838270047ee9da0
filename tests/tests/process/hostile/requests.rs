//! Requests for things that don't exist or belong to others.

use super::Outcome::{self, Groups, Harmless, Job};
use super::{Role, attack_beside_a_victim};

#[rustfmt::skip]
const BATCH_FUNCTIONS: &[(&str, Outcome)] = &[
    ("read-beyond-input",        Job("bad-request", "it reads 64 bytes at")),
    ("read-before-zero",         Job("bad-request", "it reads 64 bytes at 18446744073709551608")),
    ("read-outside-memory",      Job("bad-output", "")),
    ("map-beyond-input",         Job("bad-request", "it maps 4096 bytes at")),
    ("map-more-than-input",      Job("bad-request", "it maps 16777216 bytes at 0")),
    ("map-offset-not-aligned",   Job("bad-request", "not whole pages")),
    ("map-region-not-aligned",   Job("bad-request", "not whole pages")),
    ("map-half-a-page",          Job("bad-request", "not whole pages")),
    ("map-nothing",              Job("bad-request", "not whole pages")),
    ("emit-outside-memory",      Job("bad-output", "")),
    ("next-while-processing",    Job("bad-request", "this call has no groups")),
    ("model-while-processing",   Job("bad-request", "this call has no models")),
    ("settle-while-processing",  Job("bad-request", "this call has no groups")),
    ("log-outside-memory",       Job("bad-output", "")),
    ("log-not-utf8",             Job("bad-output", "")),
    ("print-outside-memory",     Job("bad-output", "")),
    ("panic-and-go-on",          Job("bad-output", "it returned no batch")),
];

#[rustfmt::skip]
const TRAINERS: &[(&str, Outcome)] = &[
    ("map-over-own-data",        Groups("bad-request", "over its initialised data")),
    ("map-over-own-stack",       Groups("bad-request", "over its initialised data")),
    ("map-outside-memory",       Groups("bad-output", "")),
    ("map-thousands-of-regions", Groups("bad-request", "more than 1024 regions")),
    ("emit-while-fitting",       Groups("bad-request", "accepts no output batches")),
    ("log-flood",                Harmless),
];

#[test]
fn invalid_requests_of_guests() {
    attack_beside_a_victim("tests/hostile/raw", &[(Role::Transform, BATCH_FUNCTIONS), (Role::Model, TRAINERS)]);
}
