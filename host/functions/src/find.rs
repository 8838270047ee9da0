//! Lookup of components by path or by shipped name.

use std::fs;
use std::path::{Path, PathBuf};

use sandbar_core::{REGISTERED_PREFIX, hint};
use sandbar_machine::{names_beside, relative_to};

use crate::error::FunctionError;

/// Finds a component or a crate's folder: at `path`, or, if `path` is a plain name, among the `shipped` folders. `key`
/// names the job file's key for errors; empty for the command line.
///
/// # Errors
/// Fails if nothing exists at `path`; the error names the missing item and the searched folders.
pub fn find_component(shipped: &[PathBuf], key: &str, path: &Path) -> Result<PathBuf, FunctionError> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    if let Some(text) = path.to_str().filter(|text| text.starts_with(REGISTERED_PREFIX)) {
        let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
        return Err(FunctionError::NotFound(format!(
            "{key}`{text}` is a component of a cluster: submit the job to it with --node"
        )));
    }
    let is_name = path.file_name() == Some(path.as_os_str());
    if let Some(name) = path.to_str().filter(|_| is_name) {
        let candidates = shipped.iter().flat_map(|folder| [folder.join(format!("{name}.wasm")), folder.join(name)]);
        if let Some(found) = candidates.into_iter().find(|candidate| is_component(candidate)) {
            return Ok(found);
        }
    }
    let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
    let mut message = format!("{key}there is no component or crate `{}` {}", path.display(), relative_to(path));
    let mut names = names_beside(path);
    if is_name {
        let all = shipped_names(shipped);
        let folders: Vec<_> = shipped.iter().map(|folder| folder.display().to_string()).collect();
        message += &match &folders[..] {
            [] => ", and this host has no shipped functions".to_owned(),
            _ => format!(", and none of that name is shipped: in {} are {}", folders.join(" and "), all.join(", ")),
        };
        names.extend(all);
    }
    Err(FunctionError::NotFound(message + &hint(&path.display().to_string(), &names)))
}

/// Lists the names of shipped components.
fn shipped_names(shipped: &[PathBuf]) -> Vec<String> {
    let entries = shipped.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let found = entries.map(|entry| entry.path()).filter(|path| is_component(path));
    let mut names: Vec<String> =
        found.filter_map(|path| path.file_stem().map(|name| name.to_string_lossy().into_owned())).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns whether a path is a component, or the folder of a crate.
fn is_component(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "wasm") && path.is_file() || path.join("Cargo.toml").is_file()
}
