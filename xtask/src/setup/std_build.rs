//! Builds the standard library for the guests' target from source.
//!
//! Cargo's `-Zbuild-std` compiles it and reads the source from the sysroot of its rustc, so this module prepares a separate
//! sysroot: links to the toolchain's libraries, the unpacked source, and the folder of the target that is being built. The
//! real toolchain is only read, and the result can be tested before it moves into place.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::debian::Sources;
use super::toolchain::{TARGET, Toolchain, Version};
use super::work_dir::WorkDir;
use crate::run::{Context as _, Result, run_quiet_stdout, step};

/// Manifest of an empty crate that depends on the standard library. One codegen unit per crate, as in Rust's releases.
const MANIFEST: &str = r#"[package]
name = "empty"
version = "0.0.0"
edition = "2024"

[workspace]

[profile.release]
codegen-units = 1
"#;

/// Prefixes of environment variables that configure the caller's builds and must not affect this one.
const FOREIGN_SETTINGS: [&str; 6] =
    ["CARGO_PROFILE_", "CARGO_BUILD_", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "CARGO_UNSTABLE_"];

/// Sysroot in the temporary folder.
pub struct Sysroot {
    path: PathBuf,
    rustc: PathBuf,
}

impl Sysroot {
    /// Creates a sysroot from `toolchain`, the unpacked source and the C library.
    pub fn new(work: &WorkDir, toolchain: &Toolchain, sources: &Sources) -> Result<Self> {
        let rustlib = work.folder("sysroot/lib/rustlib")?;
        let original = toolchain.rustlib();
        for entry in fs::read_dir(&original).context(format_args!("read {}", original.display()))?.flatten() {
            if entry.file_name() != TARGET && entry.file_name() != "src" {
                link(&entry.path(), &rustlib.join(entry.file_name()))?;
            }
        }
        work.folder("sysroot/lib/rustlib/src")?;
        link(&sources.rust, &rustlib.join("src/rust"))?;
        work.folder(&format!("sysroot/lib/rustlib/{TARGET}/lib"))?;
        copy_files(&sources.libc, &rustlib.join(TARGET).join("lib/self-contained"))?;
        let path = work.path().join("sysroot");
        let rustc = wrap_rustc(work, toolchain, &path)?;
        Ok(Self { path, rustc })
    }

    /// Returns the rustc that uses this sysroot.
    pub fn rustc(&self) -> &Path {
        &self.rustc
    }

    /// Returns the target's folder, which moves into the real sysroot after the build.
    pub fn target_dir(&self) -> PathBuf {
        self.path.join("lib/rustlib").join(TARGET)
    }

    /// Compiles the standard library into [`Sysroot::target_dir`].
    pub fn build_std(&self, work: &WorkDir, toolchain: &Toolchain, version: &Version) -> Result {
        let project = work.folder("empty")?;
        work.folder("empty/src")?;
        for (name, text) in [("Cargo.toml", MANIFEST), ("src/lib.rs", "")] {
            let file = project.join(name);
            fs::write(&file, text).context(format_args!("write {}", file.display()))?;
        }
        let source = self.path.join("lib/rustlib/src/rust");
        let real_source = source.canonicalize().context(format_args!("find {}", source.display()))?;
        let mut flags = vec!["-Cembed-bitcode=yes".to_owned()];
        // Released libraries name their source by commit; this one must not name a temporary folder.
        let name = version.commit.as_ref().unwrap_or(&version.release);
        for path in [source, real_source] {
            flags.push(format!("--remap-path-prefix={}=/rustc/{name}", path.display()));
        }
        let target = project.join("target");
        let mut cargo = Command::new(toolchain.bin("cargo"));
        cargo.args(["build", "--release", "-Zbuild-std=std,panic_abort", "--target", TARGET]).current_dir(&project);
        for (setting, _) in env::vars_os() {
            if FOREIGN_SETTINGS.iter().any(|foreign| setting.to_string_lossy().starts_with(foreign)) {
                cargo.env_remove(setting);
            }
        }
        cargo.env("CARGO_TARGET_DIR", &target).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        // Released compilers accept -Z options only with this variable.
        cargo.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1");
        run_quiet_stdout(
            &mut cargo,
            "The standard library did not compile. Its dependencies come from crates.io: check that cargo reaches it.",
        )?;
        step("collect the libraries", || self.collect(&target.join(TARGET).join("release/deps")))
    }

    fn collect(&self, deps: &Path) -> Result {
        let libraries = self.target_dir().join("lib");
        for entry in fs::read_dir(deps).context(format_args!("read {}", deps.display()))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".rlib") && !name.starts_with("libempty-") {
                let to = libraries.join(&name);
                fs::rename(entry.path(), &to).context(format_args!("move {name} to {}", libraries.display()))?;
            }
        }
        Ok(())
    }
}

/// Copies the files of `from`, without folders, into the new folder `to`.
pub fn copy_files(from: &Path, to: &Path) -> Result {
    fs::create_dir_all(to).context(format_args!("create {}", to.display()))?;
    let entries = fs::read_dir(from).context(format_args!("read {}", from.display()))?;
    for entry in entries.flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), to.join(entry.file_name())).context(format_args!(
            "copy {} to {}",
            entry.path().display(),
            to.display()
        ))?;
    }
    Ok(())
}

/// Writes a script that runs rustc with `--sysroot`, since cargo accepts only a program without arguments as its compiler.
fn wrap_rustc(work: &WorkDir, toolchain: &Toolchain, sysroot: &Path) -> Result<PathBuf> {
    let script = work.path().join("rustc");
    let rustc = toolchain.bin("rustc");
    let text = format!("#!/bin/sh\nexec {} --sysroot {} \"$@\"\n", quoted(&rustc), quoted(sysroot));
    fs::write(&script, text).context(format_args!("write {}", script.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .context(format_args!("make {} executable", script.display()))?;
    Ok(script)
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn link(to: &Path, from: &Path) -> Result {
    symlink(to, from).context(format_args!("link {} to {}", from.display(), to.display()))
}
