//! lavapipe, Mesa's Vulkan driver for the CPU, on which tests run GPU kernels: found, or fetched from Debian into the
//! user's cache folder.
//!
//! The folder holds the driver, Khronos' loader, and what these need that some Debian may lack, each library under the
//! name by which it is asked for. A process with `LD_LIBRARY_PATH=FOLDER` and `VK_DRIVER_FILES=FOLDER/lvp_icd.json` has
//! this driver and no other.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use super::cache;
use super::debian::{Apt, mirror, only_entry, unpack};
use super::std_build::copy_files;
use super::work_dir::WorkDir;
use crate::run::{Context as _, Result, capture, fail, say, step};

const NAME: &str = "lavapipe";
const DRIVER: &str = "libvulkan_lvp.so";
const LOADER: &str = "libvulkan.so.1";

/// The driver's. It depends on the loader's.
const PACKAGE: &str = "mesa-vulkan-drivers";

/// Tells the loader where the driver is.
const MANIFEST: &str = "lvp_icd.json";

/// Holds the version of Mesa's package.
const STAMP: &str = "VERSION";
const MAJOR_MIN: u32 = 25;

/// A release's suites and, last, the one that has a Mesa that will do. Newest first.
const RELEASES: [(&[&str], &str); 2] =
    [(&["trixie"], "trixie"), (&["bookworm", "bookworm-backports"], "bookworm-backports")];

/// dpkg, apt and bash run on these, so they are there, and copies of another age would be in the way of such programs.
const ON_EVERY_DEBIAN: [&str; 7] = ["libc6", "libgcc-s1", "liblzma5", "libstdc++6", "libtinfo6", "libzstd1", "zlib1g"];

/// Sees to it that tests find a lavapipe: `SANDBAR_LAVAPIPE`, a folder, else the one in the cache folder.
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
    let mut tried = vec![format!("looked in {mirror}")];
    for (suites, with_mesa) in releases_for(&fs::read_to_string("/etc/os-release").unwrap_or_default()) {
        match from_release(&work, &mirror, suites, with_mesa) {
            Ok(made) => return put(&made, folder),
            Err(failure) => tried.push(format!("{with_mesa}: {failure}")),
        }
    }
    fail(tried.join("\n"))
}

/// The machine's own first: a newer one's libraries need a newer C library, and an older one's would be in the way of the
/// machine's programs.
fn releases_for(os_release: &str) -> [(&'static [&'static str], &'static str); 2] {
    let own = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let mut releases = RELEASES;
    releases.sort_by_key(|(suites, _)| suites.first().copied() != own);
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
        return fail(format!("its Mesa is {}, and what is needed is {MAJOR_MIN} or newer", version.trim()));
    }
    let made = work.folder(&format!("{NAME}-{with_mesa}"))?;
    collect(&unpacked, &made)?;
    fs::write(made.join(STAMP), version).context(format_args!("write into {}", made.display()))?;
    Ok(made)
}

/// Moves the driver, the loader and all that they need of what was unpacked into the folder `made`, where they work.
fn collect(unpacked: &Path, made: &Path) -> Result {
    // Named after the machine's architecture, and the same in both places where a package may put a library.
    let libraries = only_entry(&unpacked.join("usr/lib"), "")?;
    let others = unpacked.join("lib").join(libraries.file_name().unwrap_or_default());
    let search = format!("{}:{}", libraries.display(), others.display());
    let mut wanted = BTreeMap::new();
    for name in [DRIVER, LOADER] {
        let library = libraries.join(name);
        wanted.extend(needed(&library, &search)?.into_iter().filter(|(_, path)| path.starts_with(unpacked)));
        wanted.insert(name.to_owned(), library);
    }
    for (name, path) in wanted {
        // Most are links to a file whose name has the whole version.
        let moved = path.canonicalize().and_then(|file| fs::rename(file, made.join(&name)));
        moved.context(format_args!("move {} into {}", path.display(), made.display()))?;
    }
    let manifest = only_entry(&unpacked.join("usr/share/vulkan/icd.d"), "lvp_icd")?;
    let text = fs::read_to_string(&manifest).context(format_args!("read {}", manifest.display()))?;
    let Some(text) = beside(&text) else {
        return fail(format!("its {} does not name {DRIVER}:\n{text}", manifest.display()));
    };
    fs::write(made.join(MANIFEST), text).context(format_args!("write into {}", made.display()))?;
    for name in [DRIVER, LOADER] {
        needed(&made.join(name), &made.display().to_string())?;
    }
    Ok(())
}

