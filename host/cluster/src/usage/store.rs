//! Files of what jobs used on this node: one for each hour, which is written again while the hour lasts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use sandbar_core::{JobRun, UsageAmounts};
use sandbar_machine::{evict_oldest, write_atomically};
use serde::{Deserialize, Serialize};

/// Milliseconds of an hour, and hours of a day.
pub(super) const HOUR_MS: u64 = 3_600_000;
const DAY_HOURS: u64 = 24;
/// Maximum files, and their maximum bytes. The oldest ones are removed.
const FILES_MAX: usize = 400 * 24;
const FILES_BYTES_MAX: u64 = 256 << 20;
/// Maximum bytes of a file.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Maximum rows of an hour, and of one tenant in it. What further jobs use counts for one row of their tenant.
const ROWS_MAX: usize = 4000;
const TENANT_ROWS_MAX: usize = 1000;
/// Maximum rows that a page has before it ends.
const PAGE_ROWS_MAX: usize = 1000;
/// Maximum bytes of a job's id.
const ID_BYTES_MAX: usize = 128;
/// Mark of a tenant that no longer exists, behind its name: a later tenant of that name does not get its rows.
const REMOVED: &str = " (removed)";

/// What was used, by tenant and job.
pub(super) type UsageByJob = BTreeMap<(String, JobRun), UsageAmounts>;

/// The files, and the rows of the current hour.
#[derive(Debug, Clone)]
pub(super) struct UsageStore {
    folder: PathBuf,
    /// Hours since 1970.
    hour: u64,
    rows: UsageByJob,
    is_written: bool,
}

/// A row of a file.
#[derive(Debug, Serialize, Deserialize)]
struct StoredRow {
    tenant: String,
    job: JobRun,
    amounts: UsageAmounts,
}

impl UsageStore {
    /// Opens the store in a folder.
    pub(super) fn open(folder: PathBuf, now_ms: u64) -> UsageStore {
        let hour = now_ms / HOUR_MS;
        let rows = read(&folder, hour);
        UsageStore { folder, hour, rows, is_written: true }
    }

    /// Adds what a job of a tenant has used.
    pub(super) fn add(&mut self, tenant: &str, mut run: JobRun, amounts: &UsageAmounts) {
        run.id.truncate(run.id.floor_char_boundary(ID_BYTES_MAX));
        let mut key = (tenant.to_owned(), run);
        if !self.rows.contains_key(&key) {
            let of_tenant = self.rows.range((key.0.clone(), JobRun::default())..);
            let of_tenant = of_tenant.take_while(|((other, _), _)| other == tenant).take(TENANT_ROWS_MAX).count();
            if of_tenant >= TENANT_ROWS_MAX || self.rows.len() >= ROWS_MAX {
                key.1 = JobRun::default();
            }
        }
        self.rows.entry(key).or_default().add(amounts);
        self.is_written = false;
    }

    /// Marks the rows of tenants that `exists` does not know.
    pub(super) fn mark_removed(&mut self, exists: impl Fn(&str) -> bool) {
        let is_removed =
            |(tenant, _): &(String, JobRun), _: &mut UsageAmounts| !tenant.ends_with(REMOVED) && !exists(tenant);
        for ((tenant, run), amounts) in self.rows.extract_if(.., is_removed).collect::<Vec<_>>() {
            self.rows.entry((tenant + REMOVED, run)).or_default().add(&amounts);
            self.is_written = false;
        }
    }

    /// Writes what is not written yet, and begins the next hour if it is time.
    ///
    /// # Errors
    /// Fails if the file can't be written. Then the next call tries again.
    pub(super) fn write(&mut self, now_ms: u64) -> io::Result<()> {
        if !self.is_written {
            let row = |((tenant, job), amounts): (&(String, JobRun), &UsageAmounts)| StoredRow {
                tenant: tenant.clone(),
                job: job.clone(),
                amounts: *amounts,
            };
            let rows: Vec<StoredRow> = self.rows.iter().map(row).collect();
            let path = path(&self.folder, self.hour);
            write_atomically(&path, &serde_json::to_vec(&rows).map_err(io::Error::from)?)?;
            self.is_written = true;
        }
        let hour = now_ms / HOUR_MS;
        if hour != self.hour {
            (self.hour, self.rows) = (hour, read(&self.folder, hour));
            evict_oldest(&self.folder, FILES_MAX, FILES_BYTES_MAX, |_| false);
        }
        Ok(())
    }

    /// Returns what was used from an hour on, of one tenant or all, and the hour of the next page.
    pub(super) fn page(&self, since: u64, tenant: Option<&str>) -> (UsageByJob, Option<u64>) {
        let mut page = UsageByJob::new();
        for hour in self.hours().into_iter().filter(|hour| *hour >= since) {
            if page.len() >= PAGE_ROWS_MAX {
                return (page, Some(hour));
            }
            let rows = if hour == self.hour { self.rows.clone() } else { read(&self.folder, hour) };
            for (key, amounts) in rows.into_iter().filter(|((of, _), _)| tenant.is_none_or(|tenant| of == tenant)) {
                page.entry(key).or_default().add(&amounts);
            }
        }
        (page, None)
    }

    /// Returns what each tenant has used on the day (UTC) of the current hour.
    pub(super) fn today(&self) -> BTreeMap<String, UsageAmounts> {
        let mut all = BTreeMap::<String, UsageAmounts>::new();
        let mut since = Some(self.hour - self.hour % DAY_HOURS);
        while let Some(hour) = since {
            let (page, next) = self.page(hour, None);
            for ((tenant, _), amounts) in page {
                all.entry(tenant).or_default().add(&amounts);
            }
            since = next;
        }
        all
    }

