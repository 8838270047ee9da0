//! Calls of the test host: the state of each.

use sandbar_core::TaskError;

use super::actor::CreationCall;
use super::encoded_value::EncodedValue;
use crate::registry::TaskDefinition;

pub(super) struct Call {
    pub(super) definition: &'static TaskDefinition,
    /// Names of the calling tasks, and its own.
    pub(super) chain: Vec<String>,
    /// Arguments in the encoding of the contract.
    pub(super) arguments: Vec<u8>,
    pub(super) needs: Vec<u64>,
    pub(super) refs: Vec<u64>,
    pub(super) returns: u32,
    /// The actor that the call creates, or whose method it is.
    pub(super) actor: Option<u64>,
    pub(super) state: CallState,
}

/// State of a call.
#[derive(Debug, PartialEq)]
pub(super) enum CallState {
    Queued,
    Running,
    /// Waits for one of these objects.
    Waiting(Vec<u64>),
}

/// A running part of a call.
#[derive(Default)]
pub(super) struct CallFrame {
    pub(super) chain: Vec<String>,
    /// Results so far.
    pub(super) returned: Vec<EncodedValue>,
    /// Items so far.
    pub(super) yielded: Vec<EncodedValue>,
    /// Another task's error that this task is about to fail with.
    pub(super) failure: Option<TaskError>,
    pub(super) awaits: Vec<u64>,
    /// Whether the call panicked: its instance can't be used any more.
    pub(super) panicked: bool,
}

/// The results of a finished call, or its error.
pub(super) type CallResult = Result<Vec<EncodedValue>, TaskError>;

impl Call {
    pub(super) fn waits(&self) -> bool {
        matches!(self.state, CallState::Waiting(_))
    }

    /// Copies the call for the actor that it creates: the first time and for restarts.
    pub(super) fn creation_call(&self) -> CreationCall {
        CreationCall {
            definition: self.definition,
            chain: self.chain.clone(),
            arguments: self.arguments.clone(),
            needs: self.needs.clone(),
            refs: self.refs.clone(),
        }
    }
}
