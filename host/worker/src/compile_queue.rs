//! The queue of compilations: few at a time, one of each tenant, within a budget of memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sandbar_core::{ComponentId, Fault, TenantId};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Address space of a compiling process: a part for any component, and one for each byte of the component.
const ADDRESS_SPACE_BYTES: u64 = 2 << 30;
const ADDRESS_SPACE_BYTES_PER_BYTE: u64 = 1 << 10;
const ADDRESS_SPACE_BYTES_MAX: u64 = 16 << 30;
/// Processor time of a compiling process: a part for any component, and one for each mebibyte of the component.
const CPU_SECONDS: u64 = 30;
const CPU_SECONDS_PER_MIB: u64 = 60;
const CPU_SECONDS_MAX: u64 = 600;
/// Part of the address space that the allocator reserves and does not use.
const RESERVED_BYTES: u64 = 1 << 30;
/// Maximum compilations at a time.
const COMPILATIONS_MAX: u64 = 8;
/// Memory for all compilations if that of the machine is unknown, and its minimum.
const BUDGET_BYTES_MIN: u64 = 1 << 30;
/// Time for which a failed compilation is remembered.
const FAILURE_TIME: Duration = Duration::from_secs(600);
/// Maximum remembered failures of a tenant.
const FAILURES_MAX: usize = 64;

/// Resource limits of a compiling process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompileLimits {
    pub(crate) address_space_bytes: u64,
    pub(crate) cpu_seconds: u64,
}

impl CompileLimits {
    /// Returns the limits for a component of `bytes` bytes.
    pub(crate) fn of(bytes: u64) -> CompileLimits {
        let address_space_bytes =
            ADDRESS_SPACE_BYTES.saturating_add(bytes.saturating_mul(ADDRESS_SPACE_BYTES_PER_BYTE));
        let cpu_seconds = CPU_SECONDS.saturating_add((bytes >> 10).saturating_mul(CPU_SECONDS_PER_MIB) >> 10);
        CompileLimits {
            address_space_bytes: address_space_bytes.min(ADDRESS_SPACE_BYTES_MAX),
            cpu_seconds: cpu_seconds.min(CPU_SECONDS_MAX),
        }
    }
}

/// Order of compilations. Each tenant has one at a time and one that waits, in the order of arrival among tenants.
#[derive(Debug)]
pub(crate) struct CompileQueue {
    /// One permit for each mebibyte.
    memory: Arc<Semaphore>,
    budget_mib: u32,
    /// Minimum permits of a compilation, which bound how many there are.
    share_mib: u32,
    turns: Mutex<BTreeMap<TenantId, Arc<tokio::sync::Mutex<()>>>>,
    failures: Mutex<BTreeMap<(TenantId, ComponentId), (Instant, Fault)>>,
}

/// Permission to compile, until it is dropped.
#[derive(Debug)]
pub(crate) struct CompileTurn {
    _memory: Option<OwnedSemaphorePermit>,
    _of_tenant: Option<OwnedMutexGuard<()>>,
}

