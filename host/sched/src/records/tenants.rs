//! Tenants: their shares, their use of resources, and the order in which they are served.
//!
//! Weighted dominant-resource fairness over time (Ghodsi et al., DRFQ, SIGCOMM 2012), by start-time fair queuing (Goyal et
//! al., SIGCOMM 1996). The *virtual time* of a tenant grows with its dominant share of the nodes' resources, divided by its
//! weight. The tenant with the smallest virtual time is served first.

use std::collections::BTreeMap;

use sandbar_core::{Fault, TenantId};

use crate::event::{DailyAmounts, TenantLimits, TenantShare};
use crate::records::keys::TenantKey;
use crate::records::ledger::Usage;
use crate::records::resources::ResourceSet;
use crate::records::slab::{Slab, index_records};

/// Nanoseconds of all resources that a tenant can catch up on, at the default weight: it loses what it does not use.
const LAG_NANOS: u128 = 100_000_000;
/// Shares are counted in millionths.
const MILLION: u64 = 1_000_000;
/// Scale of virtual times, so that a division by a weight loses little.
const SCALE: u128 = 1 << 10;
const DEFAULT_WEIGHT: u128 = 100;
const LAG: u128 = LAG_NANOS * MILLION as u128 * SCALE / DEFAULT_WEIGHT;

/// A tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    pub(crate) share: TenantShare,
    /// Limits of what it uses at once.
    limits: TenantLimits,
    /// Tasks, objects and bytes of its jobs.
    usage: Usage,
    /// What it has used of its budgets today.
    daily: DailyAmounts,
    /// Processors in use. Tasks that continue may use more than there are.
    cpus: i128,
    /// Processors in use on local nodes.
    local_cpus: i128,
    /// Other resources in use.
    rest: ResourceSet,
    /// Dominant share: the largest share of any resource, in millionths.
    dominant_share: u64,
    /// Whether that is the share of processors.
    is_of_cpus: bool,
    virtual_time: u128,
    /// Time of the last update of the virtual time.
    updated: Clock,
    /// When something of the tenant was last started, or its queued work was passed over the first time since.
    waiting_since: Option<u64>,
    /// Whether the tenant has waited too long: its next task may start on processors that others use.
    pub(crate) may_overcommit: bool,
}

/// A time, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Clock {
    nanos: u64,
    /// Time that each used processor has run: it runs slower while more are used than there are.
    cpu_nanos: u64,
}

/// A change of what a tenant uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsageChange<'a> {
    pub(crate) cpus: i128,
    /// Resources to add, without processors.
    pub(crate) rest_added: Option<&'a ResourceSet>,
    /// Resources to subtract, without processors.
    pub(crate) rest_removed: Option<&'a ResourceSet>,
    pub(crate) is_local: bool,
}

/// Tenants by key and by id.
#[derive(Debug)]
pub(crate) struct Tenants {
    records: Slab<TenantKey, Tenant>,
    ids: BTreeMap<TenantId, TenantKey>,
    now: Clock,
    /// Processors of local nodes in use.
    used_cpus: i128,
    /// Virtual time of the system: that of the tenant that was served last.
    virtual_time: u128,
    /// Resources of all nodes.
    total: ResourceSet,
    /// Processors of local nodes.
    local_cpus: u64,
    /// Sum of the weights of the tenants that compete for them, as of the last [`Tenants::end_waits`].
    competing_weights: u64,
    /// What all tenants use.
    usage: Usage,
    /// Bytes of this process's memory for all tenants.
    memory_bytes_max: u64,
}

index_records!([] Tenants, TenantKey => Tenant);

impl Tenant {
    fn new(id: TenantId, virtual_time: u128, now: Clock) -> Tenant {
        Tenant {
            id,
            share: TenantShare::default(),
            limits: TenantLimits::default(),
            usage: Usage::default(),
            daily: DailyAmounts::default(),
            cpus: 0,
            local_cpus: 0,
            rest: ResourceSet::default(),
            dominant_share: 0,
            is_of_cpus: true,
            virtual_time,
            updated: now,
            waiting_since: None,
            may_overcommit: false,
        }
    }

