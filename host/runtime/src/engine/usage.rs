//! Accounts of what jobs use on this node, and what tenants have used since their budgets were last renewed.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use sandbar_core::{JobId, JobRun, TenantId, UsageAmounts};
use sandbar_jobs::AttemptRecord;
use sandbar_sched::DailyAmounts;
use sandbar_worker::CallUsage;

/// Maximum accounts of ended jobs that nobody has asked for. What further jobs used counts for one account of their tenant.
const ENDED_MAX: usize = 10_000;

/// What a run of a job has used on this node since it was last asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobUsage {
    /// The tenant of the job.
    pub tenant: TenantId,
    /// The job. It has no id if there were too many.
    pub run: JobRun,
    /// What it used.
    pub amounts: UsageAmounts,
}

/// Accounts of jobs.
#[derive(Debug, Default)]
pub(super) struct Usage {
    accounts: FxHashMap<JobId, Account>,
    /// Counters of the calls of jobs that are not programs.
    calls: BTreeMap<JobId, CallUsage>,
    /// Accounts with something that is not charged yet.
    changed: Vec<JobId>,
    /// Of jobs that have ended.
    ended: BTreeMap<(TenantId, JobRun), UsageAmounts>,
}

#[derive(Debug)]
struct Account {
    tenant: TenantId,
    run: JobRun,
    /// What was charged to the tenant, and what is to be charged.
    charged: UsageAmounts,
    uncharged: UsageAmounts,
    is_changed: bool,
    /// When the time of the job was last booked, in nanoseconds, if it runs and this node counts its time.
    timed_since: Option<u64>,
    has_ended: bool,
}

/// An attempt that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttemptOutcome {
    Succeeded,
    Failed,
}

impl Usage {
    /// Opens the account of a job. Its time counts from `timed_since`, unless it is a job of another node.
    pub(super) fn open(&mut self, job: JobId, tenant: TenantId, run: JobRun, timed_since: Option<u64>) {
        let account = Account {
            tenant,
            run,
            charged: UsageAmounts::default(),
            uncharged: UsageAmounts::default(),
            is_changed: false,
            timed_since,
            has_ended: false,
        };
        self.accounts.insert(job, account);
    }

    /// Counts the calls of a job, too.
    pub(super) fn count_calls(&mut self, job: JobId, calls: CallUsage) {
        self.calls.insert(job, calls);
    }

    /// Books what a job has used. The account of a job that has ended is open while something of the job is still in a
    /// worker.
    pub(super) fn book(&mut self, job: JobId, change: impl FnOnce(&mut UsageAmounts)) {
        let Some(account) = self.accounts.get_mut(&job) else { return };
        change(&mut account.uncharged);
        if !account.is_changed {
            account.is_changed = true;
            self.changed.push(job);
        }
    }

    /// Books an attempt that has ended in a worker of this node.
    pub(super) fn book_attempt(&mut self, job: JobId, attempt: &AttemptRecord, outcome: AttemptOutcome) {
        self.book(job, |amounts| {
            match outcome {
                AttemptOutcome::Succeeded => amounts.attempts_succeeded += 1,
                AttemptOutcome::Failed => amounts.attempts_failed += 1,
            }
            amounts.cpu_ns = amounts.cpu_ns.saturating_add(attempt.compute_ns);
            amounts.gpu_ns = amounts.gpu_ns.saturating_add(attempt.gpu_ns);
            amounts.memory_bytes_max = amounts.memory_bytes_max.max(attempt.memory_bytes);
        });
    }

    /// A job has ended at this time, in nanoseconds.
    pub(super) fn end(&mut self, job: JobId, now: u64) {
        if let Some(account) = self.accounts.get_mut(&job) {
            account.book_time(now);
            account.timed_since = None;
            account.has_ended = true;
        }
    }

    /// Returns what tenants have used since the last call.
    pub(super) fn take_charges(&mut self) -> BTreeMap<TenantId, DailyAmounts> {
        let called: Vec<_> = self.calls.iter().map(|(job, calls)| (*job, calls.take())).collect();
        for (job, used) in called.into_iter().filter(|(_, used)| !used.is_zero()) {
            self.book(job, |amounts| amounts.add(&used));
        }
        let mut charges = BTreeMap::<TenantId, DailyAmounts>::new();
        for job in std::mem::take(&mut self.changed) {
            let Some(account) = self.accounts.get_mut(&job) else { continue };
            account.is_changed = false;
            let used = std::mem::take(&mut account.uncharged);
            account.charged.add(&used);
            charges.entry(account.tenant).or_default().add(&daily_amounts(&used));
        }
        charges
    }

    /// Returns what was used since the last call. `is_in_worker` returns whether something of a job is still in a worker.
    pub(super) fn take(&mut self, now: u64, is_in_worker: impl Fn(JobId) -> bool) -> Vec<JobUsage> {
        self.fold_ended(is_in_worker);
        let mut all: BTreeMap<(TenantId, JobRun), UsageAmounts> = std::mem::take(&mut self.ended);
        for account in self.accounts.values_mut() {
            account.book_time(now);
            let amounts = std::mem::take(&mut account.charged);
            if !amounts.is_zero() {
                all.entry((account.tenant, account.run.clone())).or_default().add(&amounts);
            }
        }
        let usage = |((tenant, run), amounts)| JobUsage { tenant, run, amounts };
        all.into_iter().map(usage).collect()
    }

