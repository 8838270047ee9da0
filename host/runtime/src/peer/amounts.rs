//! Resources in messages between nodes.

use std::collections::BTreeMap;

use sandbar_sched::ResourceSet;
use serde::{Deserialize, Serialize};

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Amounts {
    /// CPUs, in ten thousandths.
    pub cpus: u64,
    /// GPUs, in ten thousandths.
    pub gpus: u64,
    /// Memory, in bytes.
    pub memory: u64,
    /// Custom resources, in ten thousandths.
    pub custom: BTreeMap<String, u64>,
}

impl Amounts {
    /// Encodes resources.
    pub fn from_resources(resources: &ResourceSet) -> Amounts {
        let custom = resources.custom.iter().map(|(name, amount)| (name.as_ref().to_owned(), *amount)).collect();
        Amounts { cpus: resources.cpus, gpus: resources.gpus, memory: resources.memory, custom }
    }

    /// Decodes resources.
    pub fn resources(&self) -> ResourceSet {
        let custom = self.custom.iter().map(|(name, amount)| (name.as_str().into(), *amount)).collect();
        ResourceSet { cpus: self.cpus, gpus: self.gpus, memory: self.memory, custom }
    }
}
