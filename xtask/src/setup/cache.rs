//! The user's cache folder.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::run::{Result, fail};

/// Returns the user's cache folder for the program `name`. Tests search it too, for example those of host/meta for etcd.
pub fn cache(name: &str) -> Result<PathBuf> {
    match cache_folder(|variable| env::var_os(variable)) {
        Some(folder) => Ok(folder.join(name)),
        None => fail("the cache folder is unknown: set XDG_CACHE_HOME or HOME"),
    }
}

fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("sandbar"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_folder_is_found() {
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
}
