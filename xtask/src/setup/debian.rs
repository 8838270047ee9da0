//! Downloads from Debian: the standard library's source of a Rust release, the C library for the target, and programs.
//!
//! Packages are downloaded and unpacked, never installed, with a separate apt configuration: the machine's package lists,
//! sources and installed packages do not change, and root is not needed. Debian's keyring checks signatures.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::work_dir::WorkDir;
use crate::run::{Context as _, ExitDescription, Result, capture, display, fail, not_started, step};

/// Suites to search, those nearest to most machines' releases first. Older suites lack a recent rustc and the
/// `wasm32-wasip2` part of wasi-libc.
const SUITES: [&str; 3] = ["trixie-backports", "testing", "unstable"];

const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";
const KEYRINGS: [&str; 2] =
    ["/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp"];

/// Unpacked packages.
pub struct Sources {
    /// Folder that contains `library/`.
    pub rust: PathBuf,
    /// Folder of the C library's objects and archives for the guests' target.
    pub libc: PathBuf,
}

/// Downloads and unpacks the sources of the standard library of `release`.
pub fn fetch(work: &WorkDir, release: &str) -> Result<Sources> {
    if !release.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return fail(format!("Debian has sources of released compilers only, and this compiler is {release}"));
    }
    let mirror = mirror();
    let mut attempts = vec![format!("searched {mirror}")];
    for suite in SUITES {
        match from_suite(work, &mirror, suite, release) {
            Ok(sources) => return Ok(sources),
            Err(failure) => attempts.push(format!("{suite}: {failure}")),
        }
    }
    fail(attempts.join("\n"))
}

fn from_suite(work: &WorkDir, mirror: &str, suite: &str, release: &str) -> Result<Sources> {
    let apt = Apt::new(work, mirror, &[suite])?;
    apt.update()?;
    let versions = apt.versions("rust-src")?;
    match versions.iter().find(|version| is_of_release(version, release)) {
        Some(version) => apt.sources(work, version),
        None => fail(format!("no source of Rust {release}, only of {}", versions.join(", "))),
    }
}

/// Returns whether a package version is of a release: `1.95.0+dfsg1-2~bpo13+1` is of `1.95.0`; `1.95.0~beta.4+dfsg1-1`
/// precedes it.
fn is_of_release(version: &str, release: &str) -> bool {
    version.strip_prefix(release).is_some_and(|rest| rest.starts_with(['+', '-']))
}

/// apt with given suites as its only sources and its state in a temporary folder.
pub struct Apt {
    options: Vec<String>,
    folder: PathBuf,
}

impl Apt {
    /// Configures apt for suites of a mirror.
    pub fn new(work: &WorkDir, mirror: &str, suites: &[&str]) -> Result<Self> {
        let Some(keyring) = KEYRINGS.iter().find(|path| Path::new(path).exists()) else {
            return fail("Debian's keyring is missing (`apt install debian-archive-keyring`), or this is no Debian");
        };
        let name = format!("apt-{}", suites.join("-"));
        let folder = work.folder(&name)?;
        for inner in ["lists/partial", "cache/archives/partial"] {
            work.folder(&format!("{name}/{inner}"))?;
        }
        let list = folder.join("sources.list");
        let sources: String =
            suites.iter().map(|suite| format!("deb [signed-by={keyring}] {mirror} {suite} main\n")).collect();
        fs::write(&list, sources).context(format_args!("write {}", list.display()))?;
        let installed = folder.join("installed");
        fs::write(&installed, "").context(format_args!("write {}", installed.display()))?;
        let settings = [
            format!("Dir::Etc::sourcelist={}", list.display()),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::Lists={}", folder.join("lists").display()),
            // With no installed packages, all dependencies are downloaded, whatever this machine has.
            format!("Dir::State::status={}", installed.display()),
            format!("Dir::Cache={}", folder.join("cache").display()),
            // Run as root, apt would change to a user without write permission in this folder.
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        let options = settings.into_iter().flat_map(|setting| ["-o".to_owned(), setting]).collect();
        Ok(Self { options, folder })
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).args(&self.options).current_dir(&self.folder).env("LC_ALL", "C.UTF-8");
        command
    }

    /// Downloads the package lists.
    pub fn update(&self) -> Result {
        // Without the option, an update that downloads nothing succeeds.
        self.quietly(&["-q", "update", "--error-on=any"])
    }

    /// Downloads `packages` (`name` or `name=version`) into the folder.
    pub fn download(&self, packages: &[&str]) -> Result {
        self.quietly(&[&["-q", "download"], packages].concat())
    }

    /// Downloads `packages` and their dependencies, preferably from `suite`, and returns the files.
    pub fn download_with_dependencies(&self, suite: &str, packages: &[&str]) -> Result<Vec<PathBuf>> {
        let install = ["-q", "-y", "--download-only", "--no-install-recommends", "-t", suite, "install"];
        self.quietly(&[&install, packages].concat())?;
        let archives = self.folder.join("cache/archives");
        let files = fs::read_dir(&archives).context(format_args!("read {}", archives.display()))?;
        Ok(files.flatten().map(|file| file.path()).filter(|path| path.extension() == Some(OsStr::new("deb"))).collect())
    }

