//! The node's link to a simulated worker.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd as _;
use std::rc::Rc;

use sandbar_core::{Argument, Limits, TaskKind};
use sandbar_store::{Mapping, SealedFile};
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::{NodeMessage, Polled, StartTask, TaskPosition};

use super::super::program::{ACTOR, METHOD};
use super::{QUEUE_MAX, QueuedTask, RETRIES, SimWorker};
use crate::link::WorkerLink;

/// The node's link to a simulated worker.
#[derive(Debug)]
pub(in crate::engine::simulation) struct SimLink(pub(in crate::engine::simulation) Rc<RefCell<SimWorker>>);

impl WorkerLink for SimLink {
    fn process_id(&self) -> u32 {
        0
    }

    fn send_program(&mut self, _: &CompiledComponent, _: &Limits, _: Vec<TaskKind>) -> io::Result<()> {
        Ok(())
    }

    fn send(&mut self, message: &NodeMessage<'_>) {
        self.0.borrow_mut().inbox.push_back((postcard::to_stdvec(message).unwrap(), None));
    }

    fn send_with_file(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()> {
        let mapping = Mapping::sealed(file.as_fd(), file.bytes())?;
        self.0.borrow_mut().inbox.push_back((postcard::to_stdvec(message).unwrap(), Some(mapping.to_vec())));
        Ok(())
    }

    fn assign(&mut self, task: &StartTask<'_>) -> Option<TaskPosition> {
        let mut worker = self.0.borrow_mut();
        // Arguments of other tasks may take the room.
        if worker.queue.len() >= QUEUE_MAX || worker.seed.below(8) == 0 {
            return None;
        }
        let arguments: Vec<Argument<'_>> = postcard::from_bytes(task.arguments).unwrap();
        let number = match arguments.first() {
            Some(Argument::Value(bytes)) => bytes.first().copied().unwrap_or(0),
            _ => 0,
        };
        if task.attempt > RETRIES && task.function != ACTOR && task.function != METHOD {
            worker.errors.push(format!("task {} has attempt {}, but only {RETRIES} retries", task.task, task.attempt));
        }
        worker.assigned += 1;
        let position = TaskPosition::new(worker.assigned);
        worker.queue.push_back(QueuedTask {
            task: task.task,
            attempt: task.attempt,
            job: task.job,
            function: task.function,
            seed: task.seed,
            role: task.role,
            needs: task.needs.clone(),
            number,
            is_root: arguments.len() == 3,
        });
        Some(position)
    }

    fn started_up_to(&self) -> TaskPosition {
        TaskPosition::new(self.0.borrow().started)
    }

    fn reclaim_tasks(&mut self) -> TaskPosition {
        let mut worker = self.0.borrow_mut();
        let started = worker.started;
        worker.queue.clear();
        // Positions of reclaimed tasks are never reused.
        worker.started = worker.assigned;
        TaskPosition::new(started)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn has_messages(&self) -> bool {
        !self.0.borrow().outbox.is_empty()
    }

    fn poll(&mut self, frame: &mut Vec<u8>) -> io::Result<Polled> {
        let mut worker = self.0.borrow_mut();
        let Some((next, file)) = worker.outbox.pop_front() else { return Ok(Polled::Empty) };
        (*frame, worker.current_file) = (next, file);
        Ok(Polled::Message)
    }

    fn next_file(&mut self, _: u64) -> io::Result<SealedFile> {
        self.0.borrow_mut().current_file.take().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn has_exited(&self) -> bool {
        !self.0.borrow().is_alive
    }

    fn kill(&mut self) {
        let mut worker = self.0.borrow_mut();
        worker.is_killed = true;
        worker.crash();
        worker.outbox.clear();
    }
}
