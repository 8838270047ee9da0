//! Paths of the checkout, programs and data; builds of guests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::report::progress;

/// Returns the checkout that this program was built from.
pub fn root() -> PathBuf {
    Path::new(env!("SANDBAR_MANIFEST")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// Returns cargo's target folder, whose `release` contains this program.
pub fn target() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?;
    Ok(program.ancestors().nth(2).ok_or("this program is not in a target folder")?.to_owned())
}

/// Environment variable of a folder with the measured programs, instead of that of this program.
pub const PROGRAMS_VARIABLE: &str = "SANDBAR_BENCH_PROGRAMS";

/// Returns the path of the program `host` or `host-worker`, built beside this one.
pub fn program(name: &str) -> Result<PathBuf, Failure> {
    let program = match std::env::var_os(PROGRAMS_VARIABLE) {
        Some(folder) => Path::new(&folder).join(name),
        None => std::env::current_exe()?.with_file_name(name),
    };
    if program.is_file() {
        Ok(program)
    } else {
        Err(format!("{} is missing: `cargo xtask bench` builds it", program.display()).into())
    }
}

/// Returns the folder of generated data, which runs share.
pub fn data() -> Result<PathBuf, Failure> {
    Ok(target()?.join("bench"))
}

/// Builds a guest's crate and returns the path of its component.
pub fn guest(folder: &str) -> Result<PathBuf, Failure> {
    progress(&format!("host build {folder}"));
    let mut build = Command::new(program("host")?);
    build.args(["build", folder]).current_dir(root()).env("CARGO_TARGET_DIR", target()?).stdin(Stdio::null());
    let output = build.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{folder} does not build").into());
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}
