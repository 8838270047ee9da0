//! Files of tenants on this node, in a folder for each tenant, within the tenant's quota.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, FileTimes};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use sandbar_store::DiskSpace;
use sandbar_wire::{Frames, Name};
use sha2::{Digest as _, Sha256};

use super::{FileId, StoredFile};
use crate::jobs::remove_folders;
use crate::tenants::TenantSettings;
use crate::uploads::{IncompletePath, UploadError, receive, remove_incomplete};

/// Maximum files of a tenant on a node. The least recently used ones are evicted.
const FILES_MAX: usize = 100_000;
/// Bytes that are hashed at once.
const BUFFER_BYTES: usize = 1 << 20;
/// A file in error messages.
const ITEM: &str = "file";

/// Files of tenants on this node.
#[derive(Debug, Clone)]
pub(crate) struct TenantFiles {
    folder: PathBuf,
    tenants: Arc<Mutex<HashMap<Name, FileTable>>>,
}

/// Files of a tenant.
#[derive(Debug, Default)]
struct FileTable {
    files: HashMap<FileId, TableEntry>,
    /// Bytes of the files.
    bytes: u64,
    /// Bytes for which drafts have room.
    reserved_bytes: u64,
    /// Number of uses, which orders the files by their last one.
    uses: u64,
}

#[derive(Debug)]
struct TableEntry {
    bytes: u64,
    last_use: u64,
    /// Number of [`FileUse`]s.
    holders: usize,
}

/// A file that stays on this node until this is dropped.
#[derive(Debug)]
pub(crate) struct FileUse {
    files: TenantFiles,
    tenant: Name,
    file: FileId,
    path: PathBuf,
}

impl FileUse {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FileUse {
    fn drop(&mut self) {
        if let Some(entry) = self.files.lock().get_mut(&self.tenant).and_then(|table| table.files.get_mut(&self.file)) {
            entry.holders = entry.holders.saturating_sub(1);
        }
    }
}

/// A file that is being written, and room for it. It is removed unless it becomes a file of its tenant.
#[derive(Debug)]
pub(crate) struct FileDraft {
    path: IncompletePath,
    room: Room,
}

/// Room for a file within a tenant's quota.
#[derive(Debug)]
struct Room {
    files: TenantFiles,
    tenant: Name,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(table) = self.files.lock().get_mut(&self.tenant) {
            table.reserved_bytes = table.reserved_bytes.saturating_sub(self.bytes);
        }
    }
}

impl TenantFiles {
    /// Opens the files in a folder of this process, and removes what an earlier process left incomplete.
    pub(crate) fn open(folder: PathBuf) -> TenantFiles {
        remove_incomplete(&folder);
        let tenants = fs::read_dir(&folder).into_iter().flatten().flatten();
        let table = |entry: fs::DirEntry| Some((entry.file_name().to_str()?.parse().ok()?, read_table(&entry.path())));
        let tenants = tenants.filter_map(table).collect();
        TenantFiles { folder, tenants: Arc::new(Mutex::new(tenants)) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, FileTable>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self, tenant: &Name) -> PathBuf {
        self.folder.join(tenant.as_str())
    }

    /// Returns a path in a tenant's folder for the work of a job. Whatever is there is removed when this is dropped.
    ///
    /// # Errors
    /// Fails if the folder can't be created.
    pub(crate) fn scratch(&self, tenant: &Name) -> Result<IncompletePath, UploadError> {
        IncompletePath::new(&self.folder(tenant))
    }

    /// Returns a file of a tenant, which is then its last used one.
    pub(crate) fn get(&self, tenant: &Name, file: FileId) -> Option<FileUse> {
        let path = self.folder(tenant).join(file.to_string());
        let mut tenants = self.lock();
        let table = tenants.get_mut(tenant)?;
        table.uses += 1;
        let uses = table.uses;
        let entry = table.files.get_mut(&file)?;
        let opened = File::open(&path).ok().filter(|opened| opened.metadata().is_ok_and(|m| m.len() == entry.bytes));
        let Some(opened) = opened else {
            // Somebody else removed or changed it.
            let bytes = entry.bytes;
            if entry.holders == 0 {
                table.files.remove(&file);
                table.bytes -= bytes;
                let _ = fs::remove_file(&path);
            }
            return None;
        };
        (entry.last_use, entry.holders) = (uses, entry.holders + 1);
        // Orders the files after a restart. Jobs notice changes of a file by its modification time, which stays.
        let _ = opened.set_times(FileTimes::new().set_accessed(SystemTime::now()));
        Some(FileUse { files: self.clone(), tenant: tenant.clone(), file, path })
    }

    /// Starts a file of a tenant. Evicts the least recently used files that no job needs if there is no room.
    /// `in_use` has the files of the tenant's unfinished jobs.
    ///
    /// # Errors
    /// Fails if the file is too large, the other files are in use, or the disk is full.
    pub(crate) fn draft(
        &self,
        tenant: &Name,
        bytes: u64,
        settings: &TenantSettings,
        in_use: &BTreeSet<FileId>,
    ) -> Result<FileDraft, UploadError> {
        let max = settings.file_bytes_max;
        if bytes > max {
            return Err(UploadError::TooLarge { item: ITEM, bytes, max });
        }
        let room = self.reserve(tenant, bytes, settings.files_bytes_max, in_use)?;
        let draft = FileDraft { path: IncompletePath::new(&self.folder(tenant))?, room };
        let disk = DiskSpace::query(&self.folder(tenant)).map_err(|e| UploadError::File(self.folder(tenant), e))?;
        if disk.free_bytes < bytes.saturating_add(disk.reserve_bytes) {
            return Err(UploadError::DiskFull(bytes));
        }
        Ok(draft)
    }

    fn reserve(&self, tenant: &Name, bytes: u64, max: u64, in_use: &BTreeSet<FileId>) -> Result<Room, UploadError> {
        let mut tenants = self.lock();
        let table = tenants.entry(tenant.clone()).or_default();
        while table.bytes.saturating_add(table.reserved_bytes).saturating_add(bytes) > max
            || table.files.len() >= FILES_MAX
        {
            let unused = table.files.iter().filter(|(file, entry)| entry.holders == 0 && !in_use.contains(file));
            let Some(file) = unused.min_by_key(|(_, entry)| entry.last_use).map(|(file, _)| *file) else {
                let in_use = table.bytes.saturating_add(table.reserved_bytes);
                return Err(UploadError::Quota { in_use, bytes, max });
            };
            let path = self.folder(tenant).join(file.to_string());
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(UploadError::File(path, e)),
                _ => table.bytes -= table.files.remove(&file).map_or(0, |entry| entry.bytes),
            }
        }
        table.reserved_bytes = table.reserved_bytes.saturating_add(bytes);
        Ok(Room { files: self.clone(), tenant: tenant.clone(), bytes })
    }

