//! `cargo xtask setup`: makes the guests' target usable with the toolchain in use, and fetches what tests run.
//!
//! rustup has the target ready-made, and that is the first thing tried. Where rustup or its server cannot be had (a
//! distribution's compiler, a network that lets only package mirrors through), the standard library is built once from
//! Debian's packages and put where rustup would have put it, so that plain `cargo build --target wasm32-wasip2` works
//! from then on. Everything is made in a temporary folder and moved into place when rustc has compiled a component with
//! it: an interrupted set-up changes nothing.

mod debian;
mod etcd;
mod lavapipe;
mod std_build;
mod toolchain;
mod work_dir;

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use self::std_build::{Sysroot, copy_files};
use self::toolchain::{State, Toolchain, Version};
use self::work_dir::WorkDir;
use crate::run::{Context as _, Ended, Result, Seconds, capture, fail, not_started, say, step};

/// What guests are compiled for.
pub const TARGET: &str = "wasm32-wasip2";

/// A component begins so: the WebAssembly magic, then version 13 of layer 1 (a plain module is version 1 of layer 0).
const COMPONENT_MAGIC: [u8; 8] = *b"\0asm\x0d\0\x01\0";

/// A download of 20 MB that takes longer than this is not going to end.
const RUSTUP_TIME_MAX: Duration = Duration::from_secs(300);

/// Makes the target usable; quick when it already is.
pub fn setup() -> Result {
    let started = Instant::now();
    let toolchain = Toolchain::find()?;
    toolchain.check_linker()?;
    if toolchain.state()? == State::Ready {
        say(format_args!("{TARGET} is ready ({})", Seconds(started.elapsed())));
        return Ok(());
    }
    step(&format!("set up {TARGET}"), || {
        let _lock = toolchain.lock()?;
        match toolchain.state()? {
            // Another set-up was at work and has ended meanwhile.
            State::Ready => return Ok(()),
            State::Stale => {
                say(format_args!("the {TARGET} library here was built for another version of rustc: removing it"));
                toolchain.remove_target()?;
            }
            State::Missing => {}
        }
        install(&toolchain)
    })
}

/// Makes the target usable, and what else tests need.
///
/// Some need etcd, some a Vulkan driver. Where these can't be had, they fail and say so; all others run.
pub fn setup_for_tests() -> Result {
    setup()?;
    if let Err(failure) = etcd::find_or_fetch() {
        say(format_args!("without etcd, tests of host/meta will fail: {failure}"));
    }
    if let Err(failure) = lavapipe::find_or_fetch() {
        say(format_args!("without lavapipe, tests of GPU kernels will fail: {failure}"));
    }
    Ok(())
}

fn install(toolchain: &Toolchain) -> Result {
    let version = toolchain.version()?;
    let work = WorkDir::new()?;
    let installed = install_with(&work, toolchain, &version);
    // Some disks take longer to remove files than to write them, so it is worth a line.
    step("clean up", || {
        drop(work);
        Ok(())
    })?;
    installed
}

fn install_with(work: &WorkDir, toolchain: &Toolchain, version: &Version) -> Result {
    let rustup = match add_with_rustup(work) {
        Ok(()) if toolchain.state()? == State::Ready => {
            return verify(work, &toolchain.bin("rustc"));
        }
        Ok(()) => "rustup looked after another toolchain than the one in use".to_owned(),
        Err(failure) => failure.to_string(),
    };
    say(format_args!("rustup cannot add it here ({rustup}); building it from Debian's source packages instead"));
    match build(work, toolchain, version) {
        Ok(()) => {
            // rustup refuses to write over files that it did not put there.
            let folder = toolchain.target_dir();
            say(format_args!(
                "built; should rustup ever be asked to add {TARGET} itself, remove {} first",
                folder.display()
            ));
            Ok(())
        }
        Err(failure) => fail(explain(toolchain, version, &rustup, &failure.to_string())),
    }
}

fn build(work: &WorkDir, toolchain: &Toolchain, version: &Version) -> Result {
    // Tried before the long part: what cannot be put in place need not be built.
    let staging = toolchain.rustlib().join(format!(".{TARGET}.new"));
    let _ = fs::remove_dir_all(&staging);
    fs::create_dir(&staging).context(format_args!(
        "write into the toolchain's folder {} (run this as the user who owns it)",
        toolchain.rustlib().display()
    ))?;
    let built = build_into(work, toolchain, version, &staging);
    if built.is_err() {
        let _ = fs::remove_dir_all(&staging);
    }
    built
}

fn build_into(work: &WorkDir, toolchain: &Toolchain, version: &Version, staging: &Path) -> Result {
    let sources = debian::fetch(work, &version.release)?;
    let sysroot = Sysroot::new(work, toolchain, &sources)?;
    sysroot.build_std(work, toolchain, version)?;
    verify(work, sysroot.rustc())?;
    step("move it into place", || {
        for folder in ["lib", "lib/self-contained"] {
            copy_files(&sysroot.target_dir().join(folder), &staging.join(folder))?;
        }
        toolchain.stamp(staging, version)?;
        toolchain.remove_target()?;
        fs::rename(staging, toolchain.target_dir()).context(format_args!("make {}", toolchain.target_dir().display()))
    })
}

