//! Guests: the crates of this checkout that are compiled to components.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Context as _, Result, run_quiet_stdout, say};
use crate::workspace::Workspace;

/// Folders whose inner folders may be guests that tests use.
const SHELVES: [&str; 4] = ["examples", "tests/hostile", "tests/programs", "udfs"];

/// Builds every guest in `folders` with `host build`.
pub fn build_guests(workspace: &Workspace, folders: &[PathBuf]) -> Result {
    if folders.is_empty() {
        say(format_args!("no guests in {}", SHELVES.join(", ")));
    }
    for folder in folders {
        let mut build = Command::new(workspace.host());
        build.arg("build").arg(folder.strip_prefix(&workspace.root).unwrap_or(folder));
        build.current_dir(&workspace.root).env("CARGO_TARGET_DIR", &workspace.target);
        run_quiet_stdout(&mut build, "A guest that tests need does not build; the compiler's message above says why.")?;
    }
    Ok(())
}

/// The guests found on disk, in a fixed order.
pub fn find_guests(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut guests = Vec::new();
    for shelf in SHELVES {
        let shelf = workspace.root.join(shelf);
        if !shelf.is_dir() {
            continue;
        }
        let entries = fs::read_dir(&shelf).context(format_args!("read {}", shelf.display()))?;
        guests.extend(entries.flatten().map(|entry| entry.path()).filter(|folder| is_guest(folder)));
    }
    guests.sort();
    Ok(guests)
}

/// A component comes from a crate whose library is a `cdylib`; other folders hold data, jobs or plain crates.
fn is_guest(folder: &Path) -> bool {
    fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(|manifest| {
        manifest.lines().any(|line| line.trim_start().starts_with("crate-type") && line.contains("\"cdylib\""))
    })
}
