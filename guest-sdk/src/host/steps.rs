//! Steps of the test host: starts and resumptions of calls, restarts and checkpoints of actors.

use super::actors::{checkpoint_actor, restart_actor};
use super::call::CallState;
use super::calls::advance;
use super::program_host::{ProgramHost, host};

/// The next step of the test host.
enum Step {
    Start(u64),
    Resume(u64),
    Restart(u64),
    Checkpoint(u64),
}

/// Runs all steps that can run.
pub(super) fn settle() {
    while let Some(step) = host(ProgramHost::next) {
        match step {
            Step::Start(number) => advance(number, false),
            Step::Resume(number) => advance(number, true),
            Step::Restart(actor) => restart_actor(actor),
            Step::Checkpoint(actor) => checkpoint_actor(actor),
        }
    }
}

impl ProgramHost {
    /// Returns the next step. Calls run in the order of submission, and the calls of an actor in exactly this order.
    fn next(&mut self) -> Option<Step> {
        if let Some(step) = self.next_actor_step() {
            return Some(step);
        }
        let mut passed = Vec::new();
        let numbers: Vec<u64> = self.calls.keys().copied().collect();
        numbers.into_iter().find_map(|number| {
            let call = &self.calls[&number];
            let (actor, kind) = (call.actor, call.definition.kind);
            match &call.state {
                CallState::Running => None,
                CallState::Waiting(objects) => {
                    let objects = objects.clone();
                    let is_free = actor.and_then(|actor| self.actors.get(&actor)).is_some_and(|a| !a.is_busy());
                    let goes_on = is_free && objects.into_iter().any(|object| self.is_there(object));
                    goes_on.then_some(Step::Resume(number))
                }
                CallState::Queued => {
                    let needs = call.needs.clone();
                    if let Some(actor) = actor {
                        let is_first = !passed.contains(&actor);
                        passed.push(actor);
                        if !is_first || !self.is_free_for(actor, kind) {
                            return None;
                        }
                    }
                    needs.into_iter().all(|object| self.is_there(object)).then_some(Step::Start(number))
                }
            }
        })
    }

    /// Returns the next step that an actor needs.
    fn next_actor_step(&self) -> Option<Step> {
        self.actors.iter().filter(|(_, actor)| !actor.busy).find_map(|(number, actor)| {
            let every = actor.options.checkpoint_every.unwrap_or(1).max(1);
            let is_due = actor.hooks.is_some() && actor.state.is_some() && actor.calls_since_checkpoint >= every;
            match actor.restart_pending {
                true => Some(Step::Restart(*number)),
                false => is_due.then_some(Step::Checkpoint(*number)),
            }
        })
    }
}
