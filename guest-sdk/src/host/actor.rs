//! Actors of the test host: the state of each.

use sandbar_core::{ActorOptions, Argument, Fault};

use super::encoded_value::EncodedValue;
use crate::actor::ActorState;
use crate::registry::TaskDefinition;

pub(super) struct Actor {
    pub(super) creation: CreationCall,
    /// Its `checkpoint` and `restore`.
    pub(super) hooks: Option<[&'static TaskDefinition; 2]>,
    pub(super) name: Option<String>,
    pub(super) options: ActorOptions,
    /// None before the creation, and while a call uses it.
    pub(super) state: ActorState,
    /// Whether a part of a call runs, or the actor is being created.
    pub(super) busy: bool,
    /// Set when the actor was killed while it ran: whether it restarts.
    pub(super) kill_requested: Option<bool>,
    pub(super) restart_pending: bool,
    pub(super) restarts: u32,
    /// Calls that have finished since the last checkpoint.
    pub(super) calls_since_checkpoint: u32,
    pub(super) saved: Option<EncodedValue>,
    pub(super) died: Option<Fault>,
}

/// The call that creates an actor.
#[derive(Clone)]
pub(super) struct CreationCall {
    pub(super) definition: &'static TaskDefinition,
    pub(super) chain: Vec<String>,
    pub(super) arguments: Vec<u8>,
    /// Objects in place of arguments.
    pub(super) needs: Vec<u64>,
    /// Objects inside arguments.
    pub(super) refs: Vec<u64>,
}

impl Actor {
    /// Takes the state for a part of a call.
    pub(super) fn take_state(&mut self) -> ActorState {
        self.busy = true;
        self.state.take()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    pub(super) fn chain_of(&self, hook: &TaskDefinition) -> Vec<String> {
        let mut chain = self.creation.chain.clone();
        chain.pop();
        chain.push(hook.name.to_owned());
        chain
    }

    pub(super) fn creation_call(&self) -> CreationCall {
        match (&self.saved, self.hooks) {
            (Some((bytes, contains)), Some([_, restore])) => {
                let arguments = postcard::to_stdvec(&[Argument::Value(bytes)][..]).expect("an argument is bytes");
                let (chain, refs) = (self.chain_of(restore), contains.clone());
                CreationCall { definition: restore, chain, arguments, needs: Vec::new(), refs }
            }
            _ => self.creation.clone(),
        }
    }
}
