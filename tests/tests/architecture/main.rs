//! Checks the allowed dependencies of each crate. A change of the table is a change of the architecture.

mod cycles;
mod parts;
mod structs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use sandbar_tests::workspace;
use serde_json::Value;

/// Crates of the host and the SDK, each with the workspace's crates that it may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("sandbar-core", &[]),
    ("sandbar-batch", &[]),
    ("sandbar-store", &["sandbar-core"]),
    ("sandbar-process", &[]),
    ("sandbar-dense", &["sandbar-process", "sandbar-store"]),
    ("sandbar-gpu", &["sandbar-dense", "sandbar-process", "sandbar-store"]),
    ("sandbar-sandbox", &["sandbar-core", "sandbar-dense"]),
    ("sandbar-wire", &["sandbar-core"]),
    ("sandbar-sched", &["sandbar-core"]),
    ("sandbar-machine", &["sandbar-core"]),
    ("sandbar-jobs", &["sandbar-core", "sandbar-machine"]),
    (
        "sandbar-functions",
        &["sandbar-batch", "sandbar-core", "sandbar-jobs", "sandbar-machine", "sandbar-sandbox", "sandbar-worker"],
    ),
    (
        "sandbar-train",
        &[
            "sandbar-batch",
            "sandbar-core",
            "sandbar-dataset",
            "sandbar-dense",
            "sandbar-functions",
            "sandbar-jobs",
            "sandbar-machine",
            "sandbar-store",
            "sandbar-worker",
        ],
    ),
    ("sandbar-meta", &["sandbar-core"]),
    (
        "sandbar-worker",
        &[
            "sandbar-batch",
            "sandbar-core",
            "sandbar-dense",
            "sandbar-machine",
            "sandbar-process",
            "sandbar-sandbox",
            "sandbar-store",
        ],
    ),
    ("sandbar-dataset", &["sandbar-core"]),
    (
        "sandbar-runtime",
        &[
            "sandbar-core",
            "sandbar-dataset",
            "sandbar-functions",
            "sandbar-jobs",
            "sandbar-machine",
            "sandbar-sched",
            "sandbar-store",
            "sandbar-wire",
            "sandbar-worker",
        ],
    ),
    (
        "sandbar-cluster",
        &[
            "sandbar-batch",
            "sandbar-core",
            "sandbar-functions",
            "sandbar-jobs",
            "sandbar-machine",
            "sandbar-meta",
            "sandbar-runtime",
            "sandbar-store",
            "sandbar-train",
            "sandbar-wire",
            "sandbar-worker",
        ],
    ),
    (
        "sandbar-node",
        &[
            "sandbar-cluster",
            "sandbar-core",
            "sandbar-dataset",
            "sandbar-dense",
            "sandbar-functions",
            "sandbar-jobs",
            "sandbar-machine",
            "sandbar-runtime",
            "sandbar-sandbox",
            "sandbar-store",
            "sandbar-train",
            "sandbar-wire",
            "sandbar-worker",
        ],
    ),
    ("sandbar-client", &["sandbar-batch", "sandbar-core", "sandbar-node"]),
    ("sandbar-cli", &["sandbar-core", "sandbar-dense", "sandbar-gpu", "sandbar-node"]),
    ("sandbar-worker-program", &["sandbar-train", "sandbar-worker"]),
    // The SDK shares the encoding of batches (`batch`) and task calls (`core`) with the host. Native tests of functions use
    // the host's dense operations (`dense`).
    ("sandbar-guest", &["sandbar-batch", "sandbar-core", "sandbar-dense", "sandbar-guest-macros"]),
    ("sandbar-guest-macros", &[]),
];

/// External crates with the only crate that may depend on each.
const ENGINES: &[(&str, &str)] = &[
    ("wasmtime", "sandbar-sandbox"),
    ("wasmtime-wasi", "sandbar-sandbox"),
    ("datafusion", "sandbar-dataset"),
    ("object_store", "sandbar-dataset"),
    ("faer", "sandbar-dense"),
    ("wgpu", "sandbar-gpu"),
    ("landlock", "sandbar-process"),
    ("quinn", "sandbar-wire"),
    ("quinn-proto", "sandbar-wire"),
    ("rcgen", "sandbar-wire"),
    ("ring", "sandbar-wire"),
    ("rustls", "sandbar-wire"),
    ("x509-parser", "sandbar-wire"),
    ("seccompiler", "sandbar-process"),
    ("redb", "sandbar-meta"),
    ("tonic", "sandbar-meta"),
    ("prost", "sandbar-meta"),
];

/// Input of a guest, a peer, a file or a user must not end a process of the host, so each crate enables lints against
/// panicking methods outside of tests, without exceptions.
#[test]
fn no_crate_of_the_host_unwraps() {
    const LINT: &str = "#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]";
    let host = workspace().join("host");
    let mut roots = 0;
    for package in std::fs::read_dir(&host).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let roots_of_crate = ["src/lib.rs", "src/main.rs"].map(|root| package.join(root));
        for root in roots_of_crate.iter().filter(|root| root.is_file()) {
            let text = std::fs::read_to_string(root).expect("it is text");
            assert!(text.lines().any(|line| line == LINT), "{} lacks {LINT}", root.display());
            roots += 1;
        }
        for file in sources(&package.join("src")) {
            let text = std::fs::read_to_string(&file).expect("it is text");
            let is_exception =
                |line: &&str| line.contains("clippy::unwrap_used") || line.contains("clippy::expect_used");
            let found = text.lines().filter(is_exception).find(|line| *line != LINT);
            assert_eq!(found, None, "{}", file.display());
        }
    }
    assert!(roots > CRATES.len() / 2, "{roots} crates in {}", host.display());
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "rs"));
    files.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

