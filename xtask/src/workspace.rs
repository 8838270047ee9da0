//! The checkout: its folders, and cargo commands that run in it.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of the host's programs.
const PROGRAMS: [&str; 3] = ["sandbar-cli", "sandbar-gpu", "sandbar-worker-program"];

/// A checkout and its target folder.
pub struct Workspace {
    /// Folder of the root `Cargo.toml`.
    pub root: PathBuf,
    /// Cargo's target folder.
    pub target: PathBuf,
}

impl Workspace {
    /// Returns the checkout that this program was built from.
    pub fn find() -> Self {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let manifest = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
        let root = manifest.parent().unwrap_or(&manifest).to_owned();
        let target = target_dir(&root, env::var_os("CARGO_TARGET_DIR").as_deref(), env::current_exe().ok().as_deref());
        Self { root, target }
    }

    /// Returns `cargo`, run in the checkout with this program's target folder.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root);
        // Variables that cargo set for this package would make build scripts that read them run again.
        let own = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_package_variable));
        own.for_each(|(name, _)| _ = cargo.env_remove(name));
        cargo.env("CARGO_TARGET_DIR", &self.target);
        cargo
    }

    /// Returns `cargo`, run in the simulation's workspace so that it reads that workspace's configuration.
    pub fn simulation(&self) -> Command {
        let mut cargo = self.cargo();
        cargo.current_dir(self.root.join("tests/simulation")).env("CARGO_TARGET_DIR", self.target.join("simulation"));
        cargo
    }

    /// Returns `cargo build` of the host's programs. Callers can append `--package NAME`.
    pub fn build_host(&self) -> Command {
        let mut cargo = self.cargo();
        cargo.args(["build", "--release"]);
        cargo.args(PROGRAMS.iter().flat_map(|package| ["--package", package]));
        cargo
    }

    /// Returns the path of a built program. All builds use the release profile: the engines take long to compile.
    pub fn program(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// Returns the path of the program `host`.
    pub fn host(&self) -> PathBuf {
        self.program("host")
    }
}

/// Returns whether cargo sets this variable for the package that it runs.
fn is_package_variable(variable: &str) -> bool {
    ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_"].iter().any(|prefix| variable.starts_with(prefix))
        || ["CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"].contains(&variable)
}

/// Returns `CARGO_TARGET_DIR`, else the target folder that contains this program (which covers `build.target-dir` in
/// cargo's configuration), else cargo's default.
fn target_dir(root: &Path, configured: Option<&OsStr>, exe: Option<&Path>) -> PathBuf {
    if let Some(configured) = configured.filter(|folder| !folder.is_empty()) {
        return env::current_dir().unwrap_or_default().join(configured);
    }
    let profile = exe.and_then(Path::parent).filter(|folder| folder.ends_with("debug") || folder.ends_with("release"));
    profile.and_then(Path::parent).map_or_else(|| root.join("target"), Path::to_owned)
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
    fn variables_of_this_package_are_removed() {
        for (variable, expected) in
            [("CARGO_PKG_NAME", true), ("OUT_DIR", true), ("CARGO_HOME", false), ("PATH", false)]
        {
            assert_eq!(is_package_variable(variable), expected, "{variable}");
        }
    }

    #[test]
    fn the_checkout_is_found() {
        assert!(Workspace::find().root.join("xtask/Cargo.toml").is_file());
    }
}
