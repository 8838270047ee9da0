//! Creating and opening store files.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::{Database, DatabaseError, StorageError};

use super::schema::{self, LoadedState, StoreFile};
use crate::{MetaError, MetaLimits};

/// Opens a file, and creates it if it does not exist. The file stays locked for other processes until it is closed.
pub(super) fn open(file: &StoreFile, limits: &MetaLimits) -> Result<(Database, LoadedState), MetaError> {
    if !file.path.exists() {
        create(&file.path).map_err(|reason| MetaError::File { path: file.path.clone(), reason })?;
    }
    // The library reports most damage, but may panic over some.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = Database::builder();
        builder.set_cache_size(limits.cache_bytes);
        // Reads every page and verifies its checksum, so that damage is found now and not by a later request.
        builder.set_check_integrity_on_open(true);
        let database = builder.open(&file.path).map_err(|e| open_error(file, e))?;
        let loaded = schema::load(file, &database, limits)?;
        Ok((database, loaded))
    }));
    opened.unwrap_or_else(|_| Err(file.damaged("its pages contradict each other")))
}

/// Creates an empty store in a temporary file and renames it, so that the store is complete or absent.
fn create(path: &Path) -> Result<(), String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let context = |doing: &'static str| move |e: io::Error| format!("can't {doing}: {e}");
    let temporary = tempfile::Builder::new().prefix(".sandbar-meta-").tempfile_in(folder);
    let temporary = temporary.map_err(context("create a file in its folder"))?;
    let database = Database::create(temporary.path()).map_err(|e| format!("can't write it: {e}"))?;
    schema::initialise(&database).map_err(|e| format!("can't write it: {e}"))?;
    drop(database);
    match temporary.persist_noclobber(path) {
        Ok(_) => {}
        // Another process created it first.
        Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(e) => return Err(context("move it in place")(e.error)),
    }
    // Makes the file's name durable.
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(context("write its folder"))
}

fn open_error(file: &StoreFile, error: DatabaseError) -> MetaError {
    let not_a_store = |reason: String| MetaError::NotAStore { path: file.path.clone(), reason };
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            MetaError::InUse { path: file.path.clone() }
        }
        DatabaseError::Storage(StorageError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
            not_a_store(format!("redb did not write it: {e}"))
        }
        DatabaseError::Storage(StorageError::Io(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
            file.damaged(format!("it ends early: {e}"))
        }
        DatabaseError::UpgradeRequired(version) => not_a_store(format!("version {version} of redb's format")),
        DatabaseError::RepairAborted => file.damaged("it could not be repaired"),
        other => file.fault("open", other),
    }
}
