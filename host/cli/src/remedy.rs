//! Remedies for failures that limits of this machine cause.

use std::path::Path;

use sandbar_node::machine;

/// Number of file descriptors that is enough for most jobs.
pub(crate) const FILES_USUAL: u64 = 1024;
/// Number of file descriptors below which some programs can't run.
pub(crate) const FILES_LEAST: u64 = 64;
/// The standard library's text for EMFILE.
const TOO_MANY_FILES: &str = "(os error 24)";

/// The standard library's texts for ENOSPC and EDQUOT.
const FULL: [&str; 2] = ["(os error 28)", "(os error 122)"];

/// Returns the exceeded limit and its remedy, if the message of a failure names one.
pub(crate) fn find(message: &str) -> Option<String> {
    of_files(message, machine::raise_file_limit()).or_else(|| of_temporary_folder(message, &std::env::temp_dir()))
}

fn of_files(message: &str, files: Option<u64>) -> Option<String> {
    let files = files.filter(|_| message.contains(TOO_MANY_FILES))?;
    Some(format!(
        "this process may open {files} files: raise the hard limit (`ulimit -Hn {FILES_USUAL}`, or \
         LimitNOFILE={FILES_USUAL} of its unit), or use fewer --workers"
    ))
}

fn of_temporary_folder(message: &str, folder: &Path) -> Option<String> {
    let named = folder.display().to_string();
    // Matches the folder itself, not a path in it.
    let is_named = message.split(&named).skip(1).any(|rest| !rest.starts_with('/'));
    if !folder.is_absolute() || !is_named {
        return None;
    }
    if FULL.iter().any(|full| message.contains(full)) {
        return Some("set TMPDIR to a folder on a disk with more room, or give the job more memory".to_owned());
    }
    let text = format!("{named} is the folder for temporary files and is not writable");
    (!can_be_written(folder)).then(|| format!("{text}: set TMPDIR to a writable folder"))
}

/// Returns whether a folder is writable, by creating a file and removing it.
pub(crate) fn can_be_written(folder: &Path) -> bool {
    let path = folder.join(format!(".sandbar-{}", std::process::id()));
    let is_writable = std::fs::OpenOptions::new().write(true).create_new(true).open(&path).is_ok();
    let _ = std::fs::remove_file(path);
    is_writable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_named_with_a_remedy() {
        let folder = Path::new("/nowhere/at/all");
        for (message, files, temporary) in [
            ("a worker can't be started: Too many open files (os error 24)", true, false),
            ("can't spill rows to /nowhere/at/all: No such file or directory (os error 2)", false, true),
            ("can't spill rows to /nowhere/at/all: No space left on device (os error 28)", false, true),
            ("can't write /nowhere/at/all/out.parquet: No space left on device (os error 28)", false, false),
            ("no.csv: No such file or directory (os error 2)", false, false),
        ] {
            let remedy = of_files(message, Some(32));
            assert_eq!(remedy.is_some_and(|remedy| remedy.contains("may open 32 files")), files, "{message}");
            let remedy = of_temporary_folder(message, folder);
            assert_eq!(remedy.is_some_and(|remedy| remedy.contains("set TMPDIR")), temporary, "{message}");
        }
        let there = std::env::temp_dir();
        let message = format!("can't read {}/a.csv: it is damaged", there.display());
        assert_eq!(of_temporary_folder(&message, &there), None);
    }
}
