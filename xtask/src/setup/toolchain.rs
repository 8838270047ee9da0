//! The current Rust toolchain: folders of its libraries, and the state of the guests' target.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Context as _, Failure, Result, capture, fail, report};

/// Target that guests are compiled for.
pub const TARGET: &str = "wasm32-wasip2";

/// File in a target folder that this set-up built, with the compiler's version, to detect another compiler later.
/// Folders that rustup or a distribution updates have none.
const STAMP: &str = "sandbar-built-with";

/// Linker that turns modules into components; rustc runs it by this name.
const LINKER: &str = "wasm-component-ld";

/// State of the guests' target in the toolchain.
#[derive(Debug, PartialEq, Eq)]
pub enum TargetState {
    /// The standard library exists for this compiler.
    Ready,
    /// The standard library does not exist or is incomplete.
    Missing,
    /// The standard library was built for another version of the compiler.
    Stale,
}

/// A toolchain on disk.
pub struct Toolchain {
    sysroot: PathBuf,
}

impl Toolchain {
    /// Finds the toolchain of the cargo that runs this program.
    ///
    /// Cargo sets `CARGO` to `SYSROOT/bin/cargo`, which saves the 35 ms of running rustc.
    pub fn find() -> Result<Self> {
        if env::var_os("RUSTC").is_none()
            && let Some(cargo) = env::var_os("CARGO")
            && let Some(sysroot) = Path::new(&cargo).parent().and_then(Path::parent)
            && sysroot.join("bin/rustc").exists()
            && sysroot.join("lib/rustlib").is_dir()
        {
            return Ok(Self { sysroot: sysroot.to_owned() });
        }
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let sysroot = capture(Command::new(rustc).args(["--print", "sysroot"]))?;
        Ok(Self { sysroot: PathBuf::from(sysroot.trim()) })
    }

    /// Returns the path of the program `name` of this toolchain.
    pub fn bin(&self, name: &str) -> PathBuf {
        self.sysroot.join("bin").join(name)
    }

    /// Returns the folder of the libraries of all targets.
    pub fn rustlib(&self) -> PathBuf {
        self.sysroot.join("lib/rustlib")
    }

    /// Returns the folder of the libraries of the guests' target.
    pub fn target_dir(&self) -> PathBuf {
        self.rustlib().join(TARGET)
    }

    /// Returns the compiler's version, from `rustc -Vv`.
    pub fn version(&self) -> Result<Version> {
        Version::parse(capture(Command::new(self.bin("rustc")).arg("-Vv"))?)
    }

    /// Inspects the target's folder.
    pub fn state(&self) -> Result<TargetState> {
        let target = self.target_dir();
        let libraries = target.join("lib");
        if !(has_library(&libraries, "libstd-") && has_library(&libraries, "libcore-")) {
            return Ok(TargetState::Missing);
        }
        match fs::read_to_string(target.join(STAMP)) {
            Ok(built_with) if built_with == self.version()?.verbose => Ok(TargetState::Ready),
            Ok(_) => Ok(TargetState::Stale),
            Err(_) => Ok(TargetState::Ready),
        }
    }

    /// Waits until no other set-up changes this toolchain. Dropping the returned file releases the lock.
    pub fn lock(&self) -> Result<File> {
        let folder = self.rustlib();
        let lock = File::open(&folder).context(format_args!("open {}", folder.display()))?;
        if lock.try_lock().is_err() {
            report("another set-up is changing this toolchain: waiting for it to finish");
            lock.lock().context(format_args!("lock {}", folder.display()))?;
        }
        Ok(lock)
    }

    /// Checks that rustc will find the linker for components, which it searches beside its own tools, then in PATH.
    pub fn check_linker(&self) -> Result {
        let beside_rustc = || {
            let folders = fs::read_dir(self.rustlib()).into_iter().flatten().flatten();
            folders.map(|folder| folder.path().join("bin").join(LINKER)).any(|path| path.is_file())
        };
        let in_path = || {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path).any(|folder| folder.join(LINKER).is_file())
        };
        if env::var_os("CARGO_TARGET_WASM32_WASIP2_LINKER").is_some() || beside_rustc() || in_path() {
            return Ok(());
        }
        fail(format!(
            "the linker `{LINKER}` is missing: rustup installs it with rustc in {}, some distributions do not.\n\
             Install it with `cargo install {LINKER}` (it needs `wasm-ld`: `apt install lld`), \
             or use a toolchain from rustup.",
            self.rustlib().join("<machine>/bin").display()
        ))
    }

    /// Marks `folder`, which is not yet in place, as built by this set-up with this compiler.
    pub fn stamp(&self, folder: &Path, version: &Version) -> Result {
        fs::write(folder.join(STAMP), &version.verbose).context(format_args!("write into {}", folder.display()))
    }

    /// Removes the target's folder: one that a set-up built for another compiler, or an incomplete one.
    pub fn remove_target(&self) -> Result {
        let folder = self.target_dir();
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context(format_args!("remove {}", folder.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Version of rustc.
#[derive(Debug)]
pub struct Version {
    /// Output of `rustc -Vv`.
    pub verbose: String,
    /// Release, for example `1.95.0` or `1.97.0-nightly`.
    pub release: String,
    /// Commit of the compiler; some distributions do not name it.
    pub commit: Option<String>,
}

impl Version {
    fn parse(verbose: String) -> Result<Self> {
        let field = |name: &str| verbose.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let Some(release) = field("release: ") else {
            return Err(Failure::Step(format!("`rustc -Vv` names no release:\n{verbose}")));
        };
        let commit = field("commit-hash: ").filter(|commit| commit != "unknown");
        Ok(Self { release, commit, verbose })
    }
}

fn has_library(folder: &Path, prefix: &str) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        path.extension() == Some(OsStr::new("rlib")) && entry.file_name().to_string_lossy().starts_with(prefix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read() {
        let verbose = "rustc 1.95.0 (59807616e 2026-04-14)\ncommit-hash: 59807616e1fa\nrelease: 1.95.0\n";
        let version = Version::parse(verbose.to_owned()).unwrap();
        assert_eq!((version.release.as_str(), version.commit.as_deref()), ("1.95.0", Some("59807616e1fa")));
        assert!(Version::parse("nonsense".to_owned()).is_err());
    }

    #[test]
    fn an_empty_sysroot_has_no_target() {
        let nowhere = Toolchain { sysroot: PathBuf::from("/nonexistent") };
        assert_eq!(nowhere.state().unwrap(), TargetState::Missing);
        nowhere.remove_target().unwrap();
    }

    #[test]
    fn our_toolchain_is_found() {
        let toolchain = Toolchain::find().unwrap();
        assert!(toolchain.bin("rustc").exists() && toolchain.rustlib().is_dir());
    }
}
