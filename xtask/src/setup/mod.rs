//! `cargo xtask setup`: makes the guests' target usable with the current toolchain, and fetches programs for tests.
//!
//! The set-up tries `rustup target add` first. Without rustup or its server (a distribution's compiler, a network that
//! reaches package mirrors only), it builds the standard library once from Debian's packages and installs it where rustup
//! would, so that plain `cargo build --target wasm32-wasip2` works afterwards. The build happens in a temporary folder and
//! moves into place after rustc has compiled a component with it: an interrupted set-up changes nothing.

mod cache;
mod debian;
mod etcd;
mod lavapipe;
mod std_build;
mod toolchain;
mod work_dir;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use self::std_build::{Sysroot, copy_files};
use self::toolchain::{TARGET, TargetState, Toolchain, Version};
use self::work_dir::WorkDir;
use crate::run::{Context as _, ExitDescription, Result, Seconds, capture, fail, not_started, report, step};

/// First bytes of a component: the WebAssembly magic, then version 13 of layer 1 (a core module has version 1, layer 0).
const COMPONENT_MAGIC: [u8; 8] = *b"\0asm\x0d\0\x01\0";

/// Time limit of rustup, which downloads 20 MB.
const RUSTUP_TIME_MAX: Duration = Duration::from_secs(300);

/// Makes the target usable; returns at once if it is.
pub fn setup() -> Result {
    let started = Instant::now();
    let toolchain = Toolchain::find()?;
    toolchain.check_linker()?;
    if toolchain.state()? == TargetState::Ready {
        report(format_args!("{TARGET} is ready ({})", Seconds(started.elapsed())));
        return Ok(());
    }
    step(&format!("set up {TARGET}"), || {
        let _lock = toolchain.lock()?;
        match toolchain.state()? {
            // Another set-up has finished while this one waited for the lock.
            TargetState::Ready => return Ok(()),
            TargetState::Stale => {
                report(format_args!("the {TARGET} library here was built for another version of rustc: removing it"));
                toolchain.remove_target()?;
            }
            TargetState::Missing => {}
        }
        install(&toolchain)
    })
}

/// Makes the target usable, and fetches etcd and lavapipe for tests.
///
/// Without etcd or lavapipe, only the tests that need them fail.
pub fn setup_for_tests() -> Result {
    setup()?;
    if let Err(failure) = etcd::find_or_fetch() {
        report(format_args!("etcd is missing, so tests of host/meta will fail: {failure}"));
    }
    if let Err(failure) = lavapipe::find_or_fetch() {
        report(format_args!("lavapipe is missing, so tests of GPU kernels will fail: {failure}"));
    }
    Ok(())
}

fn install(toolchain: &Toolchain) -> Result {
    let version = toolchain.version()?;
    let work = WorkDir::new()?;
    let installed = install_with(&work, toolchain, &version);
    // A step of its own, since removing the files can take longer than writing them.
    step("clean up", || {
        drop(work);
        Ok(())
    })?;
    installed
}

fn install_with(work: &WorkDir, toolchain: &Toolchain, version: &Version) -> Result {
    let rustup = match add_with_rustup(work) {
        Ok(()) if toolchain.state()? == TargetState::Ready => {
            return verify(work, &toolchain.bin("rustc"));
        }
        Ok(()) => "rustup added it to a toolchain other than the one in use".to_owned(),
        Err(failure) => failure.to_string(),
    };
    report(format_args!("rustup cannot add {TARGET} ({rustup}); building it from Debian's source packages instead"));
    match build(work, toolchain, version) {
        Ok(()) => {
            // rustup refuses to overwrite files that it did not install.
            let folder = toolchain.target_dir();
            report(format_args!("built {TARGET}; before `rustup target add {TARGET}`, remove {}", folder.display()));
            Ok(())
        }
        Err(failure) => fail(explain(toolchain, version, &rustup, &failure.to_string())),
    }
}

fn build(work: &WorkDir, toolchain: &Toolchain, version: &Version) -> Result {
    // Checks write access before the long build.
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
        fs::rename(staging, toolchain.target_dir()).context(format_args!("create {}", toolchain.target_dir().display()))
    })
}

/// Runs `rustup target add`; shows its errors if it fails, and no other output.
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
                    let output = fs::read_to_string(&log).unwrap_or_default();
                    return fail(errors_of(&output).unwrap_or_else(|| format!("rustup {}", ExitDescription(status))));
                }
                None if Instant::now() > deadline => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return fail(format!("rustup did not finish within {}", Seconds(RUSTUP_TIME_MAX)));
                }
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
    })
}

/// Returns the first `error:` line and the innermost cause, without the causes between them, which rustup prints in one
/// line or several.
fn errors_of(log: &str) -> Option<String> {
    let mut lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines.find_map(|line| line.strip_prefix("error: "))?;
    let summary = error.split(": ").next().unwrap_or(error);
    let cause = lines.next_back().unwrap_or(error).rsplit(": ").next().unwrap_or_default();
    Some(if summary == cause { summary.to_owned() } else { format!("{summary}: {cause}") })
}

/// Compiles a small component with the optimisation across crates that guests use, which tests the libraries, their
/// bitcode and the linker.
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
        if bytes.starts_with(&COMPONENT_MAGIC) { Ok(()) } else { fail("rustc's output is not a component") }
    })
}

fn explain(toolchain: &Toolchain, version: &Version, rustup: &str, debian: &str) -> String {
    let release = &version.release;
    let indented = debian.replace('\n', "\n      ");
    format!(
        "the Rust target {TARGET}, which guests are compiled for, could not be set up. Tried:\n  \
         1. `rustup target add {TARGET}`:\n      {rustup}\n  \
         2. building it from Debian's packages:\n      {indented}\n\
         Do one of these:\n  \
         - let rustup reach https://static.rust-lang.org (or set RUSTUP_DIST_SERVER to a mirror) and run this again;\n  \
         - let apt reach a Debian mirror (SANDBAR_DEBIAN_MIRROR sets another one) and cargo reach crates.io;\n  \
         - copy lib/rustlib/{TARGET} of another machine's Rust {release} into {};\n  \
         - use a Rust release whose source is in one of Debian's suites above.",
        toolchain.rustlib().display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustups_errors_are_shortened_to_error_and_cause() {
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
