//! Finds lavapipe, Mesa's Vulkan driver for the CPU, on which tests run GPU kernels, or fetches it from Debian into the
//! user's cache folder.
//!
//! The folder holds the driver, Khronos' loader and those dependencies that a Debian machine can lack, each library under
//! the name by which it is loaded. A process with `LD_LIBRARY_PATH=FOLDER` and `VK_DRIVER_FILES=FOLDER/lvp_icd.json` uses
//! this driver only.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use super::cache::cache;
use super::debian::{Apt, mirror, only_entry, unpack};
use super::std_build::copy_files;
use super::work_dir::WorkDir;
use crate::run::{Context as _, Result, capture, fail, report, step};

const NAME: &str = "lavapipe";
const DRIVER: &str = "libvulkan_lvp.so";
const LOADER: &str = "libvulkan.so.1";

/// Package of the driver; depends on the loader's.
const PACKAGE: &str = "mesa-vulkan-drivers";

/// File that names the driver's path for the loader.
const MANIFEST: &str = "lvp_icd.json";

/// File with the version of Mesa's package.
const STAMP: &str = "VERSION";
const MAJOR_MIN: u32 = 25;

/// Suites of each release, newest release first, and the suite whose Mesa is recent enough.
const RELEASES: [(&[&str], &str); 2] =
    [(&["trixie"], "trixie"), (&["bookworm", "bookworm-backports"], "bookworm-backports")];

/// Packages that dpkg, apt and bash depend on: every machine has them, and copies of another version would break such
/// programs.
const ON_EVERY_DEBIAN: [&str; 7] = ["libc6", "libgcc-s1", "liblzma5", "libstdc++6", "libtinfo6", "libzstd1", "zlib1g"];

/// Ensures that tests find lavapipe: the folder `SANDBAR_LAVAPIPE`, else the one in the cache folder.
pub fn find_or_fetch() -> Result {
    if env::var_os("SANDBAR_LAVAPIPE").is_some() {
        return Ok(());
    }
    let folder = cache(NAME)?;
    if is_ready(&folder) {
        return Ok(());
    }
    step(&format!("fetch lavapipe (60 MB, unpacked 190 MB) from Debian into {}", folder.display()), || fetch(&folder))
}

fn fetch(folder: &Path) -> Result {
    let work = WorkDir::named(NAME)?;
    let mirror = mirror();
    let mut attempts = vec![format!("searched {mirror}")];
    for (suites, with_mesa) in releases_for(&fs::read_to_string("/etc/os-release").unwrap_or_default()) {
        match from_release(&work, &mirror, suites, with_mesa) {
            Ok(complete) => return install(&complete, folder),
            Err(failure) => attempts.push(format!("{with_mesa}: {failure}")),
        }
    }
    fail(attempts.join("\n"))
}

/// Returns the releases to try, the machine's first: libraries of a newer release need a newer C library, and those of an
/// older one would break the machine's programs.
fn releases_for(os_release: &str) -> [(&'static [&'static str], &'static str); 2] {
    let machine = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let mut releases = RELEASES;
    releases.sort_by_key(|(suites, _)| suites.first().copied() != machine);
    releases
}

fn from_release(work: &WorkDir, mirror: &str, suites: &[&str], with_mesa: &str) -> Result<PathBuf> {
    let apt = Apt::new(work, mirror, suites)?;
    apt.update()?;
    let packages = apt.download_with_dependencies(with_mesa, &[PACKAGE])?;
    let mut version = String::new();
    let unpacked = work.folder(&format!("unpacked-{with_mesa}"))?;
    step(&format!("unpack the {} packages", packages.len()), || {
        for package in &packages {
            let file = package.file_name().unwrap_or_default().to_string_lossy();
            let name = file.split('_').next().unwrap_or_default();
            if name == PACKAGE {
                version = capture(Command::new("dpkg-deb").arg("--field").arg(package).arg("Version"))?;
            }
            if !ON_EVERY_DEBIAN.contains(&name) {
                unpack(package, &unpacked, ".", "./usr/share/doc")?;
            }
        }
        Ok(())
    })?;
    if !is_recent(&version) {
        return fail(format!("its Mesa is {}, {MAJOR_MIN} or newer is needed", version.trim()));
    }
    let complete = work.folder(&format!("{NAME}-{with_mesa}"))?;
    collect(&unpacked, &complete)?;
    fs::write(complete.join(STAMP), version).context(format_args!("write into {}", complete.display()))?;
    Ok(complete)
}

/// Moves the driver, the loader and their dependencies from the unpacked packages into the folder `to`, and checks that
/// they load there.
fn collect(unpacked: &Path, to: &Path) -> Result {
    // The folder is named after the machine's architecture, in `usr/lib` and `lib` alike.
    let libraries = only_entry(&unpacked.join("usr/lib"), "")?;
    let base_libraries = unpacked.join("lib").join(libraries.file_name().unwrap_or_default());
    let search = format!("{}:{}", libraries.display(), base_libraries.display());
    let mut shared_libraries = BTreeMap::new();
    for name in [DRIVER, LOADER] {
        let library = libraries.join(name);
        shared_libraries
            .extend(dependencies(&library, &search)?.into_iter().filter(|(_, path)| path.starts_with(unpacked)));
        shared_libraries.insert(name.to_owned(), library);
    }
    for (name, path) in shared_libraries {
        // Most are links to a file whose name has the full version.
        let moved = path.canonicalize().and_then(|file| fs::rename(file, to.join(&name)));
        moved.context(format_args!("move {} into {}", path.display(), to.display()))?;
    }
    let manifest = only_entry(&unpacked.join("usr/share/vulkan/icd.d"), "lvp_icd")?;
    let text = fs::read_to_string(&manifest).context(format_args!("read {}", manifest.display()))?;
    let Some(text) = with_driver_beside(&text) else {
        return fail(format!("its {} does not name {DRIVER}:\n{text}", manifest.display()));
    };
    fs::write(to.join(MANIFEST), text).context(format_args!("write into {}", to.display()))?;
    for name in [DRIVER, LOADER] {
        dependencies(&to.join(name), &to.display().to_string())?;
    }
    Ok(())
}

