//! This node's copy of the cluster's jobs, as far as it has read them from the store.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::ComponentId;
use sandbar_meta::{Change, Entry, MetaValue, Revision};
use sandbar_wire::Name;

use super::job::{ClusterJob, JobKey, JobRef, SubmissionKey, parse_key};
use crate::files::FileId;

/// Jobs of all tenants.
#[derive(Debug)]
pub(crate) struct JobIndex {
    jobs: BTreeMap<JobRef, IndexedJob>,
    /// Revision before which all changes are included.
    position: Revision,
}

/// A job and its owner.
#[derive(Debug, Default)]
struct IndexedJob {
    entry: Option<JobEntry>,
    owner: Option<JobOwner>,
}

#[derive(Debug)]
enum JobEntry {
    Unfinished(Box<ClusterJob>, Revision),
    Finished(FinishedJob),
}

/// What is needed to drop a finished job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FinishedJob {
    pub(crate) ended_ms: u64,
    pub(crate) key: Option<SubmissionKey>,
    pub(crate) node: String,
    /// Bytes of its entry in the store.
    pub(crate) bytes: u64,
}

/// Value and revision of an owner key.
#[derive(Debug, Clone)]
pub(crate) struct JobOwner {
    pub(crate) value: MetaValue,
    pub(crate) revision: Revision,
}

/// Effects of some changes.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// Jobs that have changed, or whose owner has.
    pub(crate) jobs: Vec<JobRef>,
    /// Jobs that were deleted, or have lost their owner before they finished.
    pub(crate) released: Vec<JobRef>,
    /// Jobs that have finished, with their nodes.
    pub(crate) finished: Vec<(JobRef, String)>,
}

impl JobIndex {
    /// Creates an index of entries that were read at `revision`.
    pub(crate) fn new(entries: &[Entry], revision: Revision) -> JobIndex {
        let mut index = JobIndex { jobs: BTreeMap::new(), position: revision.next() };
        entries.iter().for_each(|entry| index.insert(entry));
        index
    }

    /// Applies changes, which are all before revision `position` that were not applied yet.
    pub(crate) fn apply(&mut self, changes: Vec<Change>, position: Revision) -> Changed {
        let mut changed = Changed::default();
        let mut without_owner = Vec::new();
        for change in changes {
            let Some(parsed) = parse_key(change.key()) else { continue };
            let (JobKey::Job(job) | JobKey::Owner(job)) = &parsed;
            changed.jobs.push(job.clone());
            match (change, parsed) {
                (Change::Put(entry), JobKey::Job(job)) => {
                    self.insert(&entry);
                    if let Some(JobEntry::Finished(finished)) = self.jobs.get(&job).and_then(|job| job.entry.as_ref()) {
                        changed.finished.push((job, finished.node.clone()));
                    }
                }
                (Change::Put(entry), JobKey::Owner(_)) => self.insert(&entry),
                (Change::Deleted { .. }, JobKey::Owner(job)) => {
                    if let Some(indexed) = self.jobs.get_mut(&job) {
                        indexed.owner = None;
                    }
                    without_owner.push(job);
                }
                (Change::Deleted { .. }, JobKey::Job(job)) => {
                    self.jobs.remove(&job);
                    changed.released.push(job);
                }
            }
        }
        // A job that finished has lost its owner in the same transaction.
        let is_released = |job: &JobRef| self.unfinished_job(job).is_some_and(|(.., owner)| owner.is_none());
        changed.released.extend(without_owner.into_iter().filter(is_released));
        self.position = position;
        changed
    }

    fn insert(&mut self, entry: &Entry) {
        match parse_key(&entry.key) {
            Some(JobKey::Owner(job)) => {
                let owner = JobOwner { value: entry.value.clone(), revision: entry.mod_revision };
                self.jobs.entry(job).or_default().owner = Some(owner);
            }
            Some(JobKey::Job(job)) => {
                // A job of another version is left to the nodes of that version.
                let parsed = serde_json::from_slice::<ClusterJob>(entry.value.as_bytes()).ok();
                let bytes = (entry.key.as_bytes().len() + entry.value.as_bytes().len()) as u64;
                self.jobs.entry(job).or_default().entry = parsed.map(|job| match job.state.is_finished() {
                    false => JobEntry::Unfinished(Box::new(job), entry.mod_revision),
                    true => {
                        let ended_ms = job.ended_ms.unwrap_or_default();
                        JobEntry::Finished(FinishedJob { ended_ms, key: job.key, node: job.node, bytes })
                    }
                });
            }
            None => {}
        }
    }

