//! The log of a running node, to which it appends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sandbar_jobs::now_ms;

use super::check::{audit_files, file_name, last_line};
use super::record::{AuditActor, AuditEntry, AuditRecord, LineHash, RecordPlace};
use super::suppression::Suppression;

/// Bytes of a file after which the next one begins.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of files. The oldest ones are removed: copy them elsewhere before.
const FILES_MAX: usize = 64;

/// The audit log of this node.
#[derive(Debug, Clone)]
pub(crate) struct AuditLog(Arc<Mutex<Writer>>);

#[derive(Debug)]
struct Writer {
    folder: PathBuf,
    node: String,
    file: File,
    /// Bytes of the file.
    bytes: u64,
    /// Number and hash of the last record.
    number: u64,
    previous: LineHash,
    suppression: Suppression,
    /// Why the last record could not be written.
    failure: Option<String>,
}

impl AuditLog {
    /// Opens the log in a folder, and creates it if there is none.
    pub(crate) fn open(folder: &Path, node: &str) -> io::Result<AuditLog> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let (mut number, mut previous) = (0, LineHash::default());
        let mut files = audit_files(folder)?;
        // A node that was killed may have left its newest file empty.
        for path in files.iter().rev() {
            if let Some(line) = last_line(path)? {
                let record: AuditRecord = serde_json::from_slice(&line).map_err(io::Error::from)?;
                (number, previous) = (record.number, LineHash::of(&line));
                break;
            }
        }
        let path = files.pop().unwrap_or_else(|| folder.join(file_name(1)));
        let file = append_to(&path)?;
        let bytes = file.metadata()?.len();
        let (folder, node) = (folder.to_owned(), node.to_owned());
        let (suppression, failure) = (Suppression::default(), None);
        let writer = Writer { folder, node, file, bytes, number, previous, suppression, failure };
        Ok(AuditLog(Arc::new(Mutex::new(writer))))
    }

    /// Appends an entry. It is on disk when this returns; if that fails, the node's log says so, and [`AuditLog::check`] fails.
    pub(crate) async fn append(&self, entry: AuditEntry) {
        let log = self.clone();
        // A slow disk must not block other requests.
        let _ = tokio::task::spawn_blocking(move || log.append_now(entry)).await;
    }

    fn append_now(&self, entry: AuditEntry) {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let suppressed = match &entry.refusal {
            Some(_) => {
                let tenant = entry.by.tenant().map(ToString::to_string).unwrap_or_default();
                let Some(suppressed) = writer.suppression.record_refusal(&tenant, now_ms()) else { return };
                suppressed
            }
            None => 0,
        };
        writer.failure = writer.write(entry, suppressed).err().map(|error| {
            log::error!("the audit log in {} can't be written: {error}", writer.folder.display());
            error.to_string()
        });
    }

    /// Checks that the log can be written, so that nothing happens without a record.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn check(&self) -> Result<(), String> {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).failure.is_none() {
            return Ok(());
        }
        let subject = "audit log".to_owned();
        self.append(AuditEntry { by: AuditActor::Node, action: "resume", subject, refusal: None }).await;
        match &self.0.lock().unwrap_or_else(PoisonError::into_inner).failure {
            None => Ok(()),
            Some(failure) => Err(format!("the audit log can't be written: {failure}")),
        }
    }
}

impl Writer {
    fn write(&mut self, entry: AuditEntry, suppressed: u64) -> io::Result<()> {
        if self.bytes >= FILE_BYTES_MAX {
            self.begin_file()?;
        }
        let place = RecordPlace { number: self.number + 1, ms: now_ms(), node: &self.node, previous: self.previous };
        let mut line = serde_json::to_vec(&entry.record(place, suppressed)).map_err(io::Error::from)?;
        let hash = LineHash::of(&line);
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // A part of a line must not stay.
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        (self.number, self.previous) = (self.number + 1, hash);
        self.bytes += line.len() as u64;
        Ok(())
    }

    fn begin_file(&mut self) -> io::Result<()> {
        self.file = append_to(&self.folder.join(file_name(self.number + 1)))?;
        self.bytes = self.file.metadata()?.len();
        let files = audit_files(&self.folder)?;
        files.iter().take(files.len().saturating_sub(FILES_MAX)).try_for_each(fs::remove_file)
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::super::check::{read_audit, verify_audit};
    use super::*;

    fn entry(subject: &str, refusal: Option<&str>) -> AuditEntry {
        let refusal = refusal.map(|code| (code.to_owned(), "why".to_owned()));
        AuditEntry { by: AuditActor::Operator, action: "add-tenant", subject: subject.to_owned(), refusal }
    }

    #[test]
    fn a_log_goes_on_where_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..3u64 {
            let log = AuditLog::open(folder.path(), "node-1").unwrap();
            (0..5).for_each(|number| log.append_now(entry(&format!("{round}-{number}"), None)));
            assert_eq!(verify_audit(folder.path(), None).unwrap().last_number, 5 * (round + 1));
        }
        let last: Vec<String> =
            read_audit(folder.path(), 2).unwrap().into_iter().map(|record| record.subject).collect();
        assert_eq!(last, ["2-3", "2-4"]);
    }

    /// Whatever is changed in the files is found.
    #[test]
    fn changes_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::open(folder.path(), "node-1").unwrap();
        (0..9).for_each(|number| log.append_now(entry(&number.to_string(), Some("role").filter(|_| number % 3 == 0))));
        let head = verify_audit(folder.path(), None).unwrap().head;
        let path = folder.path().join(file_name(1));
        let whole = fs::read(&path).unwrap();
        let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        for changed in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[changed] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let found = verify_audit(folder.path(), Some(&head));
            assert!(found.is_err(), "byte {changed}: {found:?}");
        }
        for removed in 0..lines.len() {
            let left: Vec<u8> = lines
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != removed)
                .flat_map(|(_, line)| line.iter().copied())
                .collect();
            fs::write(&path, &left).unwrap();
            assert!(verify_audit(folder.path(), Some(&head)).is_err(), "line {removed}");
        }
        fs::write(&path, &whole[..whole.len() - 7]).unwrap();
        assert!(verify_audit(folder.path(), None).is_err(), "a part of a line");
        fs::write(&path, &whole).unwrap();
        assert_eq!(verify_audit(folder.path(), Some(&head)).unwrap().records, 9);
    }

    #[test]
    fn a_log_that_can_not_be_written_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::open(folder.path(), "node-1").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = std::mem::replace(&mut log.0.lock().unwrap().file, full);
        log.append_now(entry("lost", None));
        assert!(runtime.block_on(log.check()).unwrap_err().contains("can't be written"));
        log.0.lock().unwrap().file = file;
        assert_eq!(runtime.block_on(log.check()), Ok(()));
        assert_eq!(verify_audit(folder.path(), None).unwrap().records, 1);
    }
}