/// Returns the libraries, by name, that the dynamic linker loads with this one.
///
/// # Errors
/// A library or a version of its symbols is missing.
fn dependencies(library: &Path, search: &str) -> Result<Vec<(String, PathBuf)>> {
    let listing = capture(Command::new("ldd").arg(library).env("LD_LIBRARY_PATH", search).env("LC_ALL", "C.UTF-8"))?;
    match listing.lines().find(|line| line.contains("not found")) {
        Some(missing) => fail(format!("it does not run on this machine: {}", missing.trim())),
        None => Ok(parse_ldd(&listing)),
    }
}

/// Parses lines like `libm.so.6 => /lib/libm.so.6 (0x7f31)`; entries without a path are the kernel's or the linker.
fn parse_ldd(listing: &str) -> Vec<(String, PathBuf)> {
    let lines = listing.lines().filter_map(|line| line.trim().split_once(" => "));
    lines.filter_map(|(name, rest)| Some((name.to_owned(), rest.rsplit_once(" (")?.0.into()))).collect()
}

/// Returns the manifest with the driver in its folder: a path that contains a slash is relative to the manifest.
fn with_driver_beside(manifest: &str) -> Option<String> {
    let end = manifest.find(&format!("{DRIVER}\""))?;
    let start = manifest[..end].rfind('"')? + 1;
    Some(format!("{}./{}", &manifest[..start], &manifest[end..]))
}

/// Copies the folder to a temporary name and renames it, so that tests that run meanwhile see a complete folder.
fn install(complete: &Path, folder: &Path) -> Result {
    let new = folder.with_extension(process::id().to_string());
    let placed = copy_files(complete, &new).and_then(|()| {
        // Removes an older version.
        let _ = fs::remove_dir_all(folder);
        fs::rename(&new, folder).context(format_args!("create {}", folder.display()))
    });
    let _ = fs::remove_dir_all(&new);
    placed?;
    let files = fs::read_dir(folder).context(format_args!("read {}", folder.display()))?;
    let bytes: u64 = files.flatten().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
    report(format_args!(
        "lavapipe is in {} ({} MB); remove that folder to remove it",
        folder.display(),
        bytes / 1_000_000
    ));
    Ok(())
}

fn is_ready(folder: &Path) -> bool {
    fs::read_to_string(folder.join(STAMP)).is_ok_and(|version| is_recent(&version))
}

fn is_recent(version: &str) -> bool {
    version.split('.').next().and_then(|major| major.parse().ok()).is_some_and(|major: u32| major >= MAJOR_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_release_is_tried_first() {
        for (os_release, expected) in [
            ("ID=debian\nVERSION_CODENAME=bookworm\n", ["bookworm-backports", "trixie"]),
            ("VERSION_CODENAME=trixie\n", ["trixie", "bookworm-backports"]),
            ("VERSION_CODENAME=forky\n", ["trixie", "bookworm-backports"]),
            ("", ["trixie", "bookworm-backports"]),
        ] {
            assert_eq!(releases_for(os_release).map(|(_, with_mesa)| with_mesa), expected, "{os_release}");
        }
    }

    #[test]
    fn only_recent_versions_are_ready() {
        for (version, expected) in [("25.0.7-2~bpo12+1\n", true), ("100.1-1", true), ("22.3.6-1", false), ("", false)] {
            assert_eq!(is_recent(version), expected, "{version}");
        }
        assert!(!is_ready(Path::new("/nonexistent")));
    }

    #[test]
    fn the_linkers_listing_is_parsed() {
        let listing = "\tlinux-vdso.so.1 (0x7f)\n\tlibm.so.6 => /a b/libm.so.6 (0x7f)\n\t/lib64/ld-linux.so.2 (0x7f)\n";
        assert_eq!(parse_ldd(listing), [("libm.so.6".to_owned(), PathBuf::from("/a b/libm.so.6"))]);
        assert!(dependencies(Path::new("/nonexistent"), "").is_err());
        assert!(!dependencies(&env::current_exe().unwrap(), "").unwrap().is_empty());
    }

    #[test]
    fn the_manifest_names_the_driver_in_its_folder() {
        for path in ["", "/usr/lib/x86_64-linux-gnu/"] {
            let manifest = format!("{{\n\"library_path\": \"{path}{DRIVER}\",\n\"api_version\": \"1.4\"}}");
            let expected = format!("{{\n\"library_path\": \"./{DRIVER}\",\n\"api_version\": \"1.4\"}}");
            assert_eq!(with_driver_beside(&manifest), Some(expected));
        }
        assert_eq!(with_driver_beside("{}"), None);
    }

    #[test]
    fn an_installed_folder_replaces_the_old_one() {
        let work = WorkDir::named("lavapipe-install").unwrap();
        let complete = work.folder("complete").unwrap();
        let folder = work.path().join("a/lavapipe");
        for (name, version) in [("old", "24.1"), (STAMP, "25.0")] {
            fs::write(complete.join(name), version).unwrap();
            install(&complete, &folder).unwrap();
            fs::remove_file(complete.join(name)).unwrap();
        }
        assert!(is_ready(&folder));
        for parent in [work.path().join("a"), folder] {
            assert_eq!(fs::read_dir(&parent).unwrap().count(), 1, "{}", parent.display());
        }
    }
}