    /// Returns the revision before which all changes are included.
    pub(crate) fn position(&self) -> Revision {
        self.position
    }

    /// Returns the number of a tenant's unfinished jobs.
    pub(crate) fn count_unfinished(&self, tenant: &Name) -> usize {
        self.of_tenant(tenant).filter(|(_, job)| matches!(job.entry, Some(JobEntry::Unfinished(..)))).count()
    }

    /// Returns the components of a tenant's unfinished jobs.
    pub(crate) fn components_in_use(&self, tenant: &Name) -> BTreeSet<ComponentId> {
        self.unfinished_of(tenant).flat_map(|job| job.work.components()).collect()
    }

    /// Returns the files of a tenant's unfinished jobs.
    pub(crate) fn files_in_use(&self, tenant: &Name) -> BTreeSet<FileId> {
        self.unfinished_of(tenant).flat_map(|job| job.work.files()).map(|file| file.file).collect()
    }

    fn unfinished_of<'a>(&'a self, tenant: &'a Name) -> impl Iterator<Item = &'a ClusterJob> {
        self.of_tenant(tenant).filter_map(|(_, job)| job.unfinished().map(|(job, ..)| job))
    }

    /// Returns all unfinished jobs, the revisions of their entries, and their owners.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = (&ClusterJob, Revision, Option<&JobOwner>)> {
        self.jobs.values().filter_map(IndexedJob::unfinished)
    }

    fn unfinished_job(&self, job: &JobRef) -> Option<(&ClusterJob, Revision, Option<&JobOwner>)> {
        self.jobs.get(job)?.unfinished()
    }

    /// Returns the jobs that have an owner.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (&JobRef, &JobOwner)> {
        self.jobs.iter().filter_map(|(job, indexed)| Some((job, indexed.owner.as_ref()?)))
    }

    /// Returns a tenant's finished jobs beyond a number and a number of bytes: those that ended first.
    pub(crate) fn surplus(&self, tenant: &Name, jobs_max: u32, bytes_max: u64) -> Vec<(JobRef, FinishedJob)> {
        let mut finished: Vec<_> = self
            .of_tenant(tenant)
            .filter_map(|(job, indexed)| match &indexed.entry {
                Some(JobEntry::Finished(finished)) => Some((job, finished)),
                _ => None,
            })
            .collect();
        finished.sort_by(|(a, x), (b, y)| (y.ended_ms, b).cmp(&(x.ended_ms, a)));
        let mut bytes = 0;
        let is_surplus = |(number, (_, job)): &(usize, (&JobRef, &FinishedJob))| {
            bytes += job.bytes;
            *number >= jobs_max as usize || bytes > bytes_max
        };
        let surplus = finished.into_iter().enumerate().filter(is_surplus);
        surplus.map(|(_, (job, finished))| (job.clone(), finished.clone())).collect()
    }

    fn of_tenant<'a>(&'a self, tenant: &'a Name) -> impl Iterator<Item = (&'a JobRef, &'a IndexedJob)> {
        // The lowest name of a job.
        let first = "00000000-000000-000-000000".parse().ok().map(|id| JobRef { tenant: tenant.clone(), id });
        let from = first.into_iter().flat_map(|first| self.jobs.range(first..));
        from.take_while(move |(job, _)| job.tenant == *tenant)
    }
}

