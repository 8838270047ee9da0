//! Where things are in this checkout.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of the host's programs.
const PROGRAMS: [&str; 3] = ["sandbar-cli", "sandbar-gpu", "sandbar-worker-program"];

/// The checkout.
pub struct Workspace {
    /// Holds the root `Cargo.toml`.
    pub root: PathBuf,
    /// Where cargo puts what it builds.
    pub target: PathBuf,
}

impl Workspace {
    /// The checkout that this program was built from.
    pub fn find() -> Self {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let manifest = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
        let root = manifest.parent().unwrap_or(&manifest).to_owned();
        let target = target_dir(&root, env::var_os("CARGO_TARGET_DIR").as_deref(), env::current_exe().ok().as_deref());
        Self { root, target }
    }

    /// `cargo`, to be run in the checkout, building where we were built.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root);
        // What cargo told this program of itself is not meant for others: build scripts that look at it would run again.
        let ours = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_one_package));
        ours.for_each(|(name, _)| _ = cargo.env_remove(name));
        cargo.env("CARGO_TARGET_DIR", &self.target);
        cargo
    }

    /// `cargo`, to be run in the simulation's workspace, where it finds that one's flags.
    pub fn simulation(&self) -> Command {
        let mut cargo = self.cargo();
        cargo.current_dir(self.root.join("tests/simulation")).env("CARGO_TARGET_DIR", self.target.join("simulation"));
        cargo
    }

    /// `cargo build` of the host's programs. More packages can be appended: `--package NAME`.
    pub fn build_host(&self) -> Command {
        let mut cargo = self.cargo();
        cargo.args(["build", "--release"]);
        cargo.args(PROGRAMS.iter().flat_map(|package| ["--package", package]));
        cargo
    }

    /// A program that was built. Everything is built with one profile: the engines
    /// take long to compile.
    pub fn program(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// The binary `host`.
    pub fn host(&self) -> PathBuf {
        self.program("host")
    }
}

/// Whether cargo sets this variable for the package that it runs.
fn is_of_one_package(variable: &str) -> bool {
    ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_"].iter().any(|prefix| variable.starts_with(prefix))
        || ["CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"].contains(&variable)
}

/// `CARGO_TARGET_DIR`, else the folder we run from (a `build.target-dir` in somebody's settings leads there as well),
/// else cargo's default.
fn target_dir(root: &Path, configured: Option<&OsStr>, exe: Option<&Path>) -> PathBuf {
    if let Some(configured) = configured.filter(|folder| !folder.is_empty()) {
        return env::current_dir().unwrap_or_default().join(configured);
    }
    let built_in = exe.and_then(Path::parent).filter(|folder| folder.ends_with("debug") || folder.ends_with("release"));
    built_in.and_then(Path::parent).map_or_else(|| root.join("target"), Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_folder_is_found() {
        let root = Path::new("/checkout");
        for (configured, exe, expected) in [
            (Some("/fast"), Some("/else/debug/xtask"), "/fast"),
            (Some(""), Some("/else/debug/xtask"), "/else"),
            (None, Some("/else/release/xtask"), "/else"),
            (None, Some("/usr/bin/xtask"), "/checkout/target"),
            (None, None, "/checkout/target"),
        ] {
            assert_eq!(
                target_dir(root, configured.map(OsStr::new), exe.map(Path::new)),
                PathBuf::from(expected),
                "{configured:?} {exe:?}"
            );
        }
    }

    #[test]
    fn cargo_is_not_told_of_this_package() {
        for (variable, expected) in
            [("CARGO_PKG_NAME", true), ("OUT_DIR", true), ("CARGO_HOME", false), ("PATH", false)]
        {
            assert_eq!(is_of_one_package(variable), expected, "{variable}");
        }
    }

    #[test]
    fn the_checkout_is_found() {
        assert!(Workspace::find().root.join("xtask/Cargo.toml").is_file());
    }
}
