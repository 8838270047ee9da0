//! What jobs and tenants use at once, and how much of it a tenant may use.

use sandbar_core::{Code, Fault};

use crate::event::{DailyAmounts, TenantLimits};

/// Bytes of memory that the records of an unfinished task take, without its call, and those of an object, without its value.
const TASK_BYTES: u64 = 768;
const OBJECT_BYTES: u64 = 256;
/// Bytes beyond a tenant's memory whose only purpose is to carry the error of the limit.
const ERROR_BYTES_MAX: u64 = 16 << 20;

/// Bytes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ValueBytes {
    /// Bytes in the memory of this process.
    pub memory: u64,
    /// Bytes in the object store, in memory or on disk.
    pub stored: u64,
}

/// What a job, a tenant, or all tenants use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// Unfinished tasks.
    pub(crate) tasks: u64,
    pub(crate) objects: u64,
    /// Actors that have not ended.
    pub(crate) actors: u64,
    /// Bytes of the calls of unfinished tasks, without those of actor creators.
    pub(crate) call_bytes: u64,
    /// Bytes of values.
    pub(crate) values: ValueBytes,
}

impl Usage {
    /// Returns the bytes of this process's memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.queued_bytes() + self.objects * OBJECT_BYTES + self.values.memory
    }

    /// Returns the bytes of this process's memory that are free once the tasks have run.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.tasks * TASK_BYTES + self.call_bytes
    }

    /// Subtracts what a job used that has ended.
    pub(crate) fn subtract(&mut self, other: &Usage) {
        self.tasks -= other.tasks;
        self.objects -= other.objects;
        self.actors -= other.actors;
        self.call_bytes -= other.call_bytes;
        self.values.memory -= other.values.memory;
        self.values.stored -= other.values.stored;
    }
}

impl TenantLimits {
    /// Checks whether a tenant may have one more task.
    pub(crate) fn check_task(&self, usage: &Usage) -> Result<(), Fault> {
        if usage.tasks < self.tasks_max {
            return Ok(());
        }
        let message = format!(
            "its tenant would have {} unfinished tasks, the limit is {} (tasks-max): have fewer at once, or ask the operator",
            usage.tasks + 1,
            self.tasks_max
        );
        Err(Fault::new(Code::TenantLimit, message))
    }

    /// Checks whether a tenant may have one more actor.
    pub(crate) fn check_actor(&self, usage: &Usage) -> Result<(), Fault> {
        if usage.actors < self.actors_max {
            return Ok(());
        }
        let message = format!(
            "its tenant would have {} actors, the limit is {} (actors-max): end some, also those that outlive their jobs \
             (`host list actors`), or ask the operator",
            usage.actors + 1,
            self.actors_max
        );
        Err(Fault::new(Code::TenantLimit, message))
    }

    /// Checks whether a tenant may use this many further bytes for values, and memory for more tasks and objects.
    pub(crate) fn check_bytes(&self, usage: &Usage, added: ValueBytes) -> Result<(), Fault> {
        let memory = usage.memory_bytes().saturating_add(added.memory);
        let stored = usage.values.stored.saturating_add(added.stored);
        let (bytes, max, what, name) = if memory > self.memory_bytes_max {
            (
                memory,
                self.memory_bytes_max,
                "of the node's memory for tasks, calls and small values",
                "memory-bytes-max",
            )
        } else if added.stored > 0 && stored > self.object_bytes_max {
            (stored, self.object_bytes_max, "of objects", "object-bytes-max")
        } else {
            return Ok(());
        };
        let message = format!(
            "its tenant would use {bytes} bytes {what}, the limit is {max} ({name}): have less at once, or ask the operator"
        );
        Err(Fault::new(Code::TenantLimit, message))
    }

    /// Checks whether a tenant that has used this much today may start something new.
    pub(crate) fn check_budget(&self, used: &DailyAmounts) -> Result<(), Fault> {
        let max = &self.daily_max;
        let seconds = |nanos: u64| nanos / 1_000_000_000;
        let (used, max, what, name) = if used.cpu_nanos >= max.cpu_nanos {
            (seconds(used.cpu_nanos), seconds(max.cpu_nanos), "seconds of CPU time", "cpu-seconds-per-day-max")
        } else if used.gpu_nanos >= max.gpu_nanos {
            (seconds(used.gpu_nanos), seconds(max.gpu_nanos), "seconds of GPU time", "gpu-seconds-per-day-max")
        } else if used.network_bytes >= max.network_bytes {
            (used.network_bytes, max.network_bytes, "bytes from other nodes", "network-bytes-per-day-max")
        } else if used.log_bytes >= max.log_bytes {
            (used.log_bytes, max.log_bytes, "bytes of log lines", "log-bytes-per-day-max")
        } else {
            return Ok(());
        };
        let message = format!(
            "its tenant has used {used} {what} on this node today, the limit is {max} ({name}): wait until 00:00 UTC, or ask \
             the operator"
        );
        Err(Fault::new(Code::TenantLimit, message))
    }

    /// Whether an object may carry an error, though the tenant has no memory left.
    pub(crate) fn has_room_for_error(&self, usage: &Usage) -> bool {
        usage.memory_bytes() < self.memory_bytes_max.saturating_add(ERROR_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_limit_that_is_exceeded_is_named() {
        let limits =
            TenantLimits { tasks_max: 2, memory_bytes_max: 10_000, object_bytes_max: 5_000, ..TenantLimits::default() };
        let usage = |tasks, objects, call_bytes, memory, stored| Usage {
            tasks,
            objects,
            actors: 0,
            call_bytes,
            values: ValueBytes { memory, stored },
        };
        for (usage, added, expected) in [
            (usage(0, 0, 0, 0, 0), ValueBytes::default(), Ok(())),
            (usage(0, 0, 0, 9_000, 0), ValueBytes { memory: 1_000, stored: 0 }, Ok(())),
            (
                usage(0, 0, 0, 9_000, 0),
                ValueBytes { memory: 1_001, stored: 0 },
                Err("10001 bytes of the node's memory"),
            ),
            (usage(1, 1, 9_000, 0, 0), ValueBytes::default(), Err("10024 bytes of the node's memory")),
            (usage(0, 0, 0, 0, 5_000), ValueBytes::default(), Ok(())),
            (usage(0, 0, 0, 0, 5_000), ValueBytes { memory: 0, stored: 1 }, Err("5001 bytes of objects")),
            (usage(0, 0, 0, 0, 6_000), ValueBytes { memory: 7, stored: 0 }, Ok(())),
        ] {
            let checked = limits.check_bytes(&usage, added);
            match expected {
                Ok(()) => assert_eq!(checked, Ok(()), "{usage:?} {added:?}"),
                Err(text) => assert!(checked.unwrap_err().message.contains(text), "{usage:?} {added:?}"),
            }
        }
        assert_eq!(limits.check_task(&usage(1, 0, 0, 0, 0)), Ok(()));
        assert!(
            limits.check_task(&usage(2, 0, 0, 0, 0)).unwrap_err().message.contains("would have 3 unfinished tasks")
        );
    }
}