    /// Runs apt-get as a step; shows its output only on failure and its options never.
    fn quietly(&self, arguments: &[&str]) -> Result {
        let shown = format!("apt-get {}", arguments.join(" "));
        step(&shown, || match capture(&mut self.command("apt-get", arguments)) {
            Ok(_) => Ok(()),
            Err(failure) => fail(format!("`{shown}` failed: {}", reason_in(&failure.to_string()))),
        })
    }

    /// Returns the versions of `package` in the suite, newest first.
    fn versions(&self, package: &str) -> Result<Vec<String>> {
        let table = capture(&mut self.command("apt-cache", &["madison", package]))?;
        Ok(table.lines().filter_map(|line| line.split('|').nth(1)).map(|version| version.trim().to_owned()).collect())
    }

    fn sources(&self, work: &WorkDir, version: &str) -> Result<Sources> {
        self.download(&[&format!("rust-src={version}"), "wasi-libc"])?;
        let unpacked = work.folder("debian")?;
        step("unpack the two packages", || {
            // Debian's copies of std's dependencies lack precompiled files (wit-bindgen's C part), so the dependencies come
            // from crates.io; std's Cargo.lock has their checksums.
            unpack(&self.package("rust-src_")?, &unpacked, "./usr/src/rustc-*/library", "./usr/src/*/library/vendor")?;
            unpack(&self.package("wasi-libc_")?, &unpacked, "./usr/lib/wasm32-wasip2", "./usr/share")
        })?;
        let sources = unpacked.join("usr/src");
        let rust = only_entry(&sources, "rustc-")?;
        Ok(Sources { rust, libc: unpacked.join("usr/lib/wasm32-wasip2") })
    }

    /// Returns the downloaded package whose file name starts with `prefix`.
    pub fn package(&self, prefix: &str) -> Result<PathBuf> {
        only_entry(&self.folder, prefix)
    }
}

/// Unpacks the files of a package that match the pattern `wanted` and not `unwanted`: the standard library is a small part
/// of rust-src, and removing thousands of files can take longer than the download.
pub fn unpack(package: &Path, into: &Path, wanted: &str, unwanted: &str) -> Result {
    let mut reader = Command::new("dpkg-deb");
    reader.arg("--fsys-tarfile").arg(package).stdout(Stdio::piped());
    let mut reading = reader.spawn().map_err(|error| not_started(&reader, &error))?;
    let mut writer = Command::new("tar");
    writer.args(["-x", "--no-same-owner", "-C"]).arg(into);
    writer.args(["--wildcards", "--no-wildcards-match-slash", "--exclude", unwanted, wanted]);
    writer.stdin(reading.stdout.take().map_or_else(Stdio::null, Stdio::from));
    let written = writer.status().map_err(|error| not_started(&writer, &error));
    let read = reading.wait().context("wait for dpkg-deb")?;
    let written = written?;
    if !written.success() {
        return fail(format!("`{}` {}", display(&writer), ExitDescription(written)));
    }
    if !read.success() {
        return fail(format!("`{}` {}", display(&reader), ExitDescription(read)));
    }
    Ok(())
}

/// Returns an entry of a folder whose name starts with `prefix`; callers expect exactly one.
pub fn only_entry(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).context(format_args!("read {}", folder.display()))?;
    let found = entries.flatten().find(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    match found {
        Some(entry) => Ok(entry.path()),
        None => fail(format!("no entry of {} starts with {prefix}", folder.display())),
    }
}

/// Returns `SANDBAR_DEBIAN_MIRROR`, else the mirror that this machine's apt uses, else Debian's.
pub fn mirror() -> String {
    if let Ok(mirror) = env::var("SANDBAR_DEBIAN_MIRROR") {
        return mirror;
    }
    let sites = capture(Command::new("apt-get").args(["indextargets", "--format", "$(SITE)", "Created-By: Packages"]));
    let sites = sites.unwrap_or_default();
    let configured = sites.lines().find(|site| site.trim_end_matches('/').ends_with("/debian"));
    configured.unwrap_or(DEFAULT_MIRROR).to_owned()
}

/// Returns the first of apt's messages that names a file, else the last message.
fn reason_in(output: &str) -> &str {
    let mut lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    let file = lines.clone().find(|line| line.contains("Failed to fetch"));
    file.or_else(|| lines.next_back()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_release_itself_is_of_that_release() {
        for (version, expected) in [
            ("1.95.0+dfsg1-2~bpo13+1", true),
            ("1.95.0-1", true),
            ("1.95.0~beta.4+dfsg1-1", false),
            ("1.95.01+dfsg1-1", false),
            ("1.96.1+dfsg1-2", false),
        ] {
            assert_eq!(is_of_release(version, "1.95.0"), expected, "{version}");
        }
    }

    #[test]
    fn apts_message_that_names_a_file_is_shown() {
        let fetch = "W: Failed to fetch http://x/InRelease  Could not connect";
        assert_eq!(reason_in(&format!("Err\n{fetch}\nE: Some index files failed to download.\n")), fetch);
        assert_eq!(reason_in("one\nE: two\n"), "E: two");
    }

    #[test]
    fn a_nightly_compiler_is_rejected_before_any_download() {
        let work = WorkDir::named("nightly").unwrap();
        let failure = fetch(&work, "1.97.0-nightly").err().unwrap();
        assert!(failure.to_string().contains("released compilers only"));
    }
}
