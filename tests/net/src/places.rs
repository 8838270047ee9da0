//! Where things are: the checkout, the host program, components, the cache.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The checkout that these tests were built from.
pub fn workspace() -> &'static Path {
    Path::new(env!("SANDBAR_MANIFEST")).parent().expect("a file lies in a folder")
}

/// The host program: `SANDBAR_HOST`, or the one in the folder that cargo built
/// this test in.
///
/// # Panics
/// When there is none.
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

/// A program of `examples/` of a room, which cargo builds with the tests.
///
/// # Panics
/// When it is not there.
pub fn example(name: &str) -> PathBuf {
    let path = profile_folder().join("examples").join(name);
    assert!(path.is_file(), "{} is missing: run `cargo xtask test`", path.display());
    path
}

/// `target/release`, or where else cargo put this test.
fn profile_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("a test knows where it is");
    let folder = exe.parent().and_then(Path::parent);
    folder.expect("cargo puts tests into deps/").to_owned()
}

/// The component of a crate of this checkout, built when it is stale, or found
/// in the folder that `SANDBAR_GUESTS` names: `udfs/taxi` is `taxi.wasm` there.
///
/// # Panics
/// When it can't be built, or is not there.
pub fn component(folder: &str) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let built = built.get_or_insert_default();
    built.entry(folder.to_owned()).or_insert_with(|| find_or_build(Path::new(folder))).clone()
}

fn find_or_build(folder: &Path) -> PathBuf {
    if let Some(shelf) = std::env::var_os("SANDBAR_GUESTS") {
        let component = Path::new(&shelf).join(folder.file_name().unwrap_or_default()).with_extension("wasm");
        assert!(component.is_file(), "{} is missing", component.display());
        return component;
    }
    let output = Command::new(host()).arg("build").arg(folder).current_dir(workspace()).output();
    let output = output.expect("the host starts");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} does not build; run `cargo xtask test`:\n{talk}", folder.display());
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

/// The cache of this process. Its folder outlives the process, since no code
/// runs when a test process ends: the next one removes it.
///
/// # Panics
/// When the target folder can't be written.
pub fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let shelf = profile_folder().with_file_name("tmp").join("caches-of-tests");
        for old in std::fs::read_dir(&shelf).into_iter().flatten().flatten() {
            let process = old.file_name().to_str().and_then(|name| name.parse().ok());
            if !process.is_some_and(crate::is_alive) {
                // Another process may be doing the same.
                let _ = std::fs::remove_dir_all(old.path());
            }
        }
        let cache = shelf.join(std::process::id().to_string());
        std::fs::create_dir_all(&cache).expect("the target folder can be written");
        cache
    })
}

/// The software driver for GPUs that `cargo xtask test` fetches into the user's cache folder, unless `SANDBAR_LAVAPIPE` says
/// where another is.
pub fn lavapipe() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if std::env::var_os("SANDBAR_LAVAPIPE").is_some() {
        return None;
    }
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("sandbar/lavapipe"))
}
