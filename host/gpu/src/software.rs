//! The software driver lavapipe, as `cargo xtask setup` installs it into the user's cache folder: for tests, and for
//! machines whose users request it.

use std::env;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// Environment variables of the Vulkan loader's drivers, and of the libraries that they need.
const DRIVERS: &str = "VK_DRIVER_FILES";
const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// Makes lavapipe the only driver of this process: from the folder in `SANDBAR_LAVAPIPE`, else from the cache folder.
/// Re-executes the process with the same arguments if needed, because the library path is read at its start.
///
/// # Errors
/// Fails if lavapipe is not installed. A re-executed process does not return.
pub fn use_software() -> io::Result<()> {
    let folder =
        folder().ok_or_else(|| io::Error::other("neither SANDBAR_LAVAPIPE, XDG_CACHE_HOME nor HOME is set"))?;
    let manifest = folder.join("lvp_icd.json");
    if env::var_os(DRIVERS).is_some_and(|drivers| drivers == manifest) {
        return Ok(());
    }
    if !manifest.is_file() {
        let message = format!("{} is missing: run `cargo xtask setup`", manifest.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1)).env(DRIVERS, &manifest).env(LIBRARIES, &folder);
    // The driver would write compiled kernels to the user's home.
    again.env("MESA_SHADER_CACHE_DISABLE", "1");
    Err(again.exec())
}

/// Returns lavapipe's folder, if the environment determines one.
pub(crate) fn folder() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = set("SANDBAR_LAVAPIPE") {
        return Some(folder);
    }
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("sandbar/lavapipe"))
}
