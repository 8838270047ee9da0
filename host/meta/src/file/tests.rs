//! Foreign files, damaged files, and power cuts.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use redb::{Database, StorageBackend, TableDefinition};
use sandbar_core::Seed;

use super::schema::{self, META, SCHEMA, StoreFile};
use super::{RedbStore, open};
use crate::{
    Entry, Key, KeyRange, ManualClock, MetaError, MetaLimits, MetaStore as _, MetaValue, Operation, Revision,
    Transaction,
};

async fn opened(path: &std::path::Path) -> Result<RedbStore, MetaError> {
    RedbStore::open(path, MetaLimits::default(), Arc::new(ManualClock::default())).await
}

fn put(number: u64) -> Transaction {
    let key = Key::try_from(format!("n{number:06}").as_str()).unwrap();
    Transaction::new().then(Operation::put(key, MetaValue::new(vec![number as u8; 30])))
}

async fn entries(store: &RedbStore) -> Result<Vec<Entry>, MetaError> {
    let (mut span, mut all) = (KeyRange::all(), Vec::new());
    loop {
        let page = store.range(&span, 0).await?;
        all.extend(page.entries);
        let Some(next) = page.next else { return Ok(all) };
        span = span.starting_at(&next);
    }
}

async fn check_refused(path: PathBuf, code: &str) {
    let error = opened(&path).await.err().unwrap_or_else(|| panic!("{code}: it was opened"));
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn files_of_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("text"), "[job]\nname = \"taxi\"\n").unwrap();
    check_refused(path("text"), "meta-not-a-store").await;
    fs::write(path("large"), vec![7; 1 << 20]).unwrap();
    check_refused(path("large"), "meta-not-a-store").await;
    fs::write(path("empty"), "").unwrap();
    check_refused(path("empty"), "meta-not-a-store").await;
    fs::create_dir(path("folder")).unwrap();
    check_refused(path("folder"), "meta-file").await;
    check_refused(path("no/such/folder"), "meta-file").await;

    let other = Database::create(path("other")).unwrap();
    let write = other.begin_write().unwrap();
    write.open_table(TableDefinition::<u64, u64>::new("theirs")).unwrap();
    write.commit().unwrap();
    drop(other);
    check_refused(path("other"), "meta-not-a-store").await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_by_both_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta");
    opened(&path).await.unwrap().close().await;
    let database = Database::open(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(META).unwrap().insert("schema", SCHEMA + 4).unwrap();
    write.commit().unwrap();
    drop(database);
    let error = opened(&path).await.err().unwrap();
    assert_eq!(error, MetaError::NewerSchema { path, found: SCHEMA + 4, known: SCHEMA });
}

#[tokio::test]
async fn one_process_has_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta");
    let first = opened(&path).await.unwrap();
    assert_eq!(opened(&path).await.err().unwrap(), MetaError::InUse { path: path.clone() });
    first.close().await;
    opened(&path).await.unwrap().close().await;
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["meta"], "nothing else is left");
}

#[tokio::test]
async fn requests_to_a_closed_store_fail() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(&folder.path().join("meta")).await.unwrap();
    let mut watcher = store.watch(&KeyRange::all(), Revision(1)).await.unwrap();
    store.close().await;
    assert_eq!(watcher.next().await, Err(MetaError::Closed));
}

/// Any change of a file is detected by name, or leaves the content as it was. The last commit may be lost, as after a
/// power cut during its write, which looks the same.
#[tokio::test]
async fn damage_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta");
    let store = opened(&path).await.unwrap();
    for number in 0..60 {
        store.transact(put(number)).await.unwrap();
    }
    let whole = entries(&store).await.unwrap();
    store.close().await;
    let bytes = fs::read(&path).unwrap();
    let (mut refused, mut unharmed) = (0, 0);
    for number in 0..400 {
        let mut seed = Seed::new(number);
        let mut damaged = bytes.clone();
        let at = seed.below(bytes.len() as u32) as usize;
        match seed.below(4) {
            0 => damaged.truncate(at),
            1 => damaged[at] ^= 1 << seed.below(8),
            2 => damaged[at..].iter_mut().take(4096).for_each(|byte| *byte = 0),
            _ => (0..64).for_each(|_| damaged[seed.below(bytes.len() as u32) as usize] = seed.below(256) as u8),
        }
        fs::write(&path, &damaged).unwrap();
        match opened(&path).await {
            Ok(store) => {
                unharmed += 1;
                let found = entries(&store).await.unwrap();
                assert!(
                    whole.starts_with(&found) && found.len() + 1 >= whole.len(),
                    "seed {number}: {} entries",
                    found.len()
                );
                store.close().await;
            }
            Err(
                MetaError::Damaged { path: named, .. }
                | MetaError::NotAStore { path: named, .. }
                | MetaError::File { path: named, .. },
            ) => {
                refused += 1;
                assert_eq!(named, path, "seed {number}");
            }
            Err(other) => panic!("seed {number}: {other}"),
        }
    }
    assert!(refused > 100 && unharmed > 20, "{refused} refused, {unharmed} unharmed");
}