    /// Receives a file of a tenant, like [`TenantFiles::draft`]. Whatever happens, nothing else than a whole file stays
    /// on disk.
    ///
    /// # Errors
    /// Fails if there is no room, or something else arrives.
    pub(crate) async fn receive(
        &self,
        tenant: &Name,
        StoredFile { file, bytes }: StoredFile,
        settings: &TenantSettings,
        in_use: &BTreeSet<FileId>,
        frames: &mut Frames,
    ) -> Result<FileUse, UploadError> {
        let draft = self.draft(tenant, bytes, settings, in_use)?;
        let opened = draft.path.create_file()?;
        let hash = receive(ITEM, opened, draft.path.path(), bytes, frames).await?;
        if FileId::from_hash(hash) != file {
            return Err(UploadError::Other(ITEM));
        }
        draft.publish(file)
    }

    /// Makes a file on the same disk a file of a tenant. Blocks on the disk.
    ///
    /// # Errors
    /// Fails if there is no room, or the file can't be read or moved.
    pub(crate) fn adopt(
        &self,
        tenant: &Name,
        path: &Path,
        settings: &TenantSettings,
        in_use: &BTreeSet<FileId>,
    ) -> Result<(StoredFile, FileUse), UploadError> {
        let fail = |e: io::Error| UploadError::File(path.to_owned(), e);
        let bytes = fs::metadata(path).map_err(fail)?.len();
        let draft = self.draft(tenant, bytes, settings, in_use)?;
        let file = FileId::from_hash(hash_of(path).map_err(fail)?);
        fs::rename(path, draft.path.path()).map_err(fail)?;
        Ok((StoredFile { file, bytes }, draft.publish(file)?))
    }

    /// Removes the files of tenants that `exists` does not know. Returns whether there were any.
    pub(crate) fn remove_others(&self, exists: impl Fn(&Name) -> bool) -> bool {
        self.lock().retain(|tenant, _| exists(tenant));
        remove_folders(&self.folder, exists)
    }
}

impl FileDraft {
    /// Makes a complete draft a file of its tenant.
    fn publish(self, file: FileId) -> Result<FileUse, UploadError> {
        let FileDraft { path: draft, room } = self;
        let (files, tenant) = (room.files.clone(), room.tenant.clone());
        let path = files.folder(&tenant).join(file.to_string());
        let mut tenants = files.lock();
        let table = tenants.entry(tenant.clone()).or_default();
        table.uses += 1;
        match table.files.get_mut(&file) {
            // It has arrived twice at the same time: the first one stays, which a job may read.
            Some(entry) => (entry.last_use, entry.holders) = (table.uses, entry.holders + 1),
            None => {
                draft.complete(&path)?;
                let entry = TableEntry { bytes: room.bytes, last_use: table.uses, holders: 1 };
                table.bytes = table.bytes.saturating_add(room.bytes);
                table.files.insert(file, entry);
            }
        }
        drop(tenants);
        Ok(FileUse { files, tenant, file, path })
    }
}