    /// Adds the virtual time since the last update.
    fn charge(&mut self, now: Clock) {
        let before = std::mem::replace(&mut self.updated, now);
        let nanos = if self.is_of_cpus { now.cpu_nanos - before.cpu_nanos } else { now.nanos - before.nanos };
        self.virtual_time += self.cost(nanos);
    }

    /// Returns the virtual time that the current usage costs in this time.
    fn cost(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.dominant_share) * SCALE / u128::from(self.share.weight.max(1))
    }

    fn update_dominant_share(&mut self, total: &ResourceSet) {
        let share = |used: u64, total: u64| match total {
            0 => 0,
            _ => used.saturating_mul(MILLION) / total,
        };
        let cpus = u64::try_from(self.cpus).unwrap_or(0);
        let custom = self.rest.custom.iter().map(|(name, used)| share(*used, total.custom_amount(name)));
        let known = [share(self.rest.gpus, total.gpus), share(self.rest.memory, total.memory)];
        let (of_cpus, of_rest) = (share(cpus, total.cpus), custom.chain(known).max().unwrap_or(0));
        (self.dominant_share, self.is_of_cpus) = (of_cpus.max(of_rest), of_cpus >= of_rest);
    }

    /// Returns the bytes of the tenant's unfinished tasks, and those beyond which its submissions wait.
    pub(crate) fn queued_bytes(&self) -> (u64, u64) {
        (self.usage.queued_bytes(), self.limits.memory_bytes_max / 2)
    }

    fn is_idle(&self) -> bool {
        self.cpus <= 0 && self.rest.is_zero()
    }
}

impl Tenants {
    pub(crate) fn new(memory_bytes_max: u64) -> Tenants {
        Tenants {
            records: Slab::new(),
            ids: BTreeMap::new(),
            now: Clock::default(),
            used_cpus: 0,
            virtual_time: 0,
            total: ResourceSet::default(),
            local_cpus: 0,
            competing_weights: 0,
            usage: Usage::default(),
            memory_bytes_max,
        }
    }

    /// Sets the current time, in nanoseconds. Time does not go back.
    pub(crate) fn set_time(&mut self, nanos: u64) {
        let passed = nanos.saturating_sub(self.now.nanos);
        self.now.nanos += passed;
        let cpus = i128::from(self.local_cpus);
        self.now.cpu_nanos += match passed {
            _ if self.used_cpus <= cpus => passed,
            _ => u64::try_from(i128::from(passed) * cpus / self.used_cpus).unwrap_or(passed),
        };
    }

    /// Returns a tenant, and adds it if it is unknown. Its record is kept: tenants are few, and one that returns still owes
    /// what it used.
    pub(crate) fn get_or_insert(&mut self, id: TenantId) -> TenantKey {
        if let Some(at) = self.ids.get(&id) {
            return *at;
        }
        let at = self.records.insert(Tenant::new(id, self.virtual_time, self.now));
        self.ids.insert(id, at);
        at
    }

    /// Returns a known tenant.
    pub(crate) fn find(&self, id: TenantId) -> Option<TenantKey> {
        self.ids.get(&id).copied()
    }

    /// Changes the share and the limits of a tenant.
    pub(crate) fn set(&mut self, id: TenantId, share: TenantShare, limits: TenantLimits) {
        let at = self.get_or_insert(id);
        let tenant = &mut self.records[at];
        tenant.charge(self.now);
        (tenant.share, tenant.limits) = (share, limits);
    }

    /// Adds to what a tenant has used today.
    pub(crate) fn charge_daily(&mut self, id: TenantId, used: &DailyAmounts) {
        let at = self.get_or_insert(id);
        self.records[at].daily.add(used);
    }

    /// Forgets what tenants have used of their budgets.
    pub(crate) fn start_day(&mut self) {
        self.ids.values().for_each(|at| self.records[*at].daily = DailyAmounts::default());
    }

