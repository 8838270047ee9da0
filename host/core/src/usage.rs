//! Accounts of what jobs have used.

use serde::{Deserialize, Serialize};

/// A run of a job: the first one, or one after a takeover.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct JobRun {
    /// Id of the job, as its tenant knows it; empty if it has none.
    pub id: String,
    /// Number of the run, from 1.
    pub run: u32,
}

impl JobRun {
    /// Returns the first run of a job.
    pub fn first(id: &str) -> JobRun {
        JobRun { id: id.to_owned(), run: 1 }
    }
}

/// What a job has used on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageAmounts {
    /// Tasks that have ended, on the node that submitted them.
    pub tasks: u64,
    /// Attempts of tasks, and calls of job files, that succeeded.
    pub attempts_succeeded: u64,
    /// Attempts and calls that failed or were cancelled.
    pub attempts_failed: u64,
    /// Attempts and calls that ended with their worker or node.
    pub attempts_lost: u64,
    /// Time in nanoseconds that attempts and calls kept a worker's thread busy, by the wall clock, without their waits.
    pub cpu_ns: u64,
    /// GPU time in nanoseconds.
    pub gpu_ns: u64,
    /// Time in nanoseconds from the start of the job to its end, on the node that runs the job.
    pub wall_ns: u64,
    /// Largest peak linear memory of an attempt or call, in bytes.
    pub memory_bytes_max: u64,
    /// Bytes of values of 4 KiB or more that tasks returned or stored.
    pub object_bytes: u64,
    /// Bytes of values that were written to disk.
    pub spilled_bytes: u64,
    /// Bytes of arguments, values and units of training that came from other nodes.
    pub network_bytes: u64,
    /// Bytes of log lines.
    pub log_bytes: u64,
    /// Bytes of components and files that clients sent.
    pub upload_bytes: u64,
}

impl UsageAmounts {
    /// Names and values, in the order of the fields.
    pub fn named(&self) -> [(&'static str, u64); 13] {
        [
            ("tasks", self.tasks),
            ("attempts_succeeded", self.attempts_succeeded),
            ("attempts_failed", self.attempts_failed),
            ("attempts_lost", self.attempts_lost),
            ("cpu_ns", self.cpu_ns),
            ("gpu_ns", self.gpu_ns),
            ("wall_ns", self.wall_ns),
            ("memory_bytes_max", self.memory_bytes_max),
            ("object_bytes", self.object_bytes),
            ("spilled_bytes", self.spilled_bytes),
            ("network_bytes", self.network_bytes),
            ("log_bytes", self.log_bytes),
            ("upload_bytes", self.upload_bytes),
        ]
    }

    /// Adds what was used elsewhere, or at another time.
    pub fn add(&mut self, other: &UsageAmounts) {
        for (own, more) in [
            (&mut self.tasks, other.tasks),
            (&mut self.attempts_succeeded, other.attempts_succeeded),
            (&mut self.attempts_failed, other.attempts_failed),
            (&mut self.attempts_lost, other.attempts_lost),
            (&mut self.cpu_ns, other.cpu_ns),
            (&mut self.gpu_ns, other.gpu_ns),
            (&mut self.wall_ns, other.wall_ns),
            (&mut self.object_bytes, other.object_bytes),
            (&mut self.spilled_bytes, other.spilled_bytes),
            (&mut self.network_bytes, other.network_bytes),
            (&mut self.log_bytes, other.log_bytes),
            (&mut self.upload_bytes, other.upload_bytes),
        ] {
            *own = own.saturating_add(more);
        }
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
    }

    /// Returns whether nothing was used.
    pub fn is_zero(&self) -> bool {
        *self == UsageAmounts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each amount has a name and is added.
    #[test]
    fn amounts_are_added() {
        let encoded: Vec<u8> = (1..=13).collect();
        let mut amounts: UsageAmounts = postcard::from_bytes(&encoded).unwrap();
        assert_eq!(amounts.named().map(|(_, value)| value), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
        amounts.add(&amounts.clone());
        assert_eq!(amounts.named().map(|(_, value)| value), [2, 4, 6, 8, 10, 12, 14, 8, 18, 20, 22, 24, 26]);
        assert!(!amounts.is_zero() && UsageAmounts::default().is_zero());
    }
}
