//! Packs the relocations of the program, and passes the versions of its engines to the compiler.

#[path = "../worker-program/pack_relocations.rs"]
mod pack_relocations;

use std::path::Path;

/// Packages whose versions `host version` prints, each with its environment variable.
const VERSIONS: [(&str, &str); 3] = [
    ("wasmtime", "SANDBAR_WASMTIME_VERSION"),
    ("arrow-array", "SANDBAR_ARROW_VERSION"),
    ("datafusion", "SANDBAR_DATAFUSION_VERSION"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../worker-program/pack_relocations.rs");
    let variable = |name| std::env::var(name).unwrap_or_default();
    let lock = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    println!("cargo:rerun-if-changed={}", lock.display());
    let lock = std::fs::read_to_string(lock).unwrap_or_default();
    for (package, name) in VERSIONS {
        println!("cargo:rustc-env={name}={}", version(&lock, package).unwrap_or("unknown"));
    }
    println!("cargo:rustc-env=SANDBAR_TARGET={}", variable("TARGET"));
    pack_relocations::pack_relocations();
}

/// The version of a package in a Cargo.lock, which has it in the line behind the name.
fn version<'l>(lock: &'l str, package: &str) -> Option<&'l str> {
    let name = format!("name = \"{package}\"");
    let line = lock.lines().skip_while(|line| *line != name).nth(1)?;
    line.strip_prefix("version = \"")?.strip_suffix('"')
}
