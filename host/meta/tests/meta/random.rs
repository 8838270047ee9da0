//! Random steps from a seed.

use sandbar_core::Seed;
use sandbar_meta::{CompareOp, Condition, Key, KeyRange, MetaValue, Predicate, Revision};

use crate::driver::{Op, Step, key};

/// Few keys, some with common prefixes, so that steps interact.
const KEYS: &[&str] = &["a", "a/1", "a/2", "a/2/x", "b", "b\u{7f}", "c"];
const PREFIXES: &[&str] = &["", "a", "a/", "a/2", "b", "x"];
/// Fewer leases than steps, so that some do not exist.
const LEASES: usize = 6;
pub const WATCHERS: usize = 4;

/// Features of a history.
#[derive(Debug, Clone, Copy, Default)]
pub struct HistoryFeatures {
    /// Time can be advanced, and leases end.
    pub time: bool,
    /// The store can be closed and reopened.
    pub reopen: bool,
}

pub struct Steps {
    pub seed: Seed,
    pub kinds: HistoryFeatures,
    /// Number of watchers created.
    pub watchers: usize,
    pub leases: usize,
    /// Approximate revision of the store.
    pub revision: u64,
}

impl Steps {
    pub fn new(seed: u64, kinds: HistoryFeatures) -> Steps {
        Steps { seed: Seed::new(seed), kinds, watchers: 0, leases: 0, revision: 1 }
    }

    pub fn next(&mut self) -> Step {
        match self.seed.below(100) {
            0..=9 => Step::Get(self.key()),
            10..=17 => Step::Range(self.span(), self.seed.below(4) as usize),
            18..=24 => {
                self.leases += 1;
                // Where the clock can't be set, no lease may end by itself.
                let least = if self.kinds.time { 1 } else { 1000 };
                Step::Grant(least + self.seed.below(10))
            }
            25..=29 => Step::KeepAlive(self.lease()),
            30..=35 => Step::Revoke(self.lease()),
            36..=45 => {
                let (behind, before) = (self.seed.below(5), self.seed.below(3));
                let from = (self.revision + u64::from(before)).saturating_sub(behind.into());
                Step::Watch(self.span(), from.max(1))
            }
            46..=52 if self.kinds.time => Step::Advance(self.seed.below(4).into()),
            53 if self.kinds.reopen => Step::Reopen,
            _ => self.transaction(),
        }
    }

    fn transaction(&mut self) -> Step {
        let conditions = self.seed.below(3);
        Step::Transact {
            when: (0..conditions).map(|_| self.condition()).collect(),
            then: self.operations(),
            otherwise: if conditions == 0 { vec![] } else { self.operations() },
        }
    }

    fn condition(&mut self) -> Condition {
        let is = self.one(&[CompareOp::Equal, CompareOp::NotEqual, CompareOp::Greater, CompareOp::Less]);
        let revision = Revision(self.revision.saturating_sub(self.seed.below(6).into()).max(1));
        let test = match self.seed.below(6) {
            0 => Predicate::Version(is, self.seed.below(3).into()),
            1 => Predicate::CreateRevision(is, revision),
            2 => Predicate::ModRevision(is, revision),
            3 => Predicate::ModRevision(is, Revision(0)),
            4 => Predicate::Value(is, self.value()),
            _ => Predicate::Version(CompareOp::Greater, 0),
        };
        Condition { key: self.key(), test }
    }

    fn operations(&mut self) -> Vec<Op> {
        (0..self.seed.below(4)).map(|_| self.operation()).collect()
    }

    fn operation(&mut self) -> Op {
        match self.seed.below(6) {
            0 => Op::Delete(self.span()),
            1 | 2 => Op::Put(self.key(), self.value(), Some(self.lease())),
            _ => Op::Put(self.key(), self.value(), None),
        }
    }

    fn span(&mut self) -> KeyRange {
        match self.seed.below(5) {
            0 => KeyRange::between(&self.key(), &self.key()),
            1 | 2 => KeyRange::prefix(self.one(PREFIXES).as_bytes().to_vec()).unwrap(),
            3 => KeyRange::prefix(self.one(PREFIXES).as_bytes().to_vec()).unwrap().starting_at(&self.key()),
            _ => KeyRange::key(&self.key()),
        }
    }

    fn key(&mut self) -> Key {
        key(self.one(KEYS))
    }

    fn value(&mut self) -> MetaValue {
        MetaValue::new(vec![b'a' + self.seed.below(4) as u8; self.seed.below(4) as usize])
    }

    /// One of the last leases, or one that does not exist.
    fn lease(&mut self) -> usize {
        self.leases.saturating_sub(self.seed.below(LEASES as u32) as usize)
    }

    fn one<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.seed.below(all.len() as u32) as usize]
    }
}
