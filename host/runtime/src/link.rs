//! Connections to workers' processes and to clients in this process.

use std::io;

use sandbar_core::{Limits, TaskKind};
use sandbar_store::SealedFile;
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::{NodeMessage, Polled, ProgramWorker, StartTask, TaskPosition};

use super::client::Seat;

/// A connection. Operations that concern processes only do nothing for clients.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are processes")]
pub(super) enum Link {
    Process(ProgramWorker),
    /// Runs a job's first task, and no other.
    Client(Seat),
}

impl Link {
    /// Returns the process id.
    pub(super) fn process_id(&self) -> u32 {
        match self {
            Link::Process(process) => process.process_id(),
            Link::Client(_) => std::process::id(),
        }
    }

    pub(super) fn is_client(&self) -> bool {
        matches!(self, Link::Client(_))
    }

    /// Sends a program's code.
    pub(super) fn send_program(
        &mut self,
        program: &CompiledComponent,
        limits: &Limits,
        kinds: Vec<TaskKind>,
    ) -> io::Result<()> {
        match self {
            Link::Process(process) => process.send_program(program, limits, kinds),
            Link::Client(_) => Ok(()),
        }
    }

    /// Sends a message. It is handled before tasks assigned later.
    pub(super) fn send(&mut self, message: &NodeMessage<'_>) {
        match self {
            Link::Process(process) => process.send(message),
            Link::Client(client) => client.tell(message),
        }
    }

    /// Like [`Link::send`], with a value in a file.
    pub(super) fn send_with_file(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()> {
        match self {
            Link::Process(process) => process.send_with_file(message, file),
            Link::Client(client) => client.tell_with(message, file),
        }
    }

    /// Assigns a task. Returns `None` if its queue has no room.
    pub(super) fn assign(&mut self, task: &StartTask<'_>) -> Option<TaskPosition> {
        match self {
            Link::Process(process) => process.assign(task),
            Link::Client(client) => Some(client.begin(task)),
        }
    }

    /// Returns the position up to which assigned tasks have started.
    pub(super) fn started_up_to(&self) -> TaskPosition {
        match self {
            Link::Process(process) => process.started_up_to(),
            Link::Client(_) => TaskPosition::IMMEDIATE,
        }
    }

    /// Takes back the tasks that have not started. Returns the position up to which tasks have started.
    pub(super) fn reclaim_tasks(&mut self) -> TaskPosition {
        match self {
            Link::Process(process) => process.reclaim_tasks(),
            Link::Client(_) => TaskPosition::IMMEDIATE,
        }
    }

    /// Publishes messages and assigned tasks.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Link::Process(process) => process.flush(),
            Link::Client(client) => {
                client.flush();
                Ok(())
            }
        }
    }

    /// Returns whether messages are available.
    pub(super) fn has_messages(&self) -> bool {
        match self {
            Link::Process(process) => process.has_messages(),
            Link::Client(client) => client.has_some(),
        }
    }

    /// Makes messages available that it has not published yet.
    pub(super) fn claim_unpublished(&self) {
        if let Link::Process(process) = self {
            process.claim_unpublished();
        }
    }

    /// Reads the next message into `frame`.
    pub(super) fn poll(&mut self, frame: &mut Vec<u8>) -> io::Result<Polled> {
        match self {
            Link::Process(process) => process.poll(frame),
            Link::Client(client) => Ok(client.hear(frame)),
        }
    }

    /// Returns the next sealed value of the current message.
    pub(super) fn next_file(&mut self, bytes: u64) -> io::Result<SealedFile> {
        match self {
            Link::Process(process) => SealedFile::of_sealed(process.next_file()?, bytes),
            Link::Client(client) => client.next_object(),
        }
    }

    /// Returns the process, or `None` for a client.
    pub(super) fn as_process(&mut self) -> Option<&mut ProgramWorker> {
        match self {
            Link::Process(process) => Some(process),
            Link::Client(_) => None,
        }
    }

    /// Credits bytes of files that were admitted.
    pub(super) fn credit_file_bytes(&self, bytes: u64) {
        if let Link::Process(process) = self {
            process.credit_file_bytes(bytes);
        }
    }

    /// Interrupts a task if its code runs.
    pub(super) fn interrupt(&self, task: u64) {
        if let Link::Process(process) = self {
            process.interrupt(task);
        }
    }

    /// Returns the task whose code runs.
    pub(super) fn current_task(&self) -> Option<u64> {
        match self {
            Link::Process(process) => process.progress().0,
            Link::Client(_) => None,
        }
    }

    /// Returns the actor call whose code runs, or that waits within the actor's code.
    pub(super) fn current_call(&self) -> Option<u64> {
        match self {
            Link::Process(process) => Some(process.current_call()),
            Link::Client(_) => None,
        }
    }

    /// Returns whether it has exited.
    pub(super) fn has_exited(&self) -> bool {
        match self {
            Link::Process(process) => process.has_exited(),
            // A client sends a message first.
            Link::Client(_) => false,
        }
    }

    /// Kills the process, or disconnects the client.
    pub(super) fn kill(&mut self) {
        match self {
            Link::Process(process) => drop(process.kill()),
            Link::Client(client) => client.close(),
        }
    }
}
