//! Folders of the user and of the installation.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sandbar_core::{Code, Fault};

/// Returns the path of `host-worker`, which is installed beside this program.
///
/// # Errors
/// Fails if the file is missing.
pub fn worker() -> Result<PathBuf, Fault> {
    let program =
        std::env::current_exe().map_err(|e| host_fault(format!("can't determine the path of this program: {e}")))?;
    let worker = program.with_file_name("host-worker");
    if worker.is_file() {
        Ok(worker)
    } else {
        Err(host_fault(format!("{} is missing: install `host-worker` beside this program", worker.display())))
    }
}

/// Returns the existing folders of shipped functions: `share/sandbar/udfs` beside the folder of this program, and `udfs` of
/// the checkout that it was built from.
pub fn shipped() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let prefix = program.as_deref().and_then(Path::parent).and_then(Path::parent);
    let installed = prefix.map(|prefix| prefix.join("share/sandbar/udfs"));
    let own = checkout().map(|checkout| checkout.join("udfs"));
    installed.into_iter().chain(own).filter(|folder| folder.is_dir()).collect()
}

/// Returns the checkout that this program was built from, if it exists.
pub fn checkout() -> Option<PathBuf> {
    Path::new(MANIFEST).parent().filter(|folder| folder.is_dir()).map(Path::to_owned)
}

/// `Cargo.toml` of the checkout that this program was built from. `.cargo/config.toml` sets `SANDBAR_MANIFEST` and explains
/// why cargo's own variable does not suffice.
const MANIFEST: &str = match option_env!("SANDBAR_MANIFEST") {
    Some(manifest) => manifest,
    None => concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"),
};

/// Returns the user's cache folder. Native code is loaded from it, so it must not belong to another user.
///
/// # Errors
/// Fails if the folder belongs to another user.
pub fn cache_folder() -> Result<PathBuf, Fault> {
    CACHE.create()
}

/// Like [`cache_folder`], but creates nothing.
///
/// # Errors
/// Fails if the folder belongs to another user.
pub fn find_cache_folder() -> Result<PathBuf, Fault> {
    CACHE.find()
}

/// Returns the user's folder for job records. Another user could read and forge them, so it must not belong to one.
///
/// # Errors
/// Fails if the folder belongs to another user.
pub fn state_folder() -> Result<PathBuf, Fault> {
    STATE.create()
}

/// Like [`state_folder`], but creates nothing.
///
/// # Errors
/// Fails if the folder belongs to another user.
pub fn find_state_folder() -> Result<PathBuf, Fault> {
    STATE.find()
}

const CACHE: UserFolder = UserFolder { variable: "XDG_CACHE_HOME", in_home: ".cache", temporary: "sandbar" };
const STATE: UserFolder =
    UserFolder { variable: "XDG_STATE_HOME", in_home: ".local/state", temporary: "sandbar-state" };

/// A folder of the user: in the folder that `variable` names, else in the home folder, else in the temporary folder.
struct UserFolder {
    variable: &'static str,
    in_home: &'static str,
    temporary: &'static str,
}

impl UserFolder {
    fn find(&self) -> Result<PathBuf, Fault> {
        let folder = self.path();
        refuse_of_others(&folder, geteuid().as_raw(), self.variable)?;
        Ok(folder)
    }

    /// Like [`UserFolder::find`], but creates the folder, which no other user can read or write.
    fn create(&self) -> Result<PathBuf, Fault> {
        // Without a writable cache the host is slower, not wrong.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(self.path());
        self.find()
    }

    fn path(&self) -> PathBuf {
        let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        match from(self.variable).or_else(|| from("HOME").map(|home| home.join(self.in_home))) {
            Some(base) => base.join("sandbar"),
            None => std::env::temp_dir().join(format!("{}-{}", self.temporary, geteuid().as_raw())),
        }
    }
}

/// Permissions with which other users can write a folder.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Refuses a folder, or a link to one, that belongs to a user other than `user` and root, or that others can write.
fn refuse_of_others(folder: &Path, user: u32, variable: &str) -> Result<(), Fault> {
    for found in [fs::symlink_metadata(folder), fs::metadata(folder)].into_iter().flatten() {
        let owner = found.uid();
        if owner != user && owner != 0 {
            return Err(host_fault(format!(
                "the folder {} belongs to another user (id {owner}); set {variable} to a folder of your own",
                folder.display()
            )));
        }
        if found.is_dir() && found.mode() & WRITABLE_BY_OTHERS != 0 {
            let folder = folder.display();
            return Err(host_fault(format!("other users can write the folder {folder}: run `chmod go-w {folder}`")));
        }
    }
    Ok(())
}

fn host_fault(message: String) -> Fault {
    Fault::new(Code::Host, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn caches_that_others_could_have_written_are_refused() {
        let folder = std::env::temp_dir().join(format!("sandbar-test-owner-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&folder).unwrap();
        // Folders of root are accepted: as root, the test changes the owner.
        let _ = std::os::unix::fs::chown(&folder, Some(1234), None);
        let owner = fs::metadata(&folder).unwrap().uid();
        let missing = folder.join("missing");
        for (folder, mode, user, refused) in [
            (&folder, 0o700, owner, None),
            (&folder, 0o755, owner, None),
            (&folder, 0o700, owner + 1, Some("belongs to another user")),
            (&folder, 0o770, owner, Some("run `chmod go-w ")),
            (&folder, 0o702, owner, Some("run `chmod go-w ")),
            (&missing, 0o700, owner, None),
        ] {
            let _ = fs::set_permissions(folder, fs::Permissions::from_mode(mode));
            let checked = refuse_of_others(folder, user, "XDG_CACHE_HOME");
            let name = folder.display();
            match refused {
                None => assert_eq!(checked, Ok(()), "{name}, {mode:o}"),
                Some(reason) => assert!(checked.unwrap_err().message.contains(reason), "{name}, {mode:o} of {user}"),
            }
        }
        fs::remove_dir(&folder).unwrap();
    }
}