/// `rustup target add`. What it says on stderr is worth reading only when it fails, and then only the errors are.
fn add_with_rustup(work: &WorkDir) -> Result {
    let log = work.path().join("rustup.log");
    let output = File::create(&log).context(format_args!("write {}", log.display()))?;
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", TARGET]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    rustup.env_remove("RUST_BACKTRACE");
    step(&format!("rustup target add {TARGET}"), || {
        let mut child = rustup.spawn().map_err(|error| not_started(&rustup, &error))?;
        let deadline = Instant::now() + RUSTUP_TIME_MAX;
        loop {
            match child.try_wait().context("wait for rustup")? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let said = fs::read_to_string(&log).unwrap_or_default();
                    return fail(errors_of(&said).unwrap_or_else(|| format!("rustup {}", Ended(status))));
                }
                None if Instant::now() > deadline => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return fail(format!("no answer in {}", Seconds(RUSTUP_TIME_MAX)));
                }
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
    })
}

/// The first `error:` line and the innermost cause: rustup says what lies between them too, in one line or in many.
fn errors_of(log: &str) -> Option<String> {
    let mut lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines.find_map(|line| line.strip_prefix("error: "))?;
    let what = error.split(": ").next().unwrap_or(error);
    let cause = lines.next_back().unwrap_or(error).rsplit(": ").next().unwrap_or_default();
    Some(if what == cause { what.to_owned() } else { format!("{what}: {cause}") })
}

/// Compiles a small component, optimised across crates as guests are, so that the libraries, their bitcode and the
/// linker have all been used once.
fn verify(work: &WorkDir, rustc: &Path) -> Result {
    step("compile a component", || {
        let source = work.path().join("probe.rs");
        let component = work.path().join("probe.wasm");
        let text = "#[unsafe(no_mangle)]\npub extern \"C\" fn probe() { println!(\"{:?}\", std::env::args()); }\n";
        fs::write(&source, text).context(format_args!("write {}", source.display()))?;
        let mut compile = Command::new(rustc);
        compile.args(["--target", TARGET, "--edition", "2024", "--crate-type", "cdylib", "-Copt-level=2", "-Clto=fat"]);
        capture(compile.arg(&source).arg("-o").arg(&component))?;
        let bytes = fs::read(&component).context(format_args!("read {}", component.display()))?;
        if bytes.starts_with(&COMPONENT_MAGIC) { Ok(()) } else { fail("rustc made something else than a component") }
    })
}

/// Where `name`, which can be fetched again, is kept for the user. Tests look there: host/meta's for etcd.
fn cache(name: &str) -> Result<PathBuf> {
    match cache_folder(|variable| env::var_os(variable)) {
        Some(folder) => Ok(folder.join(name)),
        None => fail("neither XDG_CACHE_HOME nor HOME says where to put it"),
    }
}

fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("sandbar"))
}

fn explain(toolchain: &Toolchain, version: &Version, rustup: &str, debian: &str) -> String {
    let release = &version.release;
    let indented = debian.replace('\n', "\n      ");
    format!(
        "the Rust target {TARGET}, which guests are compiled for, could not be made usable. Tried:\n  \
         1. `rustup target add {TARGET}`:\n      {rustup}\n  \
         2. building it from Debian's packages:\n      {indented}\n\
         Any one of these helps:\n  \
         - let rustup reach https://static.rust-lang.org (or set RUSTUP_DIST_SERVER to a mirror) and run this again;\n  \
         - let apt reach a Debian mirror, and cargo crates.io (SANDBAR_DEBIAN_MIRROR names another mirror);\n  \
         - copy lib/rustlib/{TARGET} of another machine's Rust {release} into {};\n  \
         - use a Rust release that one of Debian's suites above has the source of.",
        toolchain.rustlib().display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_things_are_kept() {
        for (cache_home, home, expected) in [
            (Some("/c"), Some("/h"), Some("/c/sandbar")),
            (Some(""), Some("/h"), Some("/h/.cache/sandbar")),
            (None, Some("/h"), Some("/h/.cache/sandbar")),
            (None, None, None),
        ] {
            let variable = |name: &str| if name == "HOME" { home } else { cache_home }.map(Into::into);
            assert_eq!(cache_folder(variable), expected.map(PathBuf::from), "{cache_home:?} {home:?}");
        }
    }

    #[test]
    fn rustups_errors_are_shortened_to_what_and_why() {
        let many =
            "info: downloading\nerror: download failed\n\nCaused by:\n    0: partial\n    1: refused (os error 111)\n";
        let one = "error: download failed: partial: tcp connect error: refused (os error 111)\n";
        for log in [many, one] {
            assert_eq!(errors_of(log).unwrap(), "download failed: refused (os error 111)");
        }
        assert_eq!(errors_of("error: no\n").unwrap(), "no");
        assert_eq!(errors_of("info: fine\n"), None);
    }
}
