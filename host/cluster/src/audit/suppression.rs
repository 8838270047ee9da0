//! Suppression of refusals: a tenant that is refused again and again must not fill the log.

use std::collections::BTreeMap;

/// Refusals that are recorded at once, and per second in the long run.
const BURST: u64 = 20;
const INTERVAL_MS: u64 = 1000;
/// Maximum number of tenants that are remembered. Others share one place.
const TENANTS_MAX: usize = 2000;

/// The refusals of each tenant, and of all without one.
#[derive(Debug, Default)]
pub(crate) struct Suppression(BTreeMap<String, Refusals>);

#[derive(Debug)]
struct Refusals {
    /// Time at which all of the burst is free again.
    free_at_ms: u64,
    /// Refusals that were not recorded.
    suppressed: u64,
}

impl Suppression {
    /// Returns how many refusals were not recorded before this one; `None` if this one isn't either.
    pub(crate) fn record_refusal(&mut self, tenant: &str, now_ms: u64) -> Option<u64> {
        let tenant = if self.0.contains_key(tenant) || self.0.len() < TENANTS_MAX { tenant } else { "" };
        let refusals = self.0.entry(tenant.to_owned()).or_insert(Refusals { free_at_ms: now_ms, suppressed: 0 });
        let free_at_ms = refusals.free_at_ms.max(now_ms) + INTERVAL_MS;
        if free_at_ms - now_ms > BURST * INTERVAL_MS {
            refusals.suppressed += 1;
            return None;
        }
        refusals.free_at_ms = free_at_ms;
        Some(std::mem::take(&mut refusals.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_beyond_a_burst_are_counted() {
        let mut suppression = Suppression::default();
        let recorded = (0..100).filter(|_| suppression.record_refusal("ada", 5).is_some()).count();
        assert_eq!(recorded as u64, BURST);
        assert_eq!(suppression.record_refusal("bob", 5), Some(0), "others are recorded");
        assert_eq!(suppression.record_refusal("ada", 5 + INTERVAL_MS), Some(100 - BURST));
        assert_eq!(suppression.record_refusal("ada", 5 + INTERVAL_MS), None);
    }

    #[test]
    fn tenants_are_limited() {
        let mut suppression = Suppression::default();
        for tenant in 0..10_000 {
            suppression.record_refusal(&tenant.to_string(), 0);
        }
        assert!(suppression.0.len() <= TENANTS_MAX + 1);
    }
}
