//! Resources, as nodes tell each other of them.

use std::collections::BTreeMap;

use sandbar_sched::ResourceSet;
use serde::{Deserialize, Serialize};

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Amounts {
    /// Processors and devices, in ten thousandths.
    pub cpus: u64,
    /// As above.
    pub gpus: u64,
    /// In bytes.
    pub memory: u64,
    /// What else there is, in ten thousandths.
    pub custom: BTreeMap<String, u64>,
}

impl Amounts {
    pub fn of(demand: &ResourceSet) -> Amounts {
        let custom = demand.custom.iter().map(|(name, of)| (name.as_ref().to_owned(), *of)).collect();
        Amounts { cpus: demand.cpus, gpus: demand.gpus, memory: demand.memory, custom }
    }

    pub fn demand(&self) -> ResourceSet {
        let custom = self.custom.iter().map(|(name, of)| (name.as_str().into(), *of)).collect();
        ResourceSet { cpus: self.cpus, gpus: self.gpus, memory: self.memory, custom }
    }
}