    /// Closes the accounts of jobs that have ended, of which nothing is left.
    pub(super) fn fold_ended(&mut self, is_in_worker: impl Fn(JobId) -> bool) {
        let calls = &self.calls;
        let is_closed = |job: &JobId, account: &mut Account| {
            let has_calls = calls.get(job).is_some_and(CallUsage::is_shared);
            account.has_ended && !account.is_changed && !has_calls && !is_in_worker(*job)
        };
        let closed: Vec<(JobId, Account)> = self.accounts.extract_if(is_closed).collect();
        for (job, account) in closed {
            self.calls.remove(&job);
            if !account.charged.is_zero() {
                let key = (account.tenant, account.run);
                let is_full = self.ended.len() >= ENDED_MAX && !self.ended.contains_key(&key);
                let key = if is_full { (account.tenant, JobRun::default()) } else { key };
                self.ended.entry(key).or_default().add(&account.charged);
            }
        }
    }

    /// Returns whether so many accounts are open that those of ended jobs should be closed.
    pub(super) fn is_large(&self) -> bool {
        self.accounts.len() > ENDED_MAX
    }
}

impl Account {
    fn book_time(&mut self, now: u64) {
        if let Some(since) = &mut self.timed_since {
            self.charged.wall_ns += now.saturating_sub(*since);
            *since = now;
        }
    }
}

/// Returns the part of what was used that budgets limit.
fn daily_amounts(used: &UsageAmounts) -> DailyAmounts {
    let UsageAmounts { cpu_ns, gpu_ns, network_bytes, log_bytes, .. } = *used;
    DailyAmounts { cpu_nanos: cpu_ns, gpu_nanos: gpu_ns, network_bytes, log_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_of(job: &str, amounts: UsageAmounts) -> JobUsage {
        JobUsage { tenant: TenantId(7), run: JobRun::first(job), amounts }
    }

    /// What a job used is handed over once, also after its end, and until nothing of it is left.
    #[test]
    fn accounts_outlive_their_jobs() {
        let mut usage = Usage::default();
        let (job, cpu) = (JobId(1), |cpu_ns, wall_ns| UsageAmounts { cpu_ns, wall_ns, ..UsageAmounts::default() });
        usage.open(job, TenantId(7), JobRun::first("a"), Some(100));
        usage.book(job, |amounts| amounts.cpu_ns += 3);
        usage.book(JobId(2), |_| unreachable!("it has no account"));
        let charge = DailyAmounts { cpu_nanos: 3, ..DailyAmounts::default() };
        assert_eq!(usage.take_charges(), [(TenantId(7), charge)].into());
        assert!(usage.take_charges().is_empty());
        assert_eq!(usage.take(150, |_| true), [usage_of("a", cpu(3, 50))]);
        usage.end(job, 160);
        usage.book(job, |amounts| amounts.cpu_ns += 4);
        usage.take_charges();
        assert_eq!(usage.take(200, |_| true), [usage_of("a", cpu(4, 10))]);
        usage.book(job, |amounts| amounts.cpu_ns += 5);
        // Not yet charged: it stays.
        assert!(usage.take(200, |_| false).is_empty());
        usage.take_charges();
        assert_eq!(usage.take(300, |_| false), [usage_of("a", cpu(5, 0))]);
        assert!(usage.accounts.is_empty() && usage.ended.is_empty());
    }

    #[test]
    fn calls_are_counted_while_they_run() {
        let (mut usage, calls) = (Usage::default(), CallUsage::default());
        usage.open(JobId(1), TenantId(7), JobRun::first("train"), None);
        usage.count_calls(JobId(1), calls.clone());
        usage.end(JobId(1), 5);
        assert!(usage.take_charges().is_empty() && usage.take(5, |_| false).is_empty());
        calls.add(|amounts| amounts.log_bytes += 9);
        drop(calls);
        assert_eq!(usage.take_charges()[&TenantId(7)].log_bytes, 9);
        let amounts = UsageAmounts { log_bytes: 9, ..UsageAmounts::default() };
        assert_eq!(usage.take(6, |_| false), [usage_of("train", amounts)]);
        assert!(usage.accounts.is_empty());
    }

    #[test]
    fn ended_jobs_that_nobody_asks_for_are_bounded() {
        let mut usage = Usage::default();
        for job in 0..ENDED_MAX as u32 + 5 {
            usage.open(JobId(job), TenantId(7), JobRun::first(&job.to_string()), None);
            usage.book(JobId(job), |amounts| amounts.tasks += 1);
            usage.end(JobId(job), 0);
        }
        usage.take_charges();
        usage.fold_ended(|_| false);
        assert_eq!(usage.ended.len(), ENDED_MAX + 1);
        assert_eq!(usage.ended[&(TenantId(7), JobRun::default())].tasks, 5);
    }
}
