//! What a simulated worker does with messages of its node.

use std::collections::VecDeque;
use std::time::Duration;

use sandbar_core::{Code, Fault, TaskError};
use sandbar_worker::program::{Delivery, NodeMessage, TaskRole, WorkerMessage};

use super::super::program::{decode, item_value};
use super::{QueuedTask, SimWorker, ValueOrError};

impl SimWorker {
    pub(super) fn handle(&mut self, message: NodeMessage<'_>, file: Option<Vec<u8>>, _: Duration) {
        match message {
            NodeMessage::Deliver { object, value, contains, requested, .. } => {
                let value = self.delivered_value(value, file);
                if requested {
                    self.deliver_requested(object, value, contains);
                } else {
                    self.needs.entry(object).or_default().push_back(value);
                }
            }
            NodeMessage::DeliverItem { stream, object, value, contains, .. } => {
                self.deliver_item(stream, object, value, contains);
            }
            NodeMessage::Credit(task, consumed) => {
                if let Some(task) = self.tasks.get_mut(&task) {
                    task.consumed = consumed;
                }
                self.unblock(task);
            }
            NodeMessage::DropDelivery(_, object) => drop(self.take_need(object)),
            NodeMessage::ReleaseFile(file) => {
                if self.lent.remove(&file).is_some() {
                    self.send(&WorkerMessage::FileReleased(file), None);
                } else {
                    self.errors.push(format!("file {file} is released but not lent"));
                }
            }
            NodeMessage::Cancel(task, attempt) => self.cancel(task, attempt),
            NodeMessage::WithdrawCall(_, call, attempt) => self.withdraw(call, attempt),
            NodeMessage::HoldJob(job, true) => drop(self.held_jobs.insert(job)),
            NodeMessage::HoldJob(job, false) => drop(self.held_jobs.remove(&job)),
            NodeMessage::DropMemory(_) | NodeMessage::ResumeOnce(_) | NodeMessage::ReportWaits(_) => {}
        }
    }

    fn delivered_value(&mut self, value: Delivery<'_>, file: Option<Vec<u8>>) -> Option<ValueOrError> {
        match value {
            Delivery::Value(bytes) => Some(Ok(bytes.to_vec())),
            Delivery::File(_, number) => {
                let bytes = file.unwrap_or_default();
                if self.lent.insert(number, bytes.clone()).is_some() {
                    self.errors.push(format!("file {number} is lent twice"));
                }
                Some(Ok(bytes))
            }
            Delivery::LentFile(number) => match self.lent.get(&number) {
                Some(bytes) => Some(Ok(bytes.clone())),
                None => {
                    self.errors.push(format!("file {number} was not lent"));
                    Some(Ok(Vec::new()))
                }
            },
            Delivery::Pending => None,
            Delivery::Failed(error) => Some(Err(postcard::from_bytes(error).unwrap())),
        }
    }

    fn deliver_requested(&mut self, object: u64, value: Option<ValueOrError>, contains: Vec<u64>) {
        let Some(value) = value else {
            return self.errors.push(format!("object {object} was requested, but is delivered as pending"));
        };
        let requester = self.requests.get_mut(&object).and_then(VecDeque::pop_front);
        if self.requests.get(&object).is_some_and(VecDeque::is_empty) {
            self.requests.remove(&object);
        }
        if requester.is_none() {
            self.errors.push(format!("object {object} is delivered but was not requested"));
        }
        match requester.and_then(|task| self.tasks.get_mut(&task)) {
            Some(task) => {
                contains.iter().for_each(|content| *task.holds.entry(*content).or_default() += 1);
                task.contents.insert(object, contains);
                task.delivered.insert(object, value);
                self.unblock(requester.unwrap_or(0));
            }
            // The requester has ended.
            None => contains.into_iter().for_each(|content| self.send(&WorkerMessage::Release(content, 1), None)),
        }
    }

