//! Packs the relocations of the binary where the system's loader knows how, and passes the versions of its engines to the
//! compiler.

use std::path::Path;

/// The first glibc whose loader does (`DT_RELR`).
const PACKED_FROM: (u32, u32) = (2, 36);

/// Packages whose versions `host version` prints, each with its environment variable.
const VERSIONS: [(&str, &str); 3] = [
    ("wasmtime", "SANDBAR_WASMTIME_VERSION"),
    ("arrow-array", "SANDBAR_ARROW_VERSION"),
    ("datafusion", "SANDBAR_DATAFUSION_VERSION"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name| std::env::var(name).unwrap_or_default();
    let lock = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    println!("cargo:rerun-if-changed={}", lock.display());
    let lock = std::fs::read_to_string(lock).unwrap_or_default();
    for (package, name) in VERSIONS {
        println!("cargo:rustc-env={name}={}", version(&lock, package).unwrap_or("unknown"));
    }
    println!("cargo:rustc-env=SANDBAR_TARGET={}", variable("TARGET"));
    // A quarter of a million pointers have to be relocated in each process, in workers too: packed, a start takes
    // 2 ms less. A cross build can't know the other system's loader.
    let native = variable("HOST") == variable("TARGET") && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    if native && glibc().is_some_and(|version| version >= PACKED_FROM) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of a package in a Cargo.lock, which has it in the line behind the name.
fn version<'l>(lock: &'l str, package: &str) -> Option<&'l str> {
    let name = format!("name = \"{package}\"");
    let line = lock.lines().skip_while(|line| *line != name).nth(1)?;
    line.strip_prefix("version = \"")?.strip_suffix('"')
}

/// The version of this system's glibc.
fn glibc() -> Option<(u32, u32)> {
    let output = std::process::Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