impl CompileQueue {
    /// Creates the queue of a machine with this many cores and bytes of memory, of which it uses a quarter.
    pub(crate) fn new(cores: usize, memory_bytes: Option<u64>) -> CompileQueue {
        let budget = (memory_bytes.unwrap_or(0) / 4).max(BUDGET_BYTES_MIN) >> 20;
        let budget_mib =
            u32::try_from(budget).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS.try_into().unwrap_or(u32::MAX));
        let count = u32::try_from(cores as u64).unwrap_or(u32::MAX).clamp(1, COMPILATIONS_MAX as u32);
        CompileQueue {
            memory: Arc::new(Semaphore::new(budget_mib as usize)),
            budget_mib,
            share_mib: budget_mib / count,
            turns: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// Waits for the tenant's turn. The machine's own user may compile several components at a time.
    pub(crate) async fn enter(&self, tenant: TenantId, limits: CompileLimits) -> CompileTurn {
        let of_tenant = match tenant {
            TenantId::DEFAULT => None,
            tenant => Some(self.turn_of(tenant).lock_owned().await),
        };
        // The semaphore is fair, and each tenant waits for it once.
        let permits = self.permits(limits);
        CompileTurn { _memory: self.memory.clone().acquire_many_owned(permits).await.ok(), _of_tenant: of_tenant }
    }

    fn permits(&self, limits: CompileLimits) -> u32 {
        let mib = limits.address_space_bytes.saturating_sub(RESERVED_BYTES) >> 20;
        u32::try_from(mib).unwrap_or(u32::MAX).clamp(self.share_mib, self.budget_mib)
    }

    fn turn_of(&self, tenant: TenantId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(tenant).or_default().clone()
    }

    /// Returns why a component could not be compiled a while ago.
    pub(crate) fn failure(&self, tenant: TenantId, component: ComponentId) -> Option<Fault> {
        let failures = self.failures();
        let (failed, fault) = failures.get(&(tenant, component))?;
        (failed.elapsed() < FAILURE_TIME).then(|| fault.clone())
    }

    /// Remembers that a component could not be compiled.
    pub(crate) fn remember_failure(&self, tenant: TenantId, component: ComponentId, fault: &Fault) {
        let mut failures = self.failures();
        failures.retain(|_, (failed, _)| failed.elapsed() < FAILURE_TIME);
        let of_tenant = failures.iter().filter(|((other, _), _)| *other == tenant);
        let (count, oldest) = (of_tenant.clone().count(), of_tenant.min_by_key(|(_, (failed, _))| *failed));
        if let Some(oldest) = oldest.map(|(key, _)| *key).filter(|_| count >= FAILURES_MAX) {
            failures.remove(&oldest);
        }
        failures.insert((tenant, component), (Instant::now(), fault.clone()));
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<(TenantId, ComponentId), (Instant, Fault)>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use sandbar_core::Code;

    use super::*;

    const SMALL: CompileLimits = CompileLimits { address_space_bytes: 2 << 30, cpu_seconds: 1 };

    #[test]
    fn limits_grow_with_the_component() {
        for (bytes, address_space_bytes, cpu_seconds) in [
            (0, 2 << 30, 30),
            (1 << 20, 3 << 30, 90),
            (8 << 20, 10 << 30, 510),
            (256 << 20, 16 << 30, 600),
            (u64::MAX, 16 << 30, 600),
        ] {
            assert_eq!(CompileLimits::of(bytes), CompileLimits { address_space_bytes, cpu_seconds }, "{bytes}");
        }
    }

    #[tokio::test]
    async fn tenants_take_turns() {
        let queue = CompileQueue::new(2, Some(16 << 30));
        let [ada, bob, eve] = [1, 2, 3].map(TenantId);
        let first = queue.enter(ada, SMALL).now_or_never().expect("the queue is empty");
        assert!(queue.enter(ada, SMALL).now_or_never().is_none(), "one at a time of a tenant");
        let second = queue.enter(bob, SMALL).now_or_never().expect("two at a time");
        // A hundred more of ada wait before eve arrives.
        let mut of_ada: Vec<_> = (0..100).map(|_| Box::pin(queue.enter(ada, SMALL))).collect();
        assert!(of_ada.iter_mut().all(|turn| turn.now_or_never().is_none()));
        let mut of_eve = Box::pin(queue.enter(eve, SMALL));
        assert!((&mut of_eve).now_or_never().is_none());
        drop(second);
        let third = of_eve.now_or_never().expect("no other tenant waits for the budget");
        drop(first);
        assert!((&mut of_ada[0]).now_or_never().is_some());
        drop((third, of_ada));
        assert!(queue.enter(ada, SMALL).now_or_never().is_some());
        assert_eq!(queue.turns.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn compilations_share_the_memory() {
        let queue = CompileQueue::new(8, Some(16 << 30));
        let large = CompileLimits { address_space_bytes: 4 << 30, cpu_seconds: 1 };
        let turn = queue.enter(TenantId(1), large).now_or_never().expect("3 of 4 GiB");
        assert!(queue.enter(TenantId(2), large).now_or_never().is_none());
        let other = queue.enter(TenantId::DEFAULT, SMALL).now_or_never().expect("1 of 4 GiB");
        drop(turn);
        drop(other);
        // More than there is: it is alone.
        let all = queue.enter(TenantId(2), CompileLimits::of(u64::MAX)).now_or_never().expect("4 of 4 GiB");
        assert!(queue.enter(TenantId(3), SMALL).now_or_never().is_none());
        drop(all);
    }

    #[test]
    fn failures_are_remembered_within_their_tenant() {
        let queue = CompileQueue::new(1, None);
        let component = |number: usize| ComponentId::from_digest([number as u8; 32]);
        let fault = Fault::new(Code::Compile, "too large");
        queue.remember_failure(TenantId(1), component(0), &fault);
        assert_eq!(queue.failure(TenantId(1), component(0)), Some(fault.clone()));
        assert_eq!(queue.failure(TenantId(2), component(0)), None);
        for number in 0..2 * FAILURES_MAX {
            queue.remember_failure(TenantId(2), component(number), &fault);
        }
        assert_eq!(queue.failures().len(), FAILURES_MAX + 1);
        assert!(queue.failure(TenantId(1), component(0)).is_some());
        assert!(queue.failure(TenantId(2), component(2 * FAILURES_MAX - 1)).is_some());
    }
}
