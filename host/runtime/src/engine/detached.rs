//! Detached actors: they are of a tenant, outlive the jobs that create them, and end on request.

use std::collections::BTreeSet;

use sandbar_core::{ActorId, TenantId};
use sandbar_jobs::{ActorRow, JobFolderLimits};
use sandbar_sched::{ActorState, ActorView, Event};

use super::Engine;
use super::context::Context;
use super::inspect::Inspection;

impl Engine {
    /// Lists the detached actors of a tenant.
    pub(crate) fn detached_actors(&self, tenant: TenantId) -> Vec<ActorRow> {
        let Some(job) = self.cx.detached_jobs.get(&tenant) else { return Vec::new() };
        let inspection = Inspection { cx: &self.cx, jobs: &self.jobs, deadlocks: &self.deadlocks };
        inspection.list_actors(*job, JobFolderLimits::DEFAULT.rows_max as usize).rows
    }

    /// Ends the detached actor of a tenant with this name or short id. Returns whether there is one.
    pub(crate) fn end_detached_actor(&mut self, tenant: TenantId, text: &str) -> bool {
        let found = find(&self.cx, tenant, text);
        if let Some(actor) = found {
            self.cx.step(Event::Killed { actor, restart: false });
            self.run_effects();
        }
        found.is_some()
    }

    /// Ends the detached actors of tenants that do not exist any more. The machine's own user always exists.
    pub(crate) fn keep_tenants(&mut self, tenants: &BTreeSet<TenantId>) {
        let is_removed = |tenant: &TenantId| *tenant != TenantId::DEFAULT && !tenants.contains(tenant);
        let removed: Vec<TenantId> = self.cx.detached_jobs.keys().copied().filter(is_removed).collect();
        for tenant in removed {
            if let Some(job) = self.cx.detached_jobs.remove(&tenant) {
                self.cx.step(Event::JobEnded { job });
            }
        }
        self.run_effects();
    }
}

fn find(cx: &Context, tenant: TenantId, text: &str) -> Option<ActorId> {
    let job = *cx.detached_jobs.get(&tenant)?;
    let is_it = |actor: &ActorView<'_>| {
        let has_name = actor.name.is_some_and(|name| name.as_ref() == text);
        actor.job == job && actor.state != ActorState::Dead && (has_name || actor.id.creation_task().short() == text)
    };
    cx.scheduler.actors().find(is_it).map(|actor| actor.id)
}