    fn deliver_item(&mut self, stream: u64, object: u64, value: Delivery<'_>, contains: Vec<u64>) {
        let value = self.delivered_value(value, None);
        let owner = self.tasks.iter().find(|(_, task)| task.items.contains_key(&stream)).map(|(id, _)| *id);
        let Some(owner) = owner else {
            contains.into_iter().chain([object]).for_each(|object| self.send(&WorkerMessage::Release(object, 1), None));
            return;
        };
        // Items are computed from their indices. Only values in the message are compared.
        let number = match value {
            Some(Ok(bytes)) => decode(&bytes),
            _ => None,
        };
        let task = self.tasks.get_mut(&owner).unwrap();
        let child = task.children.iter().position(|child| child.object == stream);
        let seed =
            child.or(Some(task.children.len())).and_then(|child| task.plan.children.get(child)).map(|(seed, _)| *seed);
        let items = task.items.get_mut(&stream).unwrap();
        let expected = item_value(seed.unwrap_or(0), items.len() as u64);
        items.push(expected);
        let consumed = items.len() as u64;
        if number.is_some_and(|number| number != expected) {
            self.wrong_values.push(format!("item {object} of stream {stream} has a wrong value"));
        }
        self.send(&WorkerMessage::Release(object, 1), None);
        contains.into_iter().for_each(|content| self.send(&WorkerMessage::Release(content, 1), None));
        self.send(&WorkerMessage::ItemsTaken(stream, consumed), None);
        self.unblock(owner);
    }

    fn unblock(&mut self, task: u64) {
        if let Some(task) = self.tasks.get_mut(&task)
            && std::mem::take(&mut task.is_blocked)
        {
            let id = task.spec.task;
            self.send(&WorkerMessage::Blocked(id, false), None);
        }
    }

    fn cancel(&mut self, id: u64, attempt: u32) {
        let cancelled =
            || TaskError { fault: Fault::new(Code::Cancelled, "the task was cancelled"), chain: Vec::new() };
        if let Some(resident) = self.actors.get(&id).filter(|resident| resident.attempt == attempt) {
            let died = || TaskError { fault: Fault::new(Code::ActorDied, "the actor has ended"), chain: Vec::new() };
            let is_call = |spec: &QueuedTask| matches!(spec.role, TaskRole::ActorCall(actor, ..) if actor == id);
            let _ = resident;
            let running: Vec<u64> =
                self.tasks.iter().filter(|(_, task)| is_call(&task.spec)).map(|(call, _)| *call).collect();
            for call in running {
                let mut task = self.tasks.remove(&call).unwrap();
                self.send_finished(&task.spec, Err(died()), None, true);
                self.release_holds(&mut task);
            }
            let resident = self.actors.remove(&id).unwrap();
            return self.send_finished(&resident.creation, Err(cancelled()), None, false);
        }
        if let Some(at) = self.queue.iter().position(|spec| spec.task == id && spec.attempt == attempt) {
            let spec = self.queue.remove(at).unwrap();
            self.started += 1;
            self.take_needs(&spec.needs);
            return self.send_finished(&spec, Err(cancelled()), None, false);
        }
        if self.tasks.get(&id).is_some_and(|task| task.spec.attempt == attempt) {
            let mut task = self.tasks.remove(&id).unwrap();
            self.fail(&mut task, cancelled());
        }
    }

    /// Removes a call that has not started from the queue.
    fn withdraw(&mut self, call: u64, attempt: u32) {
        if let Some(at) = self.queue.iter().position(|spec| spec.task == call && spec.attempt == attempt) {
            let spec = self.queue.remove(at).unwrap();
            self.started += 1;
            self.take_needs(&spec.needs);
            let error = TaskError { fault: Fault::new(Code::Cancelled, "the task was cancelled"), chain: Vec::new() };
            self.send_finished(&spec, Err(error), None, false);
        }
    }
}
