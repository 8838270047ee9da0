//! What tasks take of a node, and what a node has.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Amounts are counted in ten thousandths of a unit, as Ray does: sums are exact.
pub const UNIT: u64 = 10_000;

/// An amount of each of some resources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Demand {
    /// Processors, in [`UNIT`]s.
    pub cpus: u64,
    /// Devices, in [`UNIT`]s.
    pub gpus: u64,
    /// Memory, in bytes.
    pub memory: u64,
    /// What else a node was said to have, in [`UNIT`]s.
    pub custom: BTreeMap<Arc<str>, u64>,
}

impl Demand {
    /// Whether it is of processors alone.
    pub(crate) fn is_light(&self) -> bool {
        self.gpus == 0 && self.memory == 0 && self.custom.values().all(|amount| *amount == 0)
    }

    /// Whether it is of nothing at all.
    pub(crate) fn is_nothing(&self) -> bool {
        self.cpus == 0 && self.is_light()
    }

    /// Whether something with nothing in use has enough of each.
    pub fn is_within(&self, total: &Demand) -> bool {
        self.cpus <= total.cpus
            && self.gpus <= total.gpus
            && self.memory <= total.memory
            && self.custom.iter().all(|(name, amount)| *amount <= total.of(name))
    }

    /// Whether something has enough of each, of which others use so much and nobody else anything.
    pub(crate) fn is_beside(&self, others: &Demand, total: &Demand) -> bool {
        let enough = |amount: u64, total: u64, others: u64| amount <= total.saturating_sub(others);
        enough(self.cpus, total.cpus, others.cpus)
            && enough(self.gpus, total.gpus, others.gpus)
            && enough(self.memory, total.memory, others.memory)
            && self.custom.iter().all(|(name, amount)| enough(*amount, total.of(name), others.of(name)))
    }

    /// No more of each than there is of it.
    pub(crate) fn at_most(&self, total: &Demand) -> Demand {
        let custom = total.custom.iter().map(|(name, amount)| (name.clone(), self.of(name).min(*amount)));
        Demand {
            cpus: self.cpus.min(total.cpus),
            gpus: self.gpus.min(total.gpus),
            memory: self.memory.min(total.memory),
            custom: custom.filter(|(_, amount)| *amount > 0).collect(),
        }
    }

    pub(crate) fn of(&self, name: &str) -> u64 {
        self.custom.get(name).copied().unwrap_or(0)
    }

    /// All of these together.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Demand>) -> Demand {
        all.fold(Demand::default(), |mut sum, demand| {
            sum.add(demand);
            sum
        })
    }

    /// So much more of each.
    pub fn add(&mut self, more: &Demand) {
        self.cpus = self.cpus.saturating_add(more.cpus);
        self.gpus = self.gpus.saturating_add(more.gpus);
        self.memory = self.memory.saturating_add(more.memory);
        for (name, amount) in &more.custom {
            let of_name = self.custom.entry(name.clone()).or_default();
            *of_name = of_name.saturating_add(*amount);
        }
    }

    /// What is left of each, where so much is taken.
    pub fn less(&self, taken: &Demand) -> Demand {
        let custom = self.custom.iter().map(|(name, amount)| (name.clone(), amount.saturating_sub(taken.of(name))));
        Demand {
            cpus: self.cpus.saturating_sub(taken.cpus),
            gpus: self.gpus.saturating_sub(taken.gpus),
            memory: self.memory.saturating_sub(taken.memory),
            custom: custom.filter(|(_, amount)| *amount > 0).collect(),
        }
    }

    /// Why none of these can ever have enough of each: `none` says what of them, as in "no node has".
    pub(crate) fn beyond(&self, none: &str, all: &[&Demand]) -> String {
        let most = |amount: &dyn Fn(&Demand) -> u64| all.iter().map(|one| amount(one)).max().unwrap_or(0);
        let units = |amount: u64| amount as f64 / UNIT as f64;
        let (cpus, gpus, memory) = (most(&|one| one.cpus), most(&|one| one.gpus), most(&|one| one.memory));
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
            let has = most(&|one| one.of(name));
            if *amount > has {
                return format!("asks for {} of {name}, {none} more than {}", units(*amount), units(has));
            }
        }
        format!("asks for more than one has together, though for no more of each: {none} enough")
    }
}

/// What a node or a bundle has left. Processors are owed where tasks that had given theirs away went on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) cpus: i128,
    /// All but processors.
    pub(crate) rest: Demand,
}

impl Free {
    pub(crate) fn all_of(total: &Demand) -> Free {
        Free { cpus: total.cpus.into(), rest: Demand { cpus: 0, ..total.clone() } }
    }

    /// Whether there is enough of each.
    pub(crate) fn fits(&self, demand: &Demand) -> bool {
        self.fits_beside(demand, std::iter::empty())
    }

    /// Whether there is enough of each, and of what is there now nothing is taken that these need.
    pub(crate) fn fits_beside<'a>(&self, demand: &Demand, these: impl Iterator<Item = &'a Demand> + Clone) -> bool {
        let cpus: i128 = these.clone().map(|one| i128::from(one.cpus)).sum();
        (demand.cpus == 0 || i128::from(demand.cpus) + cpus <= self.cpus) && self.fits_but_cpus(demand, these)
    }

    /// As above, whether there are processors or not.
    pub(crate) fn fits_but_cpus<'a>(&self, demand: &Demand, these: impl Iterator<Item = &'a Demand> + Clone) -> bool {
        let enough = |asked: u64, free: u64, amount: &dyn Fn(&Demand) -> u64| {
            asked == 0 || asked <= these.clone().fold(free, |left, one| left.saturating_sub(amount(one)))
        };
        enough(demand.gpus, self.rest.gpus, &|one| one.gpus)
            && enough(demand.memory, self.rest.memory, &|one| one.memory)
            && demand.custom.iter().all(|(name, amount)| enough(*amount, self.rest.of(name), &|one| one.of(name)))
    }

    /// What is left beside what others use, which may be more than that.
    pub(crate) fn beside(&self, others: &Demand) -> Free {
        let mut left = self.clone();
        left.cpus -= i128::from(others.cpus);
        left.change_rest(others, |free, amount| *free = free.saturating_sub(amount));
        left
    }

    /// Takes of each, of which there is enough.
    pub(crate) fn take(&mut self, demand: &Demand) {
        self.cpus -= i128::from(demand.cpus);
        self.take_rest(demand);
    }

    /// Gives back.
    pub(crate) fn give(&mut self, demand: &Demand) {
        self.cpus += i128::from(demand.cpus);
        self.give_rest(demand);
    }

    /// Gives what is left elsewhere.
    pub(crate) fn give_all(&mut self, other: &Free) {
        self.cpus += other.cpus;
        self.give_rest(&other.rest);
    }

    /// Takes all but processors, of which there is enough.
    pub(crate) fn take_rest(&mut self, demand: &Demand) {
        self.change_rest(demand, |free, amount| *free -= amount);
    }

    /// Gives back all but processors.
    pub(crate) fn give_rest(&mut self, demand: &Demand) {
        self.change_rest(demand, |free, amount| *free += amount);
    }

    fn change_rest(&mut self, demand: &Demand, change: impl Fn(&mut u64, u64)) {
        change(&mut self.rest.gpus, demand.gpus);
        change(&mut self.rest.memory, demand.memory);
        for (name, amount) in demand.custom.iter().filter(|(_, amount)| **amount > 0) {
            if let Some(free) = self.rest.custom.get_mut(name) {
                change(free, *amount);
            }
        }
    }
}
