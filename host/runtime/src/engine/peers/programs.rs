//! Programs of other nodes, and tasks that wait until their program is loaded.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use sandbar_core::{Code, ComponentId, Fault, Limits, NodeId, ObjectId, TenantId};

use super::super::context::Context;
use super::executor::RemoteTask;
use super::limits::{PROGRAMS_MAX, WAITING_TASKS_MAX, check_number};
use crate::calls::Program;
use crate::peer::{LoadResult, PeerMessage, RemoteTaskSpec, RemoteWork, TenantComponent};

/// Programs of other nodes, by the node and its number of the program.
#[derive(Default)]
pub(super) struct Programs(BTreeMap<(NodeId, u32), ProgramState>);

enum ProgramState {
    Loading {
        component: ComponentId,
        /// Frames of tasks that wait for the program, in order.
        waiting: Vec<Vec<u8>>,
    },
    Loaded(LoadResult),
}

/// Outcome of [`Programs::get_or_wait`].
pub(super) enum Lookup {
    Loaded(LoadResult),
    /// The task waits for the program.
    Waits,
}

/// A program that a node has described.
pub(super) struct IntroducedProgram {
    /// Number of the program on that node.
    pub(super) program: u32,
    pub(super) tenant: TenantId,
    pub(super) component: ComponentId,
    pub(super) limits: Limits,
}

impl Programs {
    /// Loads a program that a node has described. `own` are the programs of this node's jobs of the same tenant.
    ///
    /// # Errors
    /// The node has described too many programs.
    pub(super) fn load(
        &mut self,
        cx: &mut Context,
        node: NodeId,
        introduced: IntroducedProgram,
        mut own: impl Iterator<Item = Arc<Program>>,
    ) -> io::Result<()> {
        let IntroducedProgram { program, tenant, component, limits } = introduced;
        if !cx.peers.contains(node) || self.0.contains_key(&(node, program)) {
            return Ok(());
        }
        check_number(self.of_node(node).count(), PROGRAMS_MAX, "programs")?;
        if let Some(own) = own.find(|own| own.compiled.id() == component) {
            self.0.insert((node, program), ProgramState::Loaded(Ok(own)));
        } else if cx.driver.has_peers() {
            self.0.insert((node, program), ProgramState::Loading { component, waiting: Vec::new() });
            let limits = limits.within(&cx.options.task_limits);
            cx.driver.load(node, program, TenantComponent { tenant, component, limits });
        } else {
            let fault = Fault::new(Code::Host, "this node runs nothing for others");
            self.0.insert((node, program), ProgramState::Loaded(Err(fault)));
        }
        Ok(())
    }

    fn of_node(&mut self, node: NodeId) -> impl Iterator<Item = &mut ProgramState> {
        self.0.range_mut((node, 0)..=(node, u32::MAX)).map(|(_, state)| state)
    }

    /// A program was loaded. Returns the frames of the tasks that waited for it.
    pub(super) fn loaded(&mut self, cx: &Context, node: NodeId, program: u32, loaded: LoadResult) -> Vec<Vec<u8>> {
        if !cx.peers.contains(node) {
            return Vec::new();
        }
        match self.0.insert((node, program), ProgramState::Loaded(loaded)) {
            Some(ProgramState::Loading { waiting, .. }) => waiting,
            _ => Vec::new(),
        }
    }

    /// Returns a program that is loaded.
    pub(super) fn get(&self, node: NodeId, program: u32) -> Option<Arc<Program>> {
        match self.0.get(&(node, program))? {
            ProgramState::Loaded(Ok(program)) => Some(program.clone()),
            _ => None,
        }
    }

    /// Returns the program of a task, or has the task's frame wait for it. `own` returns the program of the task's job if
    /// this node is its root: what tasks of its own jobs create here, they create before anything that follows.
    ///
    /// # Errors
    /// The node has not described the program, or too many of its tasks wait.
    pub(super) fn get_or_wait(
        &mut self,
        node: NodeId,
        program: u32,
        frame: &[u8],
        own: impl FnOnce() -> Option<Arc<Program>>,
    ) -> io::Result<Lookup> {
        match self.0.get_mut(&(node, program)) {
            Some(ProgramState::Loading { component, waiting }) => {
                if let Some(own) = own().filter(|own| own.compiled.id() == *component) {
                    return Ok(Lookup::Loaded(Ok(own)));
                }
                check_number(waiting.len(), WAITING_TASKS_MAX, "tasks that wait for a program")?;
                waiting.push(frame.to_vec());
                Ok(Lookup::Waits)
            }
            Some(ProgramState::Loaded(loaded)) => Ok(Lookup::Loaded(loaded.clone())),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "a task of an unknown program")),
        }
    }

    /// Removes waiting tasks, and releases the objects that were lent for them.
    pub(super) fn remove_waiting(
        &mut self,
        cx: &mut Context,
        node: NodeId,
        is_removed: impl Fn(&RemoteTaskSpec<'_>) -> bool,
    ) -> Vec<RemoteTask> {
        let (mut removed, mut lent) = (Vec::new(), Vec::new());
        for state in self.of_node(node) {
            let ProgramState::Loading { waiting, .. } = state else { continue };
            waiting.retain(|frame| match postcard::from_bytes(frame) {
                Ok(PeerMessage::Submit(spec)) if is_removed(&spec) => {
                    removed.push(RemoteTask { task: spec.task, attempt: spec.attempt, slot: spec.slot });
                    lent.extend(spec.needs.into_iter().chain(spec.refs));
                    false
                }
                _ => true,
            });
        }
        lent.into_iter().for_each(|object| cx.peers.send(node, &PeerMessage::Release(object, 1)));
        removed
    }

    /// Removes the waiting creation of an actor whose handle was released.
    pub(super) fn handle_released(&mut self, cx: &mut Context, node: NodeId, handle: ObjectId) {
        if cx.scheduler.object(handle).is_none() {
            let is_it = |spec: &RemoteTaskSpec<'_>| {
                spec.task.returns(0) == handle && matches!(spec.work, RemoteWork::CreateActor { .. })
            };
            self.remove_waiting(cx, node, is_it);
        }
    }

    pub(super) fn node_lost(&mut self, node: NodeId) {
        self.0.retain(|(program_node, _), _| *program_node != node);
    }
}