    /// Checks whether a tenant may start something new today.
    pub(crate) fn check_budget(&self, at: TenantKey) -> Result<(), Fault> {
        let Tenant { daily, limits, .. } = &self.records[at];
        limits.check_budget(daily)
    }

    /// Changes what the jobs of a tenant use.
    #[inline]
    pub(crate) fn count(&mut self, at: TenantKey, change: impl Fn(&mut Usage)) {
        change(&mut self.records[at].usage);
        change(&mut self.usage);
    }

    /// Whether no tenant has tasks, objects or values.
    pub(crate) fn is_unused(&self) -> bool {
        self.usage == Usage::default()
    }

    /// Returns what a tenant uses, and its limits. While all tenants together use more than this process's memory for them,
    /// none may use more than its part of it.
    pub(crate) fn usage(&self, at: TenantKey) -> (&Usage, TenantLimits) {
        let tenant = &self.records[at];
        let mut limits = tenant.limits;
        if self.usage.memory_bytes() >= self.memory_bytes_max {
            let users = self.ids.values().filter(|at| self.records[**at].usage.memory_bytes() > 0).count() as u64;
            limits.memory_bytes_max = limits.memory_bytes_max.min(self.memory_bytes_max / users.max(1));
        }
        (&tenant.usage, limits)
    }

    /// Changes what the nodes have: `total` on all of them, `local_cpus` processors on the local ones.
    pub(crate) fn set_total(&mut self, total: ResourceSet, local_cpus: u64) {
        (self.total, self.local_cpus) = (total, local_cpus);
        for at in self.ids.values() {
            let tenant = &mut self.records[*at];
            tenant.charge(self.now);
            tenant.update_dominant_share(&self.total);
        }
    }

    /// Changes what a tenant uses.
    pub(crate) fn change_usage(&mut self, at: TenantKey, change: UsageChange<'_>) {
        let tenant = &mut self.records[at];
        tenant.charge(self.now);
        tenant.cpus += change.cpus;
        if change.is_local {
            tenant.local_cpus += change.cpus;
            self.used_cpus += change.cpus;
        }
        if let Some(added) = change.rest_added {
            tenant.rest.add(&ResourceSet { cpus: 0, ..added.clone() });
        }
        if let Some(removed) = change.rest_removed {
            tenant.rest = tenant.rest.saturating_sub(&ResourceSet { cpus: 0, ..removed.clone() });
        }
        tenant.update_dominant_share(&self.total);
    }

    /// Returns the rank of a tenant with queued work: the smallest is served first. Each of its assignments counts for
    /// `quantum_nanos` in advance.
    pub(crate) fn rank(&mut self, at: TenantKey, quantum_nanos: u64) -> (u128, TenantId) {
        let floor = self.virtual_time.saturating_sub(LAG);
        let tenant = &mut self.records[at];
        tenant.charge(self.now);
        tenant.virtual_time = tenant.virtual_time.max(floor);
        (tenant.virtual_time + tenant.cost(quantum_nanos), tenant.id)
    }

    /// Records that something of a tenant was started.
    pub(crate) fn served(&mut self, at: TenantKey) {
        let tenant = &mut self.records[at];
        // It may have more to start.
        (tenant.waiting_since, tenant.may_overcommit) = (Some(self.now.nanos), false);
        self.virtual_time = self.virtual_time.max(tenant.virtual_time);
    }

    /// Records that queued work of a tenant found no room.
    pub(crate) fn passed_over(&mut self, at: TenantKey) {
        self.records[at].waiting_since.get_or_insert(self.now.nanos);
    }