/// Hashes a file.
///
/// # Errors
/// Fails if it can't be read.
fn hash_of(path: &Path) -> io::Result<Sha256> {
    let mut file = File::open(path)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; BUFFER_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// Reads the files that a tenant's folder has, in the order of their last uses.
fn read_table(folder: &Path) -> FileTable {
    let mut found: Vec<(SystemTime, FileId, u64)> = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let id = entry.file_name().to_str().and_then(|name| name.parse::<FileId>().ok());
        if let (Some(id), Ok(metadata)) = (id, entry.metadata()) {
            let used = metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((used, id, metadata.len()));
        }
    }
    found.sort();
    let mut table = FileTable::default();
    for (last_use, (_, file, bytes)) in found.into_iter().enumerate() {
        table.files.insert(file, TableEntry { bytes, last_use: last_use as u64, holders: 0 });
        table.bytes = table.bytes.saturating_add(bytes);
        table.uses = last_use as u64;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(files: &TenantFiles, tenant: &Name, content: &[u8], max: u64) -> Result<FileUse, UploadError> {
        let scratch = files.scratch(tenant).unwrap();
        fs::write(scratch.path(), content).unwrap();
        let settings =
            TenantSettings { files_bytes_max: max, file_bytes_max: max.min(60), ..TenantSettings::default() };
        files.adopt(tenant, scratch.path(), &settings, &BTreeSet::new()).map(|(_, file)| file)
    }

    fn on_disk(folder: &Path) -> usize {
        fs::read_dir(folder).map_or(0, |entries| entries.count())
    }

    #[test]
    fn files_stay_within_the_quota_of_their_tenant() {
        let folder = tempfile::tempdir().unwrap();
        let files = TenantFiles::open(folder.path().to_owned());
        let [ada, bob]: [Name; 2] = ["ada", "bob"].map(|name| name.parse().unwrap());
        let content = |number: u8, bytes: usize| vec![number; bytes];
        let [first, second] = [1, 2].map(|number| store(&files, &ada, &content(number, 40), 100).unwrap());
        let (first_id, second_id) = (first.file, second.file);
        // A hash is no right to another tenant's file.
        assert!(files.get(&bob, first_id).is_none());
        // Both are in use.
        let full = store(&files, &ada, &content(3, 40), 100);
        assert!(matches!(full, Err(UploadError::Quota { in_use: 80, bytes: 40, max: 100 })), "{full:?}");
        let large = store(&files, &ada, &content(3, 61), 100);
        assert!(matches!(large, Err(UploadError::TooLarge { bytes: 61, max: 60, .. })), "{large:?}");
        assert_eq!(on_disk(&folder.path().join("ada")), 2);
        // Other tenants have their own quota.
        store(&files, &bob, &content(1, 60), 60).unwrap();
        drop((first, second));
        // The least recently used one is evicted.
        drop(files.get(&ada, first_id).unwrap());
        let third = store(&files, &ada, &content(3, 20), 100).unwrap().file;
        assert!(files.get(&ada, second_id).is_some(), "there was room");
        let fourth = store(&files, &ada, &content(4, 30), 100).unwrap().file;
        let has = |files: &TenantFiles, file| files.get(&ada, file).is_some();
        assert_eq!([first_id, second_id, third, fourth].map(|file| has(&files, file)), [false, true, true, true]);
        // The same content is stored once.
        store(&files, &ada, &content(4, 30), 1000).unwrap();
        assert_eq!(on_disk(&folder.path().join("ada")), 3);
        // A restarted node has the same files.
        let files = TenantFiles::open(folder.path().to_owned());
        assert_eq!([first_id, second_id, third, fourth].map(|file| has(&files, file)), [false, true, true, true]);
        assert!(files.remove_others(|name| *name == bob));
        assert_eq!((on_disk(&folder.path().join("ada")), has(&files, third)), (0, false));
        // A damaged file is none.
        let kept = store(&files, &bob, &content(1, 60), 60).unwrap();
        fs::write(kept.path(), "other").unwrap();
        let id = kept.file;
        drop(kept);
        assert!(files.get(&bob, id).is_none() && on_disk(&folder.path().join("bob")) == 0);
    }

    #[test]
    fn what_is_incomplete_is_removed_and_has_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let files = TenantFiles::open(folder.path().to_owned());
        let ada: Name = "ada".parse().unwrap();
        let settings = TenantSettings { files_bytes_max: 100, file_bytes_max: 100, ..TenantSettings::default() };
        let draft = || files.draft(&ada, 80, &settings, &BTreeSet::new());
        let first = draft().unwrap();
        drop(first.path.create_file().unwrap());
        assert!(matches!(draft(), Err(UploadError::Quota { in_use: 80, .. })));
        assert_eq!(on_disk(&folder.path().join("ada")), 1);
        drop(first);
        assert_eq!(on_disk(&folder.path().join("ada")), 0);
        let second = draft().unwrap();
        drop(second.path.create_file().unwrap());
        // A job's folder. The process is killed.
        let scratch = files.scratch(&ada).unwrap();
        fs::create_dir(scratch.path()).unwrap();
        fs::write(scratch.path().join("models.parquet"), "x").unwrap();
        std::mem::forget((second, scratch));
        TenantFiles::open(folder.path().to_owned());
        assert_eq!(on_disk(&folder.path().join("ada")), 0);
    }
}