#[test]
fn crates_depend_on_allowed_crates_only() {
    let packages = packages();
    for (package, allowed) in CRATES {
        let used = &packages.get(*package).unwrap_or_else(|| panic!("there is no crate {package}"));
        for other in used.iter().filter(|name| name.starts_with("sandbar-")) {
            assert!(allowed.contains(&other.as_str()), "{package} must not depend on {other}");
        }
    }
    for (engine, owner) in ENGINES {
        for (package, used) in &packages {
            assert!(
                package == owner || !used.iter().any(|name| name == engine),
                "{package} must not depend on {engine}: only {owner} may"
            );
        }
    }
}

#[test]
fn every_crate_of_the_host_is_in_the_table() {
    let known: Vec<&str> = CRATES.iter().map(|(package, _)| *package).collect();
    for entry in std::fs::read_dir(workspace().join("host")).unwrap().flatten() {
        if entry.path().join("Cargo.toml").is_file() {
            let name = format!("sandbar-{}", entry.file_name().to_string_lossy());
            assert!(known.contains(&name.as_str()), "{name} is not in the table of crates");
        }
    }
}

/// If features differed, `cargo xtask demo` and `cargo xtask test` would each compile the engines, which takes a quarter of
/// an hour. `host/cli/Cargo.toml` turns on features that the host's own build lacks.
#[test]
fn the_host_alone_shares_the_build_of_the_workspace() {
    let features = |arguments: &[&str]| -> BTreeSet<String> {
        let line = [&["tree", "--offline", "--prefix", "none", "--format", "{p} {f}"], arguments].concat();
        cargo(&line).lines().map(|line| line.trim_end_matches(" (*)").trim_end().to_owned()).collect()
    };
    let all = features(&["--workspace", "--edges", "normal,build,dev"]);
    let packages = ["--package", "sandbar-cli", "--package", "sandbar-gpu", "--package", "sandbar-worker-program"];
    let host = features(&[&packages[..], &["--edges", "normal,build"]].concat());
    let other: Vec<_> = host.difference(&all).collect();
    assert!(host.len() > 100 && other.is_empty(), "other features in a build of the host alone: {other:#?}");
}

/// A guest that escapes its sandbox can run all code that its worker links.
#[test]
fn workers_do_not_link_nodes_clients_or_the_network() {
    let tree = cargo(&[
        "tree",
        "--offline",
        "--package",
        "sandbar-worker-program",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{lib}",
    ]);
    let linked: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    assert!(linked.contains("sandbar_worker") && linked.contains("wasmtime"), "{linked:?}");
    let forbidden = [
        "sandbar_node",
        "sandbar_runtime",
        "sandbar_cluster",
        "sandbar_client",
        "sandbar_wire",
        "sandbar_meta",
        "quinn",
    ];
    for name in forbidden {
        assert!(!linked.contains(name), "host-worker links {name}");
    }
}

fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(workspace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the normal dependencies of each package of the workspace, without build and dev dependencies.
fn packages() -> BTreeMap<String, Vec<String>> {
    let text = cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&text).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let normal = |package: &Value| -> Vec<String> {
        let all = package["dependencies"].as_array().into_iter().flatten();
        all.filter(|d| d["kind"].is_null()).map(|d| text(&d["name"])).collect()
    };
    metadata["packages"].as_array().unwrap().iter().map(|p| (text(&p["name"]), normal(p))).collect()
}

#[test]
fn files_have_no_import_cycles() {
    let folders = ["host", "guest-sdk", "udfs", "xtask"].map(|folder| workspace().join(folder));
    let inner = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder").flatten());
    let all = inner.map(|entry| entry.path()).chain(folders.iter().cloned()).map(|folder| folder.join("src"));
    let sources: Vec<PathBuf> = all.filter(|source| source.is_dir()).collect();
    assert!(sources.len() > 20, "{sources:?}");
    for source in sources {
        let found = cycles::cycles(&source);
        assert!(found.is_empty(), "{}: {found:#?}", source.display());
    }
}

#[test]
fn parts_of_the_engine_import_none_of_each_other() {
    let found = parts::imports_of_other_parts(&workspace().join("host/runtime/src/engine"));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_struct_has_many_fields_and_methods_in_many_files() {
    let folders = ["host", "guest-sdk", "udfs", "xtask"].map(|folder| workspace().join(folder));
    let inner = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder").flatten());
    let crates = inner.map(|entry| entry.path()).filter(|path| path.is_dir());
    let found: Vec<_> = crates.flat_map(|folder| structs::oversized(&folder)).collect();
    assert!(found.is_empty(), "more than {} fields and {} files: {found:?}", structs::FIELDS_MAX, structs::FILES_MAX);
}