/// A disk that keeps synced data, and an arbitrary part of later writes at a power cut.
#[derive(Debug, Default)]
struct Disk {
    synced: Vec<u8>,
    written: Vec<u8>,
    /// Ranges written since the last sync.
    since: Vec<(usize, usize)>,
    is_off: bool,
}

#[derive(Debug, Clone, Default)]
struct Power(Arc<Mutex<Disk>>);

impl Power {
    fn disk(&self) -> io::Result<std::sync::MutexGuard<'_, Disk>> {
        let disk = self.0.lock().unwrap();
        if disk.is_off { Err(io::Error::other("there is no power")) } else { Ok(disk) }
    }

    /// Returns the disk's content after a power cut.
    fn cut(&self, seed: &mut Seed) -> Power {
        let mut disk = self.0.lock().unwrap();
        disk.is_off = true;
        let mut left = disk.synced.clone();
        left.resize(disk.written.len().max(left.len()), 0);
        for (start, end) in &disk.since {
            // Each sector was written or not.
            for start in (*start..*end).step_by(512) {
                let end = (start + 512).min(*end);
                if seed.below(2) == 0 && end <= disk.written.len() {
                    left[start..end].copy_from_slice(&disk.written[start..end]);
                }
            }
        }
        Power(Arc::new(Mutex::new(Disk { synced: left.clone(), written: left, since: vec![], is_off: false })))
    }
}

impl StorageBackend for Power {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk()?.written.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.disk()?;
        let from = disk.written.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.disk()?.written.resize(bytes as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk()?;
        disk.synced = disk.written.clone();
        disk.since.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut disk = self.disk()?;
        let start = offset as usize;
        disk.written[start..start + data.len()].copy_from_slice(data);
        disk.since.push((start, start + data.len()));
        Ok(())
    }
}

/// Acknowledged transactions survive a power cut, whatever part of the rest reached the disk.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_a_power_cut() {
    for number in 0..60 {
        let mut seed = Seed::new(number);
        let mut power = Power::default();
        schema::initialise(&Database::builder().create_with_backend(power.clone()).unwrap()).unwrap();
        let answered = Arc::new(Mutex::new(BTreeSet::new()));
        for round in 0..3 {
            let store = Arc::new(on(&power));
            let found: BTreeSet<Vec<u8>> =
                entries(&store).await.unwrap().iter().map(|entry| entry.key.as_bytes().to_vec()).collect();
            let lost: Vec<_> = answered.lock().unwrap().difference(&found).cloned().collect();
            assert!(lost.is_empty(), "seed {number}, round {round}: {} lost", lost.len());
            let clients: Vec<_> = (0..4)
                .map(|client| tokio::spawn(write(store.clone(), client + 10 * round, answered.clone())))
                .collect();
            tokio::time::sleep(std::time::Duration::from_micros(seed.below(4000).into())).await;
            let left = power.cut(&mut seed);
            for client in clients {
                client.await.unwrap();
            }
            power = left;
        }
    }
}

fn on(power: &Power) -> RedbStore {
    let limits = MetaLimits { history_changes_max: 50, ..MetaLimits::default() };
    let file = StoreFile::new(std::path::Path::new("/a/disk"));
    let mut builder = Database::builder();
    builder.set_check_integrity_on_open(true);
    let database = builder.create_with_backend(power.clone()).unwrap();
    let loaded = schema::load(&file, &database, &limits).unwrap();
    RedbStore::over(file, database, loaded, limits, Arc::new(ManualClock::default()))
}

/// Puts until the power is cut.
async fn write(store: Arc<RedbStore>, client: u64, answered: Arc<Mutex<BTreeSet<Vec<u8>>>>) {
    for number in 0.. {
        let transaction = put(client * 1000 + number);
        let Operation::Put { key, .. } = &transaction.then[0] else { unreachable!() };
        let key = key.as_bytes().to_vec();
        match store.transact(transaction).await {
            Ok(_) => _ = answered.lock().unwrap().insert(key),
            Err(MetaError::Unknown { .. } | MetaError::File { .. }) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_file_is_created_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let file = StoreFile::new(&folder.path().join("meta"));
    let (database, _) = open::open(&file, &MetaLimits::default()).unwrap();
    drop(database);
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file.path).unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "no other user can read it");
}
