//! Builds the standard library for the guests' target out of its source.
//!
//! Cargo's `-Zbuild-std` does the work. It looks for the source in the sysroot of the rustc it runs, so it is given one
//! of our own: links to the toolchain's libraries, the unpacked source, and the target's folder in the making. The real
//! toolchain is only read, and rustc can be tried on the result before anything is moved into place.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::TARGET;
use super::debian::Sources;
use super::toolchain::{Toolchain, Version};
use super::work_dir::WorkDir;
use crate::run::{Context as _, Result, run_quiet_stdout, step};

/// The crate that needs the standard library built. One codegen unit a crate, as in Rust's own releases.
const MANIFEST: &str = r#"[package]
name = "empty"
version = "0.0.0"
edition = "2024"

[workspace]

[profile.release]
codegen-units = 1
"#;

/// What a caller's environment may say about *its* builds and must not say about this one.
const FOREIGN_SETTINGS: [&str; 6] =
    ["CARGO_PROFILE_", "CARGO_BUILD_", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "CARGO_UNSTABLE_"];

/// A sysroot in the work folder.
pub struct Sysroot {
    path: PathBuf,
    rustc: PathBuf,
}

impl Sysroot {
    /// Lays out a sysroot that has all of `toolchain`, the unpacked source and the C library.
    pub fn new(work: &WorkDir, toolchain: &Toolchain, sources: &Sources) -> Result<Self> {
        let rustlib = work.folder("sysroot/lib/rustlib")?;
        let theirs = toolchain.rustlib();
        for entry in fs::read_dir(&theirs).context(format_args!("read {}", theirs.display()))?.flatten() {
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

    /// The rustc that has this sysroot.
    pub fn rustc(&self) -> &Path {
        &self.rustc
    }

    /// The target's folder, to be moved into the real sysroot.
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
        // The released library names its source by commit; ours must not name a folder that is gone.
        let name = version.commit.as_ref().unwrap_or(&version.release);
        for path in [source, real_source] {
            flags.push(format!("--remap-path-prefix={}=/rustc/{name}", path.display()));
        }
        let built = project.join("target");
        let mut cargo = Command::new(toolchain.bin("cargo"));
        cargo.args(["build", "--release", "-Zbuild-std=std,panic_abort", "--target", TARGET]).current_dir(&project);
        for (setting, _) in env::vars_os() {
            if FOREIGN_SETTINGS.iter().any(|foreign| setting.to_string_lossy().starts_with(foreign)) {
                cargo.env_remove(setting);
            }
        }
        cargo.env("CARGO_TARGET_DIR", &built).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        // -Z options are for nightly compilers; the standard library is built by released ones all the same.
        cargo.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1");
        run_quiet_stdout(
            &mut cargo,
            "The standard library did not compile. Its dependencies come from crates.io: check that cargo reaches it.",
        )?;
        step("collect the libraries", || self.collect(&built.join(TARGET).join("release/deps")))
    }

    fn collect(&self, built: &Path) -> Result {
        let libraries = self.target_dir().join("lib");
        for entry in fs::read_dir(built).context(format_args!("read {}", built.display()))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".rlib") && !name.starts_with("libempty-") {
                let to = libraries.join(&name);
                fs::rename(entry.path(), &to).context(format_args!("move {name} to {}", libraries.display()))?;
            }
        }
        Ok(())
    }
}

/// Copies the files of `from`, and no folders, into the new folder `to`.
pub fn copy_files(from: &Path, to: &Path) -> Result {
    fs::create_dir_all(to).context(format_args!("make {}", to.display()))?;
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

/// Cargo takes its compiler as one program without arguments, so the option that names the sysroot needs a script.
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
