//! Amounts of resources: requests of tasks, totals and free amounts of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Fixed-point scale of resource amounts: ten thousandths of a unit, as in Ray. Sums are exact.
pub const RESOURCE_UNIT: u64 = 10_000;

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceSet {
    /// Processors, in [`RESOURCE_UNIT`]s.
    pub cpus: u64,
    /// GPUs, in [`RESOURCE_UNIT`]s.
    pub gpus: u64,
    /// Memory, in bytes.
    pub memory: u64,
    /// Custom resources by name, in [`RESOURCE_UNIT`]s.
    pub custom: BTreeMap<Arc<str>, u64>,
}

impl ResourceSet {
    /// Whether all amounts but `cpus` are zero.
    pub(crate) fn is_cpu_only(&self) -> bool {
        self.gpus == 0 && self.memory == 0 && self.custom.values().all(|amount| *amount == 0)
    }

    /// Whether all amounts are zero.
    pub(crate) fn is_zero(&self) -> bool {
        self.cpus == 0 && self.is_cpu_only()
    }

    /// Whether a node or bundle with this total could satisfy the request if nothing else used it.
    pub fn fits_in(&self, total: &ResourceSet) -> bool {
        self.cpus <= total.cpus
            && self.gpus <= total.gpus
            && self.memory <= total.memory
            && self.custom.iter().all(|(name, amount)| *amount <= total.custom_amount(name))
    }

    /// Whether a node with this total could satisfy the request beside the given external usage, if this scheduler used
    /// nothing else.
    pub(crate) fn fits_in_beside(&self, external_usage: &ResourceSet, total: &ResourceSet) -> bool {
        let enough = |amount: u64, total: u64, external_usage: u64| amount <= total.saturating_sub(external_usage);
        enough(self.cpus, total.cpus, external_usage.cpus)
            && enough(self.gpus, total.gpus, external_usage.gpus)
            && enough(self.memory, total.memory, external_usage.memory)
            && self
                .custom
                .iter()
                .all(|(name, amount)| enough(*amount, total.custom_amount(name), external_usage.custom_amount(name)))
    }

    /// Returns the smaller of both amounts of each resource.
    pub(crate) fn clamped_to(&self, total: &ResourceSet) -> ResourceSet {
        let custom = total.custom.iter().map(|(name, amount)| (name.clone(), self.custom_amount(name).min(*amount)));
        ResourceSet {
            cpus: self.cpus.min(total.cpus),
            gpus: self.gpus.min(total.gpus),
            memory: self.memory.min(total.memory),
            custom: custom.filter(|(_, amount)| *amount > 0).collect(),
        }
    }

    pub(crate) fn custom_amount(&self, name: &str) -> u64 {
        self.custom.get(name).copied().unwrap_or(0)
    }

    /// Returns the sum of these amounts.
    pub fn sum<'a>(all: impl Iterator<Item = &'a ResourceSet>) -> ResourceSet {
        all.fold(ResourceSet::default(), |mut sum, demand| {
            sum.add(demand);
            sum
        })
    }

    /// Adds amounts, saturating.
    pub fn add(&mut self, more: &ResourceSet) {
        self.cpus = self.cpus.saturating_add(more.cpus);
        self.gpus = self.gpus.saturating_add(more.gpus);
        self.memory = self.memory.saturating_add(more.memory);
        for (name, amount) in &more.custom {
            let of_name = self.custom.entry(name.clone()).or_default();
            *of_name = of_name.saturating_add(*amount);
        }
    }

    /// Subtracts amounts, down to zero.
    pub fn saturating_sub(&self, taken: &ResourceSet) -> ResourceSet {
        let custom =
            self.custom.iter().map(|(name, amount)| (name.clone(), amount.saturating_sub(taken.custom_amount(name))));
        ResourceSet {
            cpus: self.cpus.saturating_sub(taken.cpus),
            gpus: self.gpus.saturating_sub(taken.gpus),
            memory: self.memory.saturating_sub(taken.memory),
            custom: custom.filter(|(_, amount)| *amount > 0).collect(),
        }
    }

    /// Explains why none of these totals can satisfy the request. `none` names them in the message, as in "no node
    /// has".
    pub(crate) fn shortage(&self, none: &str, all: &[&ResourceSet]) -> String {
        let max_of = |amount: &dyn Fn(&ResourceSet) -> u64| all.iter().map(|one| amount(one)).max().unwrap_or(0);
        let units = |amount: u64| amount as f64 / RESOURCE_UNIT as f64;
        let (cpus, gpus, memory) = (max_of(&|one| one.cpus), max_of(&|one| one.gpus), max_of(&|one| one.memory));
        if self.cpus > cpus {
            return format!("asks for {} cpus, {none} more than {}", units(self.cpus), units(cpus));
        }
        if self.gpus > gpus {
            return format!("asks for {} gpus, {none} more than {}", units(self.gpus), units(gpus));
        }
        if self.memory > memory {
            return format!("asks for {} bytes of memory, {none} more than {memory}", self.memory);
        }
        for (name, amount) in &self.custom {
            let has = max_of(&|one| one.custom_amount(name));
            if *amount > has {
                return format!("asks for {} of {name}, {none} more than {}", units(*amount), units(has));
            }
        }
        format!("asks for several resources at once: {none} such combination")
    }
}

