//! Packs the relocations of the binary where the system's loader knows how.

/// The first glibc whose loader does (`DT_RELR`).
const PACKED_FROM: (u32, u32) = (2, 36);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A quarter of a million pointers have to be relocated in each process, in workers too: packed, a start takes
    // 2 ms less. A cross build can't know the other system's loader.
    let variable = |name| std::env::var(name).unwrap_or_default();
    let native = variable("HOST") == variable("TARGET") && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    if native && glibc().is_some_and(|version| version >= PACKED_FROM) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this system's glibc.
fn glibc() -> Option<(u32, u32)> {
    let said = std::process::Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
