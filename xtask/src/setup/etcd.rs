//! Finds etcd, the metadata store of clusters in tests, or fetches it from Debian into the user's cache folder.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use super::cache::cache;
use super::debian::{Apt, mirror, unpack};
use super::work_dir::WorkDir;
use crate::run::{Context as _, Result, capture, fail, report, step};

const PROGRAM: &str = "etcd";
const PACKAGE: &str = "etcd-server";

/// Suites to try, newest first: a machine's C library can be too old for a suite's program.
const SUITES: [&str; 2] = ["trixie", "bookworm"];

/// Ensures that tests find etcd: `SANDBAR_ETCD`, else the one in PATH, else the one in the cache folder.
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
    let mut attempts = vec![format!("searched {mirror}")];
    for suite in SUITES {
        match from_suite(&work, &mirror, suite) {
            Ok(program) => return install(&program, folder),
            Err(failure) => attempts.push(format!("{suite}: {failure}")),
        }
    }
    fail(attempts.join("\n"))
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

/// Copies the program to a temporary name and renames it, so that tests that run meanwhile see a complete file.
fn install(program: &Path, folder: &Path) -> Result {
    fs::create_dir_all(folder).context(format_args!("create {}", folder.display()))?;
    let new = folder.join(format!("{PROGRAM}.{}", process::id()));
    let placed = fs::copy(program, &new).and_then(|_| fs::rename(&new, folder.join(PROGRAM)));
    let _ = fs::remove_file(&new);
    placed.context(format_args!("write into {}", folder.display()))?;
    report(format_args!("etcd is in {}; remove that folder to remove it", folder.display()));
    Ok(())
}

fn runs(program: &Path) -> bool {
    let mut command = Command::new(program);
    program.is_file() && capture(command.arg("--version").stdin(Stdio::null())).is_ok()
}

fn in_path(path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path).map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_not_found() {
        assert!(!runs(Path::new("/nonexistent")) && !runs(Path::new("/")));
        assert_eq!(in_path("/nonexistent:/proc".as_ref()), None);
    }

    #[test]
    fn an_installed_program_replaces_the_old_one() {
        let work = WorkDir::named("etcd-install").unwrap();
        let program = work.path().join("program");
        fs::write(&program, "1").unwrap();
        let folder = work.path().join("a/b");
        install(&program, &folder).unwrap();
        install(&program, &folder).unwrap();
        let names: Vec<_> = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, [PROGRAM]);
    }
}
