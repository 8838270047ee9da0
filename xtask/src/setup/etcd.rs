//! etcd, of which tests run clusters: found, or fetched from Debian into the user's cache folder.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use super::cache;
use super::debian::{Apt, mirror, unpack};
use super::work_dir::WorkDir;
use crate::run::{Context as _, Result, capture, fail, say, step};

const PROGRAM: &str = "etcd";
const PACKAGE: &str = "etcd-server";

/// Newest first. What a suite's program needs of the C library, older machines may not have.
const SUITES: [&str; 2] = ["trixie", "bookworm"];

/// Sees to it that tests find an etcd: `SANDBAR_ETCD`, else one in PATH, else one in the cache folder.
pub fn find_or_fetch() -> Result {
    if env::var_os("SANDBAR_ETCD").is_some() || in_path(&env::var_os("PATH").unwrap_or_default()).is_some() {
        return Ok(());
    }
    let folder = cache(PROGRAM)?;
    if runs(&folder.join(PROGRAM)) {
        return Ok(());
    }
    step(&format!("fetch etcd from Debian into {}", folder.display()), || fetch(&folder))
}

fn fetch(folder: &Path) -> Result {
    let work = WorkDir::named(PROGRAM)?;
    let mirror = mirror();
    let mut tried = vec![format!("looked in {mirror}")];
    for suite in SUITES {
        match from_suite(&work, &mirror, suite) {
            Ok(program) => return put(&program, folder),
            Err(failure) => tried.push(format!("{suite}: {failure}")),
        }
    }
    fail(tried.join("\n"))
}

fn from_suite(work: &WorkDir, mirror: &str, suite: &str) -> Result<PathBuf> {
    let apt = Apt::new(work, mirror, &[suite])?;
    apt.update()?;
    apt.download(&[PACKAGE])?;
    let unpacked = work.folder(&format!("etcd-{suite}"))?;
    unpack(&apt.package("etcd-server_")?, &unpacked, "./usr/bin/etcd", "./usr/share")?;
    let program = unpacked.join("usr/bin").join(PROGRAM);
    if runs(&program) { Ok(program) } else { fail("its etcd does not run on this machine") }
}

/// Moved in place when it is whole: tests may be running, of this checkout or another.
fn put(program: &Path, folder: &Path) -> Result {
    fs::create_dir_all(folder).context(format_args!("make {}", folder.display()))?;
    let new = folder.join(format!("{PROGRAM}.{}", process::id()));
    let placed = fs::copy(program, &new).and_then(|_| fs::rename(&new, folder.join(PROGRAM)));
    let _ = fs::remove_file(&new);
    placed.context(format_args!("write into {}", folder.display()))?;
    say(format_args!("etcd is in {}; removing that folder removes it", folder.display()));
    Ok(())
}

fn runs(program: &Path) -> bool {
    let mut asked = Command::new(program);
    program.is_file() && capture(asked.arg("--version").stdin(Stdio::null())).is_ok()
}

fn in_path(path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path).map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_run_is_not_there() {
        assert!(!runs(Path::new("/nonexistent")) && !runs(Path::new("/")));
        assert_eq!(in_path("/nonexistent:/proc".as_ref()), None);
    }

    #[test]
    fn it_is_moved_in_place() {
        let work = WorkDir::named("etcd-put").unwrap();
        let program = work.path().join("program");
        fs::write(&program, "1").unwrap();
        let folder = work.path().join("a/b");
        put(&program, &folder).unwrap();
        put(&program, &folder).unwrap();
        let names: Vec<_> = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, [PROGRAM]);
    }
}
