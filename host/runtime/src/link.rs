//! Links to workers: processes, and clients in this process.

use std::io;
use std::os::fd::OwnedFd;

use sandbar_core::{Limits, TaskKind};
use sandbar_store::SealedFile;
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::{NodeMessage, Polled, ProgramWorker, StartTask, TaskPosition};

use super::client::ClientLink;

/// A link to a worker.
pub(crate) type BoxedWorkerLink = Box<dyn WorkerLink>;

/// Connects the engine with a worker. By default, operations on memory that a process shares do nothing.
pub(crate) trait WorkerLink: std::fmt::Debug {
    /// Returns the process id.
    fn process_id(&self) -> u32;

    /// Returns whether the worker is a client, which runs only a job's root task.
    fn is_client(&self) -> bool {
        false
    }

    /// Sends a program's code.
    fn send_program(&mut self, program: &CompiledComponent, limits: &Limits, kinds: Vec<TaskKind>) -> io::Result<()>;

    /// Sends a message. It is handled before tasks assigned later.
    fn send(&mut self, message: &NodeMessage<'_>);

    /// Like [`WorkerLink::send`], with a value in a file.
    fn send_with_file(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()>;

    /// Assigns a task. Returns `None` if the worker's queue is full.
    fn assign(&mut self, task: &StartTask<'_>) -> Option<TaskPosition>;

    /// Returns the position up to which assigned tasks have started.
    fn started_up_to(&self) -> TaskPosition;

    /// Takes back the tasks that have not started. Returns the position up to which tasks have started.
    fn reclaim_tasks(&mut self) -> TaskPosition;

    /// Publishes messages and assigned tasks.
    fn flush(&mut self) -> io::Result<()>;

    /// Returns whether messages are available.
    fn has_messages(&self) -> bool;

    /// Makes messages available that the worker has not published yet.
    fn claim_unpublished(&self) {}

    /// Reads the next message into `frame`.
    fn poll(&mut self, frame: &mut Vec<u8>) -> io::Result<Polled>;

    /// Returns the next sealed value of the current message.
    fn next_file(&mut self, bytes: u64) -> io::Result<SealedFile>;

    /// Returns the next file of the current message, which the worker can still write.
    fn next_writable_file(&mut self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Credits bytes of files that were admitted.
    fn credit_file_bytes(&self, _: u64) {}

    /// Lets the worker reuse its memory with this number.
    fn mark_memory_free(&self, _: u32) {}

    /// Takes free memory back. Returns whether the worker has not reused it.
    fn reclaim_memory(&self, _: u32) -> bool {
        false
    }

    /// Sets whether any job is held.
    fn set_holds(&self, _: bool) {}

    /// Sets whether the node's thread sleeps, so that messages must wake it.
    fn set_node_sleeps(&self, _: bool) {}

    /// Interrupts a task if the worker runs it.
    fn interrupt(&self, _: u64) {}

    /// Ends the interruption of a task.
    fn end_interrupt(&self, _: u64) {}

    /// Returns the task whose code runs.
    fn current_task(&self) -> Option<u64> {
        None
    }

    /// Returns the actor call whose code runs, or that waits within the actor's code.
    fn current_call(&self) -> Option<u64> {
        None
    }

    /// Returns whether the process has exited. A client finishes its task instead.
    fn has_exited(&self) -> bool {
        false
    }

    /// Kills the process, or disconnects the client.
    fn kill(&mut self);
}

impl WorkerLink for ProgramWorker {
    fn process_id(&self) -> u32 {
        self.process_id()
    }

    fn send_program(&mut self, program: &CompiledComponent, limits: &Limits, kinds: Vec<TaskKind>) -> io::Result<()> {
        self.send_program(program, limits, kinds)
    }

    fn send(&mut self, message: &NodeMessage<'_>) {
        self.send(message);
    }

    fn send_with_file(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()> {
        self.send_with_file(message, file)
    }

    fn assign(&mut self, task: &StartTask<'_>) -> Option<TaskPosition> {
        self.assign(task)
    }

    fn started_up_to(&self) -> TaskPosition {
        self.started_up_to()
    }

    fn reclaim_tasks(&mut self) -> TaskPosition {
        self.reclaim_tasks()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush()
    }

    fn has_messages(&self) -> bool {
        self.has_messages()
    }

    fn claim_unpublished(&self) {
        self.claim_unpublished();
    }

    fn poll(&mut self, frame: &mut Vec<u8>) -> io::Result<Polled> {
        self.poll(frame)
    }

    fn next_file(&mut self, bytes: u64) -> io::Result<SealedFile> {
        SealedFile::of_sealed(self.next_file()?, bytes)
    }

    fn next_writable_file(&mut self) -> io::Result<OwnedFd> {
        self.next_file()
    }

    fn credit_file_bytes(&self, bytes: u64) {
        self.credit_file_bytes(bytes);
    }

    fn mark_memory_free(&self, number: u32) {
        self.mark_memory_free(number);
    }

    fn reclaim_memory(&self, number: u32) -> bool {
        self.reclaim_memory(number)
    }

    fn set_holds(&self, holds_any: bool) {
        self.set_holds(holds_any);
    }

    fn set_node_sleeps(&self, sleeps: bool) {
        self.set_node_sleeps(sleeps);
    }

    fn interrupt(&self, task: u64) {
        self.interrupt(task);
    }

    fn end_interrupt(&self, task: u64) {
        self.end_interrupt(task);
    }

    fn current_task(&self) -> Option<u64> {
        self.progress().0
    }

    fn current_call(&self) -> Option<u64> {
        Some(self.current_call())
    }

    fn has_exited(&self) -> bool {
        self.has_exited()
    }

    fn kill(&mut self) {
        let _ = self.kill();
    }
}

impl WorkerLink for ClientLink {
    fn process_id(&self) -> u32 {
        std::process::id()
    }

    fn is_client(&self) -> bool {
        true
    }

    fn send_program(&mut self, _: &CompiledComponent, _: &Limits, _: Vec<TaskKind>) -> io::Result<()> {
        Ok(())
    }

    fn send(&mut self, message: &NodeMessage<'_>) {
        self.send(message);
    }

    fn send_with_file(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()> {
        self.send_with_file(message, file)
    }

    fn assign(&mut self, task: &StartTask<'_>) -> Option<TaskPosition> {
        Some(self.start(task))
    }

    fn started_up_to(&self) -> TaskPosition {
        TaskPosition::IMMEDIATE
    }

    fn reclaim_tasks(&mut self) -> TaskPosition {
        TaskPosition::IMMEDIATE
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush();
        Ok(())
    }

    fn has_messages(&self) -> bool {
        self.has_messages()
    }

    fn poll(&mut self, frame: &mut Vec<u8>) -> io::Result<Polled> {
        Ok(self.poll(frame))
    }

    fn next_file(&mut self, _: u64) -> io::Result<SealedFile> {
        self.next_file()
    }

    fn kill(&mut self) {
        self.close();
    }
}
