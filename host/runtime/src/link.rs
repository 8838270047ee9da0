//! Who a member of the hub is: a worker's process, or a client of this process.

use std::io;

use sandbar_core::{Limits, TaskKind};
use sandbar_store::SealedFile;
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::{NodeMessage, Polled, ProgramWorker, StartTask, TaskPosition};

use super::client::Seat;

/// What the hub hears and tells. What only processes have to do with costs clients nothing.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is mostly a process")]
pub(super) enum Link {
    Process(ProgramWorker),
    /// Has a job's first task, which no worker runs, and no other.
    Client(Seat),
}

impl Link {
    /// Its process.
    pub(super) fn process(&self) -> u32 {
        match self {
            Link::Process(process) => process.process_id(),
            Link::Client(_) => std::process::id(),
        }
    }

    pub(super) fn is_client(&self) -> bool {
        matches!(self, Link::Client(_))
    }

    /// Hands over a program's code.
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

    /// Tells it something, before what it is given from then on.
    pub(super) fn tell(&mut self, message: &NodeMessage<'_>) {
        match self {
            Link::Process(process) => process.send(message),
            Link::Client(seat) => seat.tell(message),
        }
    }

    /// As [`Link::tell`], of a value that lies in a file.
    pub(super) fn tell_with(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()> {
        match self {
            Link::Process(process) => process.send_with_file(message, file),
            Link::Client(seat) => seat.tell_with(message, file),
        }
    }

    /// Gives it a task; none when there is no room.
    pub(super) fn give(&mut self, task: &StartTask<'_>) -> Option<TaskPosition> {
        match self {
            Link::Process(process) => process.assign(task),
            Link::Client(seat) => Some(seat.begin(task)),
        }
    }

    /// How far it has begun what it was given.
    pub(super) fn taken(&self) -> TaskPosition {
        match self {
            Link::Process(process) => process.started_up_to(),
            Link::Client(_) => TaskPosition::IMMEDIATE,
        }
    }

    /// Takes back what it has not begun.
    pub(super) fn take_back(&mut self) -> TaskPosition {
        match self {
            Link::Process(process) => process.reclaim_tasks(),
            Link::Client(_) => TaskPosition::IMMEDIATE,
        }
    }

    /// Lets it know what it was told and given.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Link::Process(process) => process.flush(),
            Link::Client(seat) => {
                seat.flush();
                Ok(())
            }
        }
    }

    /// Whether it said something.
    pub(super) fn has_some(&self) -> bool {
        match self {
            Link::Process(process) => process.has_messages(),
            Link::Client(seat) => seat.has_some(),
        }
    }

    /// Takes what it said for itself so far, too.
    pub(super) fn take_unpublished(&self) {
        if let Link::Process(process) = self {
            process.claim_unpublished();
        }
    }

    /// The next message in `frame`.
    pub(super) fn hear(&mut self, frame: &mut Vec<u8>) -> io::Result<Polled> {
        match self {
            Link::Process(process) => process.poll(frame),
            Link::Client(seat) => Ok(seat.hear(frame)),
        }
    }

    /// The sealed value that the message at hand came with.
    pub(super) fn next_object(&mut self, bytes: u64) -> io::Result<SealedFile> {
        match self {
            Link::Process(process) => SealedFile::of_sealed(process.next_file()?, bytes),
            Link::Client(seat) => seat.next_object(),
        }
    }

    /// Who shares memory with the node, that is to say no client.
    pub(super) fn as_process(&mut self) -> Option<&mut ProgramWorker> {
        match self {
            Link::Process(process) => Some(process),
            Link::Client(_) => None,
        }
    }

    /// So many bytes of files that it sent are taken in.
    pub(super) fn took_in(&self, bytes: u64) {
        if let Link::Process(process) = self {
            process.credit_file_bytes(bytes);
        }
    }

    /// Ends the task if its code runs.
    pub(super) fn interrupt(&self, task: u64) {
        if let Link::Process(process) = self {
            process.interrupt(task);
        }
    }

    /// The task whose code it runs, if it runs any.
    pub(super) fn at_hand(&self) -> Option<u64> {
        match self {
            Link::Process(process) => process.progress().0,
            Link::Client(_) => None,
        }
    }

    /// The call of an actor whose code it runs, or that waits in the actor's code.
    pub(super) fn call_at_hand(&self) -> Option<u64> {
        match self {
            Link::Process(process) => Some(process.current_call()),
            Link::Client(_) => None,
        }
    }

    /// Whether it has ended.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Link::Process(process) => process.has_exited(),
            // It says so before.
            Link::Client(_) => false,
        }
    }

    /// Ends it.
    pub(super) fn kill(&mut self) {
        match self {
            Link::Process(process) => drop(process.kill()),
            Link::Client(seat) => seat.close(),
        }
    }
}
