//! Loaded programs, which jobs of one tenant and the same component share.

use std::sync::Arc;

use sandbar_core::{ComponentId, Limits, TenantId};
use sandbar_runtime::Program;

/// Maximum number of programs of a tenant, and of those of all other nodes.
const PROGRAMS_MAX: usize = 16;

/// The last used programs, the most recent one last. No tenant evicts programs of others, or learns that they are loaded.
#[derive(Default)]
pub(crate) struct ProgramCache(Vec<CachedProgram>);

struct CachedProgram {
    tenant: TenantId,
    component: ComponentId,
    limits: Limits,
    program: Arc<Program>,
}

impl ProgramCache {
    /// Returns a program, which becomes the most recent one. The tenant of other nodes' programs is the default.
    pub(crate) fn get(&mut self, tenant: TenantId, component: ComponentId, limits: Limits) -> Option<Arc<Program>> {
        let is_it =
            |cached: &CachedProgram| (cached.tenant, cached.component, cached.limits) == (tenant, component, limits);
        let found = self.0.remove(self.0.iter().position(is_it)?);
        let program = found.program.clone();
        self.0.push(found);
        Some(program)
    }

    /// Inserts a program. Returns the cached one, which another task may have loaded concurrently.
    pub(crate) fn insert(
        &mut self,
        tenant: TenantId,
        component: ComponentId,
        limits: Limits,
        program: Arc<Program>,
    ) -> Arc<Program> {
        if let Some(cached) = self.get(tenant, component, limits) {
            return cached;
        }
        let of_tenant = |cached: &CachedProgram| cached.tenant == tenant;
        if self.0.iter().filter(|cached| of_tenant(cached)).count() >= PROGRAMS_MAX
            && let Some(oldest) = self.0.iter().position(of_tenant)
        {
            self.0.remove(oldest);
        }
        self.0.push(CachedProgram { tenant, component, limits, program: program.clone() });
        program
    }

    /// Removes the programs of tenants that `exists` does not know.
    pub(crate) fn remove_others(&mut self, exists: impl Fn(TenantId) -> bool) {
        self.0.retain(|cached| cached.tenant == TenantId::DEFAULT || exists(cached.tenant));
    }
}
