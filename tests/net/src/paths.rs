//! Paths of the checkout, the host program, components and the cache.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Returns the checkout that the tests were built from.
pub fn workspace() -> &'static Path {
    Path::new(env!("SANDBAR_MANIFEST")).parent().expect("a file lies in a folder")
}

/// Returns the host program: `SANDBAR_HOST`, or the one in the profile folder of this test.
///
/// # Panics
/// Panics if the program is missing.
pub fn host() -> &'static Path {
    static HOST: OnceLock<PathBuf> = OnceLock::new();
    HOST.get_or_init(|| {
        let named = std::env::var_os("SANDBAR_HOST").map(PathBuf::from);
        let host = named.unwrap_or_else(|| profile_folder().join("host"));
        assert!(
            host.is_file(),
            "{} is missing: run `cargo xtask test`, which builds the host and its guests first",
            host.display()
        );
        host
    })
}

/// Returns a program of a crate's `examples/` folder, which cargo builds with the tests.
///
/// # Panics
/// Panics if the program is missing.
pub fn example(name: &str) -> PathBuf {
    let path = profile_folder().join("examples").join(name);
    assert!(path.is_file(), "{} is missing: run `cargo xtask test`", path.display());
    path
}

/// Returns `target/release`, or the profile folder that cargo built this test in.
fn profile_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("a test knows where it is");
    let folder = exe.parent().and_then(Path::parent);
    folder.expect("cargo puts tests into deps/").to_owned()
}

/// Returns the component of a crate of the checkout, and builds it if it is stale. If `SANDBAR_GUESTS` is set, returns
/// the component in that folder instead: `taxi.wasm` for `udfs/taxi`.
///
/// # Panics
/// Panics if the component can't be built or is missing.
pub fn component(folder: &str) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let built = built.get_or_insert_default();
    built.entry(folder.to_owned()).or_insert_with(|| find_or_build(Path::new(folder))).clone()
}

fn find_or_build(folder: &Path) -> PathBuf {
    if let Some(guests) = std::env::var_os("SANDBAR_GUESTS") {
        let component = Path::new(&guests).join(folder.file_name().unwrap_or_default()).with_extension("wasm");
        assert!(component.is_file(), "{} is missing", component.display());
        return component;
    }
    let output = Command::new(host()).arg("build").arg(folder).current_dir(workspace()).output();
    let output = output.expect("the host starts");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} does not build; run `cargo xtask test`:\n{messages}", folder.display());
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

/// Returns the cache folder of this process. It outlives the process, since no code runs when a test process ends; the
/// next test process removes it.
///
/// # Panics
/// Panics if the target folder can't be written.
pub fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let caches = profile_folder().with_file_name("tmp").join("caches-of-tests");
        for old in std::fs::read_dir(&caches).into_iter().flatten().flatten() {
            let process = old.file_name().to_str().and_then(|name| name.parse().ok());
            if !process.is_some_and(crate::is_alive) {
                // Ignore the error: another process may be removing the same folder.
                let _ = std::fs::remove_dir_all(old.path());
            }
        }
        let cache = caches.join(std::process::id().to_string());
        std::fs::create_dir_all(&cache).expect("the target folder can be written");
        cache
    })
}

/// Returns the software GPU driver that `cargo xtask test` fetches into the user's cache folder. Returns `None` if
/// `SANDBAR_LAVAPIPE` is set: the host inherits it.
pub fn lavapipe() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if std::env::var_os("SANDBAR_LAVAPIPE").is_some() {
        return None;
    }
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("sandbar/lavapipe"))
}