    /// Lets those of the tenants with queued work, in key order, that have waited for `patience_nanos` start one more task:
    /// those that use less than what is reserved for them, and those that are first in fair order and use less than their
    /// guaranteed processors. Returns whether there are any.
    pub(crate) fn end_waits(&mut self, queued: &[TenantKey], patience_nanos: u64) -> bool {
        self.competing_weights = 0;
        let mut first = u128::MAX;
        for at in self.ids.values() {
            let tenant = &mut self.records[*at];
            tenant.charge(self.now);
            let is_queued = queued.binary_search(at).is_ok();
            if is_queued || !tenant.is_idle() {
                self.competing_weights += u64::from(tenant.share.weight.max(1));
                first = first.min(tenant.virtual_time);
            }
            if !is_queued {
                tenant.waiting_since = None;
            }
        }
        let mut has_any = false;
        for at in queued {
            let guaranteed = self.guaranteed_cpus(*at);
            let tenant = &mut self.records[*at];
            let waited = |since: u64| self.now.nanos.saturating_sub(since) >= patience_nanos;
            let has_waited = tenant.waiting_since.is_some_and(waited);
            let has_less = tenant.local_cpus <= 0 || tenant.local_cpus < i128::from(guaranteed);
            // It has used less than its share so far as well. What is reserved for it does not depend on that.
            let is_reserved = tenant.local_cpus < i128::from(tenant.share.reserved_cpus);
            if has_waited && has_less && (is_reserved || tenant.virtual_time <= first) {
                tenant.waiting_since = Some(self.now.nanos);
                tenant.may_overcommit = true;
                has_any = true;
            }
        }
        has_any
    }

    /// Whether a tenant that has waited may start a request of these processors on processors that others use: it uses
    /// none, or would not use more than the guaranteed ones.
    pub(crate) fn may_overcommit(&self, at: TenantKey, cpus: u64) -> bool {
        let tenant = &self.records[at];
        let is_guaranteed = || tenant.local_cpus + i128::from(cpus) <= i128::from(self.guaranteed_cpus(at));
        tenant.may_overcommit && (tenant.local_cpus <= 0 || is_guaranteed())
    }

