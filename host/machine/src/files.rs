//! Files: atomic writes, and errors about paths that do not exist.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Names of a folder that are searched for suggestions.
const SUGGESTED_FROM_MAX: usize = 10_000;

/// Writes a file atomically: readers see its previous content or all of the new one. Creates missing folders. On errors,
/// no temporary file is left. Only the owner can write the file: compiled code is among what is written.
///
/// # Errors
/// Kernel errors.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Threads may write the same file concurrently.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let (name, process) = (path.file_name().unwrap_or_default().to_string_lossy(), std::process::id());
    let temporary = folder.join(format!(".{name}.{process}-{}", WRITES.fetch_add(1, Relaxed)));
    let create = || OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&temporary);
    let written = create().and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // A partial file takes space of a full disk.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Removes the least recently modified files of a folder, until at most `files_max` files with `bytes_max` bytes remain.
/// Leaves files for which `is_kept` returns true. Files that can't be removed stay.
pub fn evict_oldest(folder: &Path, files_max: usize, bytes_max: u64, is_kept: impl Fn(&Path) -> bool) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((metadata.modified().ok(), metadata.len(), entry.path()))
        })
        .collect();
    files.sort();
    let (mut count, mut bytes) = (files.len(), files.iter().map(|(_, bytes, _)| bytes).sum::<u64>());
    for (_, length, path) in files {
        if count <= files_max && bytes <= bytes_max {
            return;
        }
        if !is_kept(&path) && fs::remove_file(&path).is_ok() {
            (count, bytes) = (count - 1, bytes - length);
        }
    }
}

/// Formats the error for a path that does not exist: the expected item, the searched folder, and a similar name.
pub fn missing(item: &str, path: &Path) -> String {
    let hint = sandbar_core::hint(&path.display().to_string(), &names_beside(path));
    format!("there is no {item} `{}` {}{hint}", path.display(), relative_to(path))
}

/// Describes the folder that a path is relative to.
pub fn relative_to(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(folder) if path.is_relative() => {
            format!("in {} (paths are relative to the folder that the host runs in)", folder.display())
        }
        _ => "on this machine".to_owned(),
    }
}

/// Lists the paths in the folder of a path, in the form of that path.
pub fn names_beside(path: &Path) -> Vec<String> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let read = fs::read_dir(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    let entries = read.into_iter().flatten().take(SUGGESTED_FROM_MAX).flatten();
    let mut names: Vec<String> = entries.map(|entry| folder.join(entry.file_name()).display().to_string()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn the_oldest_files_are_evicted() {
        for (files_max, bytes_max, kept, expected) in [
            (9, 90, "", "abcd"),
            (2, 90, "", "cd"),
            (9, 25, "", "cd"),
            (2, 90, "a", "ad"),
            (0, 0, "", ""),
            (0, 0, "bc", "bc"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("folder")).unwrap();
            for (number, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
                fs::write(folder.path().join(name), [0; 10]).unwrap();
                let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64);
                fs::File::options().write(true).open(folder.path().join(name)).unwrap().set_modified(modified).unwrap();
            }
            let is_kept = |path: &Path| kept.contains(path.file_name().unwrap().to_str().unwrap());
            evict_oldest(folder.path(), files_max, bytes_max, is_kept);
            let mut left: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).into();
            left.retain(|name| folder.path().join(name).is_file());
            assert_eq!(left.concat(), expected, "{files_max} {bytes_max} {kept}");
            assert!(folder.path().join("folder").is_dir());
        }
    }
}