/// The libraries that the dynamic linker loads with this one, by name; fails when one, or a version of its symbols, is
/// not there.
fn needed(library: &Path, search: &str) -> Result<Vec<(String, PathBuf)>> {
    let listed = capture(Command::new("ldd").arg(library).env("LD_LIBRARY_PATH", search).env("LC_ALL", "C.UTF-8"))?;
    match listed.lines().find(|line| line.contains("not found")) {
        Some(missing) => fail(format!("it does not run on this machine: {}", missing.trim())),
        None => Ok(paths(&listed)),
    }
}

/// Lines like `libm.so.6 => /lib/libm.so.6 (0x7f31)`; what has no path is the kernel's, or the linker itself.
fn paths(listed: &str) -> Vec<(String, PathBuf)> {
    let lines = listed.lines().filter_map(|line| line.trim().split_once(" => "));
    lines.filter_map(|(name, rest)| Some((name.to_owned(), rest.rsplit_once(" (")?.0.into()))).collect()
}

/// The manifest with the driver beside it: a path with a slash in it is relative to the manifest.
fn beside(manifest: &str) -> Option<String> {
    let end = manifest.find(&format!("{DRIVER}\""))?;
    let start = manifest[..end].rfind('"')? + 1;
    Some(format!("{}./{}", &manifest[..start], &manifest[end..]))
}

/// Moved in place when it is whole: tests may be running, of this checkout or another.
fn put(made: &Path, folder: &Path) -> Result {
    let new = folder.with_extension(process::id().to_string());
    let placed = copy_files(made, &new).and_then(|()| {
        // One of an older version, if any.
        let _ = fs::remove_dir_all(folder);
        fs::rename(&new, folder).context(format_args!("make {}", folder.display()))
    });
    let _ = fs::remove_dir_all(&new);
    placed?;
    let files = fs::read_dir(folder).context(format_args!("read {}", folder.display()))?;
    let bytes: u64 = files.flatten().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
    say(format_args!(
        "lavapipe is in {} ({} MB); removing that folder removes it",
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
    fn the_machines_own_release_is_looked_at_first() {
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
    fn what_has_no_recent_version_is_not_there() {
        for (version, expected) in [("25.0.7-2~bpo12+1\n", true), ("100.1-1", true), ("22.3.6-1", false), ("", false)] {
            assert_eq!(is_recent(version), expected, "{version}");
        }
        assert!(!is_ready(Path::new("/nonexistent")));
    }

    #[test]
    fn what_the_linker_loads_is_read() {
        let listed = "\tlinux-vdso.so.1 (0x7f)\n\tlibm.so.6 => /a b/libm.so.6 (0x7f)\n\t/lib64/ld-linux.so.2 (0x7f)\n";
        assert_eq!(paths(listed), [("libm.so.6".to_owned(), PathBuf::from("/a b/libm.so.6"))]);
        assert!(needed(Path::new("/nonexistent"), "").is_err());
        assert!(!needed(&env::current_exe().unwrap(), "").unwrap().is_empty());
    }

    #[test]
    fn the_driver_is_named_beside_its_manifest() {
        for path in ["", "/usr/lib/x86_64-linux-gnu/"] {
            let manifest = format!("{{\n\"library_path\": \"{path}{DRIVER}\",\n\"api_version\": \"1.4\"}}");
            let expected = format!("{{\n\"library_path\": \"./{DRIVER}\",\n\"api_version\": \"1.4\"}}");
            assert_eq!(beside(&manifest), Some(expected));
        }
        assert_eq!(beside("{}"), None);
    }

    #[test]
    fn it_is_moved_in_place() {
        let work = WorkDir::named("lavapipe-put").unwrap();
        let made = work.folder("made").unwrap();
        let folder = work.path().join("a/lavapipe");
        for (name, version) in [("old", "24.1"), (STAMP, "25.0")] {
            fs::write(made.join(name), version).unwrap();
            put(&made, &folder).unwrap();
            fs::remove_file(made.join(name)).unwrap();
        }
        assert!(is_ready(&folder));
        for parent in [work.path().join("a"), folder] {
            assert_eq!(fs::read_dir(&parent).unwrap().count(), 1, "{}", parent.display());
        }
    }
}