    /// Returns the processors of local nodes that a tenant is guaranteed while others compete: its part by weight, and no
    /// fewer than those that are reserved for it.
    fn guaranteed_cpus(&self, at: TenantKey) -> u64 {
        let share = self.records[at].share;
        let weight = u64::from(share.weight.max(1));
        let part = self.local_cpus.saturating_mul(weight) / self.competing_weights.max(weight);
        part.max(share.reserved_cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::resources::RESOURCE_UNIT;

    const CPU: u64 = RESOURCE_UNIT;
    const QUANTUM: u64 = 1_000_000;

    fn tenants(count: u64, weights: &[u32]) -> (Tenants, Vec<TenantKey>) {
        let mut tenants = Tenants::new(u64::MAX);
        tenants.set_total(ResourceSet { cpus: count * CPU, ..ResourceSet::default() }, count * CPU);
        let keys = weights.iter().zip(1..).map(|(weight, id)| {
            tenants.set(TenantId(id), TenantShare { weight: *weight, reserved_cpus: 0 }, TenantLimits::default());
            tenants.get_or_insert(TenantId(id))
        });
        let keys = keys.collect();
        (tenants, keys)
    }

    fn uses(cpus: i128) -> UsageChange<'static> {
        UsageChange { cpus: cpus * i128::from(CPU), rest_added: None, rest_removed: None, is_local: true }
    }

    /// Tenants that always have queued tasks of a millisecond get processor time by weight.
    #[test]
    fn busy_tenants_share_by_weight() {
        for (cpus, weights) in [(1, &[100, 100][..]), (1, &[100, 200, 400]), (2, &[100, 200, 400]), (3, &[1, 1000])] {
            let (mut tenants, keys) = tenants(cpus, weights);
            let mut time = vec![0_u64; weights.len()];
            let mut running: Vec<(u64, usize)> = Vec::new();
            for now in (0..700_000_000).step_by(1_000_000) {
                tenants.set_time(now);
                running.retain(|(end, of)| {
                    let runs = *end > now;
                    if !runs {
                        tenants.change_usage(keys[*of], uses(-1));
                    }
                    runs
                });
                while running.len() < cpus as usize {
                    let first = (0..keys.len()).min_by_key(|of| tenants.rank(keys[*of], QUANTUM)).unwrap();
                    tenants.served(keys[first]);
                    tenants.change_usage(keys[first], uses(1));
                    running.push((now + 1_000_000, first));
                    time[first] += 1;
                }
            }
            let (sum, all): (u64, u64) = (weights.iter().map(|weight| u64::from(*weight)).sum(), time.iter().sum());
            for (of, weight) in weights.iter().enumerate() {
                let expected = all as f64 * f64::from(*weight) / sum as f64;
                assert!((time[of] as f64 - expected).abs() <= 3.0, "{cpus} cpus, {weights:?}: {time:?}");
            }
        }
    }

    /// A tenant that was idle or waited for something rare does not get the processors for as long afterwards.
    #[test]
    fn unused_time_is_lost() {
        let (mut tenants, keys) = tenants(1, &[100, 100]);
        tenants.change_usage(keys[0], uses(1));
        tenants.set_time(1_000_000_000_000);
        tenants.rank(keys[0], QUANTUM);
        tenants.served(keys[0]);
        tenants.change_usage(keys[0], uses(-1));
        assert!(tenants.rank(keys[1], QUANTUM) < tenants.rank(keys[0], QUANTUM));
        tenants.change_usage(keys[1], uses(1));
        tenants.set_time(1_000_000_000_000 + 110_000_000);
        assert!(tenants.rank(keys[0], QUANTUM) < tenants.rank(keys[1], QUANTUM));
    }

    /// A tenant that waits gets processors that others use, up to its guaranteed ones.
    #[test]
    fn waiting_tenants_overcommit() {
        for (cpus, weight, reserved, expected) in [(2, 100, 0, 1), (4, 100, 0, 2), (4, 300, 0, 3), (4, 100, 4, 4)] {
            let (mut tenants, keys) = tenants(cpus, &[100, weight]);
            tenants.set(TenantId(2), TenantShare { weight, reserved_cpus: reserved * CPU }, TenantLimits::default());
            tenants.change_usage(keys[0], uses(i128::from(cpus)));
            tenants.passed_over(keys[1]);
            assert!(!tenants.end_waits(&keys[1..], QUANTUM), "it has not waited");
            let mut started = 0;
            for now in (QUANTUM..100 * QUANTUM).step_by(QUANTUM as usize) {
                tenants.set_time(now);
                if tenants.end_waits(&keys[1..], QUANTUM) && tenants.may_overcommit(keys[1], CPU) {
                    tenants.served(keys[1]);
                    tenants.change_usage(keys[1], uses(1));
                    started += 1;
                    tenants.passed_over(keys[1]);
                }
            }
            assert_eq!(started, expected, "{cpus} {weight} {reserved}");
        }
    }

    /// The resource of which a tenant uses most decides.
    #[test]
    fn the_dominant_share_counts() {
        let mut tenants = Tenants::new(u64::MAX);
        let total = ResourceSet { cpus: 10 * CPU, gpus: 2 * CPU, ..ResourceSet::default() };
        tenants.set_total(total, 10 * CPU);
        let (many, few) = (tenants.get_or_insert(TenantId(1)), tenants.get_or_insert(TenantId(2)));
        tenants.change_usage(many, uses(4));
        let gpu = ResourceSet { cpus: CPU, gpus: CPU, ..ResourceSet::default() };
        tenants.change_usage(few, UsageChange { rest_added: Some(&gpu), ..uses(1) });
        tenants.set_time(1_000_000);
        assert!(tenants.rank(many, QUANTUM) < tenants.rank(few, QUANTUM));
        tenants.change_usage(few, UsageChange { rest_removed: Some(&gpu), ..uses(-1) });
        tenants.set_time(2_000_000);
        assert!(tenants.rank(few, QUANTUM) < tenants.rank(many, QUANTUM));
    }
}
