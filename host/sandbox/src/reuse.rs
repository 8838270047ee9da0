//! Reuses sandboxes: resets a sandbox to its initial state, at a third of the cost of a new one.
//!
//! Creating a sandbox takes longer than most small tasks run. The state that a call leaves behind is known: in the
//! host, [`SandboxState`]; in the guest, its memory and its globals. The code itself resets the globals (see
//! `rewrite`), and `memory_reset` resets the memory. The reset runs right after a call, so that nothing of it remains,
//! and a sandbox is reused only for calls of one job: calls of another job get a sandbox that was never used.
//!
//! A sandbox is dropped instead if its call failed, if its memory grew, if so much of it was written that new pages
//! from the kernel cost less, if it still has handles of WASI or of tensors, or if its code changes more than memory
//! and globals.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use sandbar_core::JobId;

use crate::program::Program;
use crate::sandbox::Sandbox;
use crate::services::{NoServices, Services};
use crate::state::SandboxState;

/// Maximum number of idle sandboxes: enough for tasks that wait for each other a few levels deep.
pub(crate) const IDLE_MAX: usize = 4;

/// The idle sandboxes of one thread.
#[derive(Clone, Default)]
pub struct IdleSandboxes(Rc<RefCell<VecDeque<IdleSandbox>>>);

/// A sandbox in its initial state.
struct IdleSandbox {
    job: JobId,
    program: Arc<Program>,
    sandbox: Sandbox,
}

impl IdleSandboxes {
    /// Returns the number of idle sandboxes.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Returns whether there is no idle sandbox.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Takes an idle sandbox for a task of a job.
    pub(crate) fn take(&self, job: JobId, program: &Arc<Program>) -> Option<Sandbox> {
        let mut kept = self.0.borrow_mut();
        let is_it = |kept: &IdleSandbox| kept.job == job && Arc::ptr_eq(&kept.program, program);
        let at = kept.iter().rposition(is_it)?;
        Some(kept.remove(at)?.sandbox)
    }

    /// Resets a sandbox after a successful call and keeps it, if it can be reset.
    pub(crate) fn keep(&self, job: JobId, program: &Arc<Program>, mut sandbox: Sandbox) {
        let Some(reuse) = program.reuse.as_ref() else { return };
        let state = sandbox.store.data_mut();
        if !state.overlays.is_empty() {
            // Overlays replaced pages, so the known regions are invalid.
            sandbox.written = None;
        }
        if !state.reset() || reuse.reset(state, &mut sandbox.written).is_none() {
            return;
        }
        let mut kept = self.0.borrow_mut();
        if kept.len() == IDLE_MAX {
            kept.pop_front();
        }
        kept.push_back(IdleSandbox { job, program: program.clone(), sandbox });
    }
}

impl SandboxState {
    /// Prepares the state for another task.
    pub(crate) fn serve(&mut self, services: Box<dyn Services>, seed: u64) {
        self.services = services;
        self.seed = seed;
    }

    /// Resets the state. Returns whether that was possible.
    fn reset(&mut self) -> bool {
        self.services = Box::new(NoServices);
        self.overlays.clear();
        self.limiter.begin();
        self.panic = None;
        self.output = None;
        // Without open handles, WASI can be created again on its next use.
        self.wasi.take().is_none_or(|wasi| wasi.has_no_handles()) && self.handles == 0
    }
}
