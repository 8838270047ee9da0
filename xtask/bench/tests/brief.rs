//! Checks that every benchmark prints its figures, not their values.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// Names of figures that must be printed.
const MEASURED: [&str; 52] = [
    "actors/calls in flight",
    "actors/memory of all processes an actor",
    "actors/one call at a time",
    "actors/one call at a time, p50",
    "boundary/50 sandboxes over 64 MiB/map",
    "boundary/in/copy/64 KiB/fresh",
    "boundary/in/map/64 MiB/warm",
    "boundary/in/stream/1 MiB/warm",
    "boundary/out/64 MiB/warm",
    "broadcast/4 MiB to 8, as a tree",
    "client/in flight",
    "client/one at a time",
    "cluster/tasks on another node",
    "dense/100 fits of 64 x 8",
    "dense/100 fits of 64 x 8 by the host, and the models",
    "forest",
    "gpu/100 fits of 64 x 8",
    "gpu/200 fits in batches, to it and back",
    "gpu/a x + y",
    "gpu/copy",
    "gpu/linear models of taxi trips, `auto`",
    "gpu/product 64 f16",
    "gpu/product 64 f32",
    "gpu/product 64 f64",
    "gpu/products of 32 x 32",
    "gpu/sum",
    "objects/memory that so many tasks take besides",
    "objects/put 4 MiB",
    "objects/small ones put and got",
    "objects/tasks that read of 4 MiB",
    "queue/memory of the node a task",
    "small-models",
    "small-models/groups",
    "start/1 worker",
    "start/2 workers",
    "start/2 workers, middle round",
    "start/in this process",
    "tasks/in flight",
    "tasks/one at a time",
    "tasks/one at a time, p50",
    "tasks/tree cancelled",
    "tasks/two parents",
    "tenants/Jain's index of 3 with unequal appetites",
    "tenants/first job of a tenant, with a worker's start",
    "tenants/job of 10 tasks of 1 ms beside 4 hogs, p99",
    "tenants/share of weight 400",
    "training/linear",
    "training/three models",
    "transfer/16 MiB",
    "transfer/objects of 10 KiB",
    "udf/1M rows/warm",
    "udf/1M rows/warm, read in place",
];

#[test]
fn each_benchmark_gives_its_figures() {
    let bench = Command::new(env!("CARGO_BIN_EXE_sandbar-bench")).args(["all", "--brief", "--json"]).output();
    let bench = bench.expect("it starts");
    let stderr = String::from_utf8_lossy(&bench.stderr);
    assert!(bench.status.success(), "{stderr}");
    let figures = String::from_utf8(bench.stdout).expect("it prints text");
    let mut names = BTreeSet::new();
    for line in figures.lines() {
        let figure: Value = serde_json::from_str(line).expect(line);
        assert!(figure["value"].as_f64().is_some_and(f64::is_finite), "{line}");
        assert!(figure["ratio"].is_null() || figure["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{line}");
        names.insert(figure["name"].as_str().expect(line).to_owned());
    }
    let missing: Vec<_> = MEASURED.iter().filter(|name| !names.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {names:?}");
}
