//! Limits of the tenant API: how much of each kind a tenant, and all tenants together, may do on a node at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_wire::Name;

use super::tenant_messages::TenantResponse;

/// A kind of work of the tenant API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DoorUse {
    /// A request that has not been read yet.
    Opening,
    /// A short request.
    Request,
    /// Following of a job.
    Follow,
    /// A submission, with its uploads and the compilation of its component.
    Submission,
    /// The download of an output.
    Download,
}

/// Maximum concurrent uses of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UseLimits {
    /// Of one tenant.
    per_tenant_max: usize,
    /// Of all tenants. A tenant may have one use even if others have as many.
    node_max: usize,
}

impl DoorUse {
    fn limits(self) -> UseLimits {
        match self {
            DoorUse::Opening => UseLimits { per_tenant_max: 32, node_max: 256 },
            DoorUse::Request => UseLimits { per_tenant_max: 32, node_max: 256 },
            DoorUse::Follow => UseLimits { per_tenant_max: 64, node_max: 1024 },
            DoorUse::Submission | DoorUse::Download => UseLimits { per_tenant_max: 4, node_max: 64 },
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            DoorUse::Opening | DoorUse::Request => "requests",
            DoorUse::Follow => "followed jobs",
            DoorUse::Submission => "submissions",
            DoorUse::Download => "downloads",
        }
    }
}

/// Current uses of the tenant API.
#[derive(Debug, Default)]
pub(crate) struct Door(Mutex<BTreeMap<(DoorUse, Name), usize>>);

/// A use, until it is dropped.
#[derive(Debug)]
pub(crate) struct DoorPermit {
    door: Arc<Door>,
    key: (DoorUse, Name),
}

impl Door {
    /// Permits one more use, or rejects it for now.
    pub(crate) fn enter(self: &Arc<Door>, tenant: &Name, kind: DoorUse) -> Result<DoorPermit, TenantResponse> {
        let (mut uses, limits) = (self.lock(), kind.limits());
        let key = (kind, tenant.clone());
        let own = uses.get(&key).copied().unwrap_or(0);
        let all = || uses.iter().filter(|((other, _), _)| *other == kind).map(|(_, count)| count).sum::<usize>();
        let (of, max) = match own {
            own if own >= limits.per_tenant_max => ("the tenant", limits.per_tenant_max),
            own if own > 0 && all() >= limits.node_max => ("the node", limits.node_max),
            _ => {
                *uses.entry(key.clone()).or_default() += 1;
                return Ok(DoorPermit { door: self.clone(), key });
            }
        };
        let kind = kind.as_str();
        Err(TenantResponse::RetryLater(format!("{of} has {max} {kind} at once, the limit")))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(DoorUse, Name), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DoorPermit {
    fn drop(&mut self) {
        let mut uses = self.door.lock();
        if let Some(count) = uses.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                uses.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_its_uses_whatever_others_do() {
        let door = Arc::new(Door::default());
        let tenant = |number: usize| -> Name { format!("t{number}").parse().unwrap() };
        let limits = DoorUse::Submission.limits();
        let tenants = limits.node_max / limits.per_tenant_max;
        let mut permits = Vec::new();
        for number in 0..tenants {
            for _ in 0..limits.per_tenant_max {
                permits.push(door.enter(&tenant(number), DoorUse::Submission).unwrap());
            }
        }
        let refused = |number, kind| match door.enter(&tenant(number), kind) {
            Ok(_) => String::new(),
            Err(TenantResponse::RetryLater(reason)) => reason,
            Err(other) => format!("{other:?}"),
        };
        assert_eq!(refused(0, DoorUse::Submission), "the tenant has 4 submissions at once, the limit");
        assert_eq!(refused(0, DoorUse::Request), "");
        permits.push(door.enter(&tenant(tenants), DoorUse::Submission).unwrap());
        assert_eq!(refused(tenants, DoorUse::Submission), "the node has 64 submissions at once, the limit");
        permits.truncate(limits.node_max - 1);
        assert_eq!(refused(tenants, DoorUse::Submission), "");
        permits.clear();
        assert!(door.lock().is_empty());
    }
}