/// Free resources of a node or a bundle. `cpus` is negative while unblocked tasks use more processors than there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FreeResources {
    pub(crate) cpus: i128,
    /// All resources but `cpus`.
    pub(crate) rest: ResourceSet,
}

impl FreeResources {
    pub(crate) fn all_of(total: &ResourceSet) -> FreeResources {
        FreeResources { cpus: total.cpus.into(), rest: ResourceSet { cpus: 0, ..total.clone() } }
    }

    /// Whether the free resources satisfy the request.
    pub(crate) fn fits(&self, demand: &ResourceSet) -> bool {
        self.fits_with_reserved(demand, std::iter::empty())
    }

    /// Whether the free resources satisfy the request after the given amounts are set aside.
    pub(crate) fn fits_with_reserved<'a>(
        &self,
        demand: &ResourceSet,
        these: impl Iterator<Item = &'a ResourceSet> + Clone,
    ) -> bool {
        let cpus: i128 = these.clone().map(|one| i128::from(one.cpus)).sum();
        (demand.cpus == 0 || i128::from(demand.cpus) + cpus <= self.cpus) && self.fits_except_cpus(demand, these)
    }

    /// Like `fits_with_reserved`, without the check of processors.
    pub(crate) fn fits_except_cpus<'a>(
        &self,
        demand: &ResourceSet,
        these: impl Iterator<Item = &'a ResourceSet> + Clone,
    ) -> bool {
        let enough = |demanded: u64, free: u64, amount: &dyn Fn(&ResourceSet) -> u64| {
            demanded == 0 || demanded <= these.clone().fold(free, |left, one| left.saturating_sub(amount(one)))
        };
        enough(demand.gpus, self.rest.gpus, &|one| one.gpus)
            && enough(demand.memory, self.rest.memory, &|one| one.memory)
            && demand
                .custom
                .iter()
                .all(|(name, amount)| enough(*amount, self.rest.custom_amount(name), &|one| one.custom_amount(name)))
    }

    /// Subtracts amounts that others use: processors may become negative, the rest stops at zero.
    pub(crate) fn minus(&self, external_usage: &ResourceSet) -> FreeResources {
        let mut left = self.clone();
        left.cpus -= i128::from(external_usage.cpus);
        left.change_rest(external_usage, |free, amount| *free = free.saturating_sub(amount));
        left
    }

    /// Subtracts a request that fits.
    pub(crate) fn acquire(&mut self, demand: &ResourceSet) {
        self.cpus -= i128::from(demand.cpus);
        self.acquire_rest(demand);
    }

    /// Adds a request back.
    pub(crate) fn release(&mut self, demand: &ResourceSet) {
        self.cpus += i128::from(demand.cpus);
        self.release_rest(demand);
    }

    /// Adds the free resources of a removed bundle.
    pub(crate) fn release_all(&mut self, other: &FreeResources) {
        self.cpus += other.cpus;
        self.release_rest(&other.rest);
    }

    /// Subtracts all of a request but its processors, which fits.
    pub(crate) fn acquire_rest(&mut self, demand: &ResourceSet) {
        self.change_rest(demand, |free, amount| *free -= amount);
    }

    /// Adds all of a request but its processors.
    pub(crate) fn release_rest(&mut self, demand: &ResourceSet) {
        self.change_rest(demand, |free, amount| *free += amount);
    }

    fn change_rest(&mut self, demand: &ResourceSet, change: impl Fn(&mut u64, u64)) {
        change(&mut self.rest.gpus, demand.gpus);
        change(&mut self.rest.memory, demand.memory);
        for (name, amount) in demand.custom.iter().filter(|(_, amount)| **amount > 0) {
            if let Some(free) = self.rest.custom.get_mut(name) {
                change(free, *amount);
            }
        }
    }
}
