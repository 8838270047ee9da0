//! Guests: the crates of this checkout that compile to components.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Context as _, Result, report, run_quiet_stdout};
use crate::workspace::Workspace;

/// Folders that contain guests which tests use.
const GUEST_FOLDERS: [&str; 4] = ["examples", "tests/hostile", "tests/programs", "udfs"];

/// Builds every guest in `folders` with `host build`.
pub fn build_guests(workspace: &Workspace, folders: &[PathBuf]) -> Result {
    if folders.is_empty() {
        report(format_args!("no guests in {}", GUEST_FOLDERS.join(", ")));
    }
    for folder in folders {
        let mut build = Command::new(workspace.host());
        build.arg("build").arg(folder.strip_prefix(&workspace.root).unwrap_or(folder));
        build.current_dir(&workspace.root).env("CARGO_TARGET_DIR", &workspace.target);
        run_quiet_stdout(&mut build, "A guest that tests need does not build; see the compiler's message above.")?;
    }
    Ok(())
}

/// Returns the folders of all guests of the checkout, sorted.
pub fn find_guests(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut guests = Vec::new();
    for parent in GUEST_FOLDERS {
        let parent = workspace.root.join(parent);
        if !parent.is_dir() {
            continue;
        }
        let entries = fs::read_dir(&parent).context(format_args!("read {}", parent.display()))?;
        guests.extend(entries.flatten().map(|entry| entry.path()).filter(|folder| is_guest(folder)));
    }
    guests.sort();
    Ok(guests)
}

/// Returns whether a folder holds a crate whose library is a `cdylib`; other folders hold data, jobs or native crates.
fn is_guest(folder: &Path) -> bool {
    fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(|manifest| {
        manifest.lines().any(|line| line.trim_start().starts_with("crate-type") && line.contains("\"cdylib\""))
    })
}