impl IndexedJob {
    fn unfinished(&self) -> Option<(&ClusterJob, Revision, Option<&JobOwner>)> {
        match &self.entry {
            Some(JobEntry::Unfinished(job, revision)) => Some((job, *revision, self.owner.as_ref())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbar_jobs::{JobCounts, RunState};
    use sandbar_meta::Key;

    use super::super::job::{JobWork, ProgramWork, job_key, owner_key};
    use super::*;

    fn reference(tenant: &str, number: u32) -> JobRef {
        let id = format!("20260131-235959-123-{number:06x}").parse().unwrap();
        JobRef { tenant: tenant.parse().unwrap(), id }
    }

    fn entry(key: Key, value: Vec<u8>) -> Entry {
        let value = MetaValue::new(value);
        Entry { key, value, create_revision: Revision(1), mod_revision: Revision(2), version: 1, lease: None }
    }

    fn job(tenant: &str, number: u32, ended_ms: Option<u64>) -> Entry {
        let JobRef { tenant, id } = reference(tenant, number);
        let job = ClusterJob {
            id,
            tenant,
            key: None,
            program: String::new(),
            work: JobWork::Program(ProgramWork {
                component: ComponentId::from_digest([0; 32]),
                component_bytes: 0,
                task: String::new(),
                arguments: Vec::new(),
                files: Vec::new(),
            }),
            submitted_ms: 0,
            ended_ms,
            state: if ended_ms.is_some() { RunState::Succeeded } else { RunState::Running },
            runs: 1,
            losses: 0,
            handed_over: false,
            node: "n".to_owned(),
            result: serde_json::Value::Null,
            output: None,
            error: None,
            counts: JobCounts::default(),
        };
        entry(job_key(&job.reference()).unwrap(), serde_json::to_vec(&job).unwrap())
    }

    fn owner(tenant: &str, number: u32) -> Entry {
        entry(owner_key(&reference(tenant, number)).unwrap(), b"n/1".to_vec())
    }

    fn deleted(entry: &Entry) -> Change {
        Change::Deleted { key: entry.key.clone(), revision: Revision(9) }
    }

    #[test]
    fn jobs_are_counted_and_dropped_within_their_tenant() {
        let (ada, ada2, bob) = ("ada".parse().unwrap(), "ada2".parse().unwrap(), "bob".parse().unwrap());
        // The job with the highest name of `ada` ended first.
        let entries = [
            job("ada", 1, Some(30)),
            job("ada", 2, Some(20)),
            job("ada", 3, Some(10)),
            job("ada", 4, None),
            job("ada2", 5, None),
            job("ada2", 6, Some(1)),
        ];
        let index = JobIndex::new(&entries, Revision(7));
        assert_eq!(index.position(), Revision(8));
        assert_eq!([&ada, &ada2, &bob].map(|tenant| index.count_unfinished(tenant)), [1, 1, 0]);
        let bytes = (entries[0].key.as_bytes().len() + entries[0].value.as_bytes().len()) as u64;
        for (tenant, jobs_max, bytes_max, expected) in [
            (&ada, 3, u64::MAX, vec![]),
            (&ada, 2, u64::MAX, vec![3]),
            (&ada, 1, u64::MAX, vec![2, 3]),
            (&ada, 3, 2 * bytes, vec![3]),
            (&ada, 3, 0, vec![1, 2, 3]),
            (&ada2, 0, u64::MAX, vec![6]),
            (&bob, 0, 0, vec![]),
        ] {
            let surplus: Vec<JobRef> =
                index.surplus(tenant, jobs_max, bytes_max).into_iter().map(|(job, _)| job).collect();
            let expected: Vec<JobRef> = expected.iter().map(|number| reference(tenant.as_str(), *number)).collect();
            assert_eq!(surplus, expected, "{tenant} {jobs_max} {bytes_max}");
        }
    }

    #[test]
    fn jobs_without_owner_are_released() {
        let entries = [job("ada", 1, None), owner("ada", 1), job("ada", 2, None), owner("ada", 2)];
        let mut index = JobIndex::new(&entries, Revision(7));
        assert!(index.unfinished().all(|(.., owner)| owner.is_some()) && index.owners().count() == 2);
        // The lease of job 1 ends, job 2 finishes.
        let changes = vec![deleted(&entries[1]), Change::Put(job("ada", 2, Some(5))), deleted(&entries[3])];
        let changed = index.apply(changes, Revision(10));
        assert_eq!(changed.released, [reference("ada", 1)]);
        assert_eq!(changed.finished, [(reference("ada", 2), "n".to_owned())]);
        assert_eq!((index.position(), index.owners().count()), (Revision(10), 0));
        // The tenant is removed.
        let changed = index.apply(vec![deleted(&entries[0]), deleted(&entries[2])], Revision(11));
        assert_eq!(changed.released, [reference("ada", 1), reference("ada", 2)]);
        assert_eq!(index.unfinished().count(), 0);
    }
}