    /// Returns the hours that have rows, in order.
    fn hours(&self) -> Vec<u64> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let hour = |name: &str| name.strip_suffix(".json")?.parse::<u64>().ok();
        let mut hours: Vec<u64> = files.filter_map(|file| hour(file.file_name().to_str()?)).collect();
        hours.push(self.hour);
        hours.sort_unstable();
        hours.dedup();
        hours
    }
}

fn path(folder: &Path, hour: u64) -> PathBuf {
    folder.join(format!("{hour}.json"))
}

/// Reads the rows of an hour, none if there is no file. A file that can't be read is left out, and the log says so.
fn read(folder: &Path, hour: u64) -> UsageByJob {
    let path = path(folder, hour);
    let rows = File::open(&path).and_then(|file| {
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice::<Vec<StoredRow>>(&bytes)?)
    });
    let rows = rows.unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            log::warn!("the usage in {} can't be read, and is left out: {error}", path.display());
        }
        Vec::new()
    });
    let mut all = UsageByJob::new();
    for StoredRow { tenant, job, amounts } in rows.into_iter().take(2 * ROWS_MAX) {
        all.entry((tenant, job)).or_default().add(&amounts);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 20_000 * 24 * HOUR_MS + 12 * HOUR_MS;

    fn cpu(cpu_ns: u64) -> UsageAmounts {
        UsageAmounts { cpu_ns, ..UsageAmounts::default() }
    }

    fn cpu_of(rows: &UsageByJob) -> Vec<(&str, &str, u64)> {
        rows.iter().map(|((tenant, job), amounts)| (&tenant[..], &job.id[..], amounts.cpu_ns)).collect()
    }

    #[test]
    fn usage_is_kept_by_hour_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let open = |now| UsageStore::open(folder.path().join("usage"), now);
        let mut store = open(NOON);
        store.add("ada", JobRun::first("a"), &cpu(1));
        store.add("ada", JobRun::first("a"), &cpu(2));
        store.add("bob", JobRun::first("b"), &cpu(4));
        store.write(NOON + 1).unwrap();
        // As after a crash: what was not written is lost, and the hour goes on.
        store.add("ada", JobRun::first("a"), &cpu(100));
        let mut store = open(NOON + 2);
        store.add("ada", JobRun::first("a"), &cpu(8));
        store.write(NOON + HOUR_MS).unwrap();
        store.add("ada", JobRun::first("c"), &cpu(16));
        store.write(NOON + HOUR_MS + 1).unwrap();
        let hour = NOON / HOUR_MS;
        let (all, next) = store.page(0, None);
        assert_eq!((cpu_of(&all), next), (vec![("ada", "a", 11), ("ada", "c", 16), ("bob", "b", 4)], None));
        assert_eq!(cpu_of(&store.page(hour + 1, None).0), [("ada", "c", 16)]);
        assert_eq!(cpu_of(&store.page(0, Some("bob")).0), [("bob", "b", 4)]);
        assert_eq!(store.today()["ada"].cpu_ns, 27);
        // The next day.
        store.write(NOON + 12 * HOUR_MS).unwrap();
        assert!(store.today().is_empty());
        assert_eq!(store.page(hour, None).0.len(), 3);
    }

    #[test]
    fn a_file_that_is_not_whole_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let hour = NOON / HOUR_MS;
        fs::write(path(folder.path(), hour), "[{").unwrap();
        fs::write(
            path(folder.path(), hour - 1),
            r#"[{"tenant":"ada","job":{"id":"a","run":1},"amounts":{"cpu_ns":7}}]"#,
        )
        .unwrap();
        fs::write(folder.path().join("other.json"), "").unwrap();
        let store = UsageStore::open(folder.path().to_owned(), NOON);
        assert_eq!(cpu_of(&store.page(0, None).0), [("ada", "a", 7)]);
    }

    /// A tenant with many jobs takes no rows of others, and what further jobs use is counted.
    #[test]
    fn the_rows_of_an_hour_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = UsageStore::open(folder.path().to_owned(), NOON);
        for tenant in 0..10 {
            for job in 0..TENANT_ROWS_MAX + 10 {
                store.add(&format!("t{tenant}"), JobRun::first(&format!("{job}{}", "x".repeat(500))), &cpu(1));
            }
        }
        assert!(store.rows.len() <= ROWS_MAX + 10, "{}", store.rows.len());
        store.write(NOON).unwrap();
        assert!(fs::metadata(path(folder.path(), NOON / HOUR_MS)).unwrap().len() < FILE_BYTES_MAX);
        assert_eq!(store.today()["t9"].cpu_ns, TENANT_ROWS_MAX as u64 + 10);
        let (first, mut next) = UsageStore::open(folder.path().to_owned(), NOON).page(0, None);
        assert_eq!(first.len(), store.rows.len());
        store.write(NOON + HOUR_MS).unwrap();
        store.add("t0", JobRun::first("late"), &cpu(1));
        next = store.page(0, None).1.or(next);
        assert_eq!(next, Some(NOON / HOUR_MS + 1));
    }

    #[test]
    fn rows_of_a_removed_tenant_are_not_those_of_a_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = UsageStore::open(folder.path().to_owned(), NOON);
        store.add("ada", JobRun::first("a"), &cpu(1));
        store.add("bob", JobRun::first("b"), &cpu(1));
        for _ in 0..2 {
            store.mark_removed(|tenant| tenant == "bob");
        }
        store.add("ada", JobRun::first("a"), &cpu(2));
        let all = store.page(0, None).0;
        assert_eq!(cpu_of(&all), [("ada", "a", 2), ("ada (removed)", "a", 1), ("bob", "b", 1)]);
    }
}
