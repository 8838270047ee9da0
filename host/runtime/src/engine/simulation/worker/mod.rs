//! Simulated workers: they run the plans of tasks step by step, and check all delivered values.

mod link;
mod messages;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use sandbar_core::{
    ActorOptions, Argument, IdAllocator, ObjectId, RequestOptions, Seed, TaskError, TaskRequest, WorkerId,
};
use sandbar_store::SealedFile;
use sandbar_worker::program::{AttemptUsage, SentValue, SubmitTask, TaskRole, WorkerMessage};

pub(super) use self::link::SimLink;

use super::program::{
    ACTOR, Child, GENERATOR, Input, METHOD, Plan, TASK, call_seed, call_value, child_number, combine, decode, encode,
    item_value, limited, plan, stored_value,
};

/// Maximum number of tasks in a worker's queue.
const QUEUE_MAX: usize = 2;
/// Default number of retries of a task.
const RETRIES: u32 = 3;

/// A delivered value, or an error.
type ValueOrError = Result<Vec<u8>, TaskError>;

#[derive(Debug)]
pub(super) struct SimWorker {
    pub(super) id: WorkerId,
    seed: Seed,
    ids: IdAllocator,
    /// Messages from the node, encoded, with the bytes of a file.
    inbox: VecDeque<(Vec<u8>, Option<Vec<u8>>)>,
    /// Messages to the node, with a file.
    outbox: VecDeque<(Vec<u8>, Option<SealedFile>)>,
    /// File of the message that the node reads.
    current_file: Option<SealedFile>,
    queue: VecDeque<QueuedTask>,
    /// Number of assigned tasks.
    assigned: u32,
    /// Number of tasks that have started or were reclaimed.
    started: u32,
    tasks: BTreeMap<u64, RunningTask>,
    /// The task that has the processor.
    computing: Option<u64>,
    actors: BTreeMap<u64, ResidentActor>,
    /// Requests of tasks for objects, in order.
    requests: BTreeMap<u64, VecDeque<u64>>,
    /// Objects delivered for the next tasks, or `None` for a pending one.
    needs: BTreeMap<u64, VecDeque<Option<ValueOrError>>>,
    /// Bytes of the files that the node has lent, by the file's number.
    lent: BTreeMap<u64, Vec<u8>>,
    /// Jobs that must not submit tasks, because of back-pressure.
    held_jobs: BTreeSet<u32>,
    pub(super) is_alive: bool,
    /// Whether the node has killed the worker.
    pub(super) is_killed: bool,
    /// Violations of the protocol.
    pub(super) errors: Vec<String>,
    /// Wrong values. They may come from a liar.
    pub(super) wrong_values: Vec<String>,
    /// Whether a root task waits until the simulation releases it.
    pub(super) waits_for_quiescence: bool,
}

#[derive(Debug)]
struct QueuedTask {
    task: u64,
    attempt: u32,
    job: u32,
    function: u32,
    seed: u64,
    role: TaskRole,
    needs: Vec<u64>,
    /// First argument: depth and flags of a task, or the number of a generator's items.
    number: u8,
    /// Whether it is the root task of a job.
    is_root: bool,
}

#[derive(Debug)]
struct ResidentActor {
    /// Attempt of the actor's creation.
    attempt: u32,
    creation: QueuedTask,
}

#[derive(Debug)]
struct RunningTask {
    spec: QueuedTask,
    stage: Stage,
    plan: Plan,
    input: Option<u64>,
    /// The object that the task has stored.
    stored: Option<u64>,
    children: Vec<SubmittedChild>,
    results: Vec<u64>,
    /// Reference counts of the objects that the task holds.
    holds: BTreeMap<u64, u32>,
    /// Values or errors of requested objects.
    delivered: BTreeMap<u64, ValueOrError>,
    /// Objects that values of requested objects contain.
    contents: BTreeMap<u64, Vec<u64>>,
    /// Values of received items, by stream.
    items: BTreeMap<u64, Vec<u64>>,
    /// Number of a generator's items that its consumer has taken.
    consumed: u64,
    is_blocked: bool,
    /// Time at which the computation ends.
    computes_until: Duration,
    /// Index of the next child or item.
    next: usize,
}

#[derive(Debug, Clone)]
struct SubmittedChild {
    object: u64,
    /// Calls of an actor.
    calls: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Input,
    Submit,
    Await,
    Yield,
    Compute,
    /// A root task waits until the simulation releases it.
    Quiesce,
    Return,
}

/// State of a task after a step.
enum Step {
    Continues,
    Blocked,
    Finished,
}

impl SimWorker {
    pub(super) fn new(id: WorkerId, seed: Seed) -> SimWorker {
        SimWorker {
            id,
            seed,
            ids: IdAllocator::for_worker(id),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            current_file: None,
            queue: VecDeque::new(),
            assigned: 0,
            started: 0,
            tasks: BTreeMap::new(),
            computing: None,
            actors: BTreeMap::new(),
            requests: BTreeMap::new(),
            needs: BTreeMap::new(),
            lent: BTreeMap::new(),
            held_jobs: BTreeSet::new(),
            is_alive: true,
            is_killed: false,
            errors: Vec::new(),
            wrong_values: Vec::new(),
            waits_for_quiescence: false,
        }
    }

    /// Returns whether the worker has no messages, and no tasks except root tasks that wait for release.
    pub(super) fn is_idle(&self) -> bool {
        let all_wait = self.tasks.values().all(|task| task.stage == Stage::Quiesce);
        !self.is_alive || self.inbox.is_empty() && self.outbox.is_empty() && self.queue.is_empty() && all_wait
    }

    /// Describes what the tasks wait for.
    pub(super) fn describe(&self) -> String {
        let task = |(id, task): (&u64, &RunningTask)| {
            let (stage, blocked) = (task.stage, task.is_blocked);
            format!("{id} at {stage:?} (blocked: {blocked}, child {}, {:?})", task.next, task.children)
        };
        let tasks: Vec<String> = self.tasks.iter().map(task).collect();
        format!("worker {} requests {:?}: {}", self.id, self.requests, tasks.join(", "))
    }

    /// Kills the process.
    pub(super) fn crash(&mut self) {
        self.is_alive = false;
        self.inbox.clear();
        self.queue.clear();
        self.tasks.clear();
    }

    /// Releases waiting root tasks, which then finish.
    pub(super) fn release_root(&mut self) {
        self.waits_for_quiescence = false;
        for task in self.tasks.values_mut().filter(|task| task.stage == Stage::Quiesce) {
            task.stage = Stage::Return;
        }
    }

    fn send(&mut self, message: &WorkerMessage<'_>, file: Option<SealedFile>) {
        self.outbox.push_back((postcard::to_stdvec(message).unwrap(), file));
    }

    /// Handles all messages, and runs some steps of the tasks.
    pub(super) fn run(&mut self, now: Duration) {
        if !self.is_alive {
            return;
        }
        while let Some((frame, file)) = self.inbox.pop_front() {
            let message = postcard::from_bytes(&frame).unwrap();
            self.handle(message, file, now);
        }
        for _ in 0..1 + self.seed.below(4) {
            if !self.step(now) {
                break;
            }
        }
    }

    /// Runs a step of one task, or starts a task. Returns whether a task was ready.
    fn step(&mut self, now: Duration) -> bool {
        let ready: Vec<u64> = self.tasks.iter().filter(|(_, task)| !task.is_blocked).map(|(id, _)| *id).collect();
        // One task has the processor until it blocks or finishes.
        let current = self.computing.filter(|task| ready.contains(task)).or_else(|| {
            let index = self.seed.below(ready.len().max(1) as u32) as usize;
            ready.get(index).copied()
        });
        let Some(id) = current else {
            return self.start_next(now);
        };
        self.computing = Some(id);
        let mut task = self.tasks.remove(&id).unwrap();
        match self.advance(&mut task, now) {
            Step::Continues => drop(self.tasks.insert(id, task)),
            Step::Blocked => {
                self.computing = None;
                if !task.is_blocked {
                    task.is_blocked = true;
                    self.send(&WorkerMessage::Blocked(id, true), None);
                }
                self.tasks.insert(id, task);
            }
            Step::Finished => self.computing = None,
        }
        true
    }

    fn start_next(&mut self, now: Duration) -> bool {
        let Some(spec) = self.queue.pop_front() else { return false };
        self.started += 1;
        let id = spec.task;
        match spec.role {
            TaskRole::CreateActor(_) => {
                self.take_needs(&spec.needs);
                let value = postcard::to_stdvec(&None::<u64>).unwrap();
                self.send_finished(&spec, Ok((value, Vec::new())), None, false);
                self.actors.insert(id, ResidentActor { attempt: spec.attempt, creation: spec });
            }
            TaskRole::ActorCall(actor, attempt, _)
                if self.actors.get(&actor).is_none_or(|resident| resident.attempt != attempt) =>
            {
                self.take_needs(&spec.needs);
                self.send(&WorkerMessage::CallDropped(id), None);
            }
            _ => {
                let plan = plan(spec.seed, if spec.function == TASK { limited(spec.number) } else { 0 });
                let task = RunningTask {
                    stage: Stage::Input,
                    input: None,
                    stored: None,
                    children: Vec::new(),
                    results: Vec::new(),
                    holds: BTreeMap::new(),
                    delivered: BTreeMap::new(),
                    contents: BTreeMap::new(),
                    items: BTreeMap::new(),
                    consumed: 0,
                    is_blocked: false,
                    computes_until: now,
                    next: 0,
                    plan,
                    spec,
                };
                self.tasks.insert(id, task);
            }
        }
        true
    }

    /// Drops the objects that were delivered for a task that does not run.
    fn take_needs(&mut self, needs: &[u64]) {
        for need in needs {
            self.take_need(*need);
        }
    }

    fn take_need(&mut self, need: u64) -> Option<Option<ValueOrError>> {
        let queue = self.needs.get_mut(&need)?;
        let value = queue.pop_front();
        if queue.is_empty() {
            self.needs.remove(&need);
        }
        value
    }

    fn advance(&mut self, task: &mut RunningTask, now: Duration) -> Step {
        match task.stage {
            Stage::Input => self.take_input(task, now),
            Stage::Submit => self.submit_next(task),
            Stage::Await => self.await_next(task),
            Stage::Yield => self.yield_next(task),
            Stage::Compute if now < task.computes_until => Step::Continues,
            Stage::Compute if task.spec.is_root => {
                self.release_holds(task);
                task.stage = Stage::Quiesce;
                self.waits_for_quiescence = true;
                Step::Continues
            }
            Stage::Compute => {
                task.stage = Stage::Return;
                Step::Continues
            }
            Stage::Quiesce => Step::Continues,
            Stage::Return => {
                self.finish(task);
                Step::Finished
            }
        }
    }

    fn take_input(&mut self, task: &mut RunningTask, now: Duration) -> Step {
        if let Some(need) = task.spec.needs.first().copied() {
            let value = match task.delivered.remove(&need) {
                Some(value) => value,
                None => match self.take_need(need) {
                    Some(Some(value)) => value,
                    Some(None) => return self.request(task, need),
                    None => {
                        self.errors.push(format!("task {} starts without object {need}", task.spec.task));
                        return Step::Blocked;
                    }
                },
            };
            match self.check(need, value) {
                Ok(number) => task.input = Some(number),
                Err(error) => {
                    self.fail(task, error);
                    return Step::Finished;
                }
            }
        }
        task.computes_until = now + Duration::from_micros(task.plan.micros);
        task.stage = match task.spec.function {
            TASK => Stage::Submit,
            GENERATOR => Stage::Yield,
            _ => Stage::Compute,
        };
        Step::Continues
    }

    /// Decodes and checks a value.
    fn check(&mut self, object: u64, value: ValueOrError) -> Result<u64, TaskError> {
        let bytes = value?;
        Ok(decode(&bytes).unwrap_or_else(|| {
            self.wrong_values.push(format!("object {object} has a wrong value of {} bytes", bytes.len()));
            0
        }))
    }

    fn request(&mut self, task: &mut RunningTask, object: u64) -> Step {
        self.send(&WorkerMessage::RequestObject(object, task.spec.task), None);
        self.requests.entry(object).or_default().push_back(task.spec.task);
        Step::Blocked
    }

    fn submit_next(&mut self, task: &mut RunningTask) -> Step {
        let id = task.spec.task;
        let uses_stored = |child: &(u64, Child)| child.1 == Child::Task(Some(Input::Stored));
        let is_stored = task.plan.returns_ref || task.plan.children.iter().any(uses_stored);
        if is_stored && task.stored.is_none() {
            let object = self.ids.take(1).unwrap();
            let value = encode(stored_value(task.spec.seed));
            self.send_value(value, |value| WorkerMessage::Put { object, task: id, value, refs: Vec::new() });
            task.holds.insert(object, 1);
            task.stored = Some(object);
            return Step::Continues;
        }
        if task.next > 0 && self.held_jobs.contains(&task.spec.job) {
            return Step::Continues;
        }
        let Some((seed, child)) = task.plan.children.get(task.next).copied() else {
            task.next = 0;
            task.stage = Stage::Await;
            return Step::Continues;
        };
        task.next += 1;
        let number = child_number(task.spec.number);
        let submitted = match child {
            Child::Task(input) => {
                let input = input.map(|input| match input {
                    Input::Stored => task.stored.unwrap_or(0),
                    Input::Child(index) => task.children[index].object,
                });
                SubmittedChild { object: self.submit(task, TASK, seed, number, input, None), calls: Vec::new() }
            }
            Child::Generator(items) => {
                let object = self.submit(task, GENERATOR, seed, items as u8, None, None);
                task.items.insert(object, Vec::new());
                // Requests the end of the stream before its items.
                self.send(&WorkerMessage::RequestObject(object, id), None);
                self.requests.entry(object).or_default().push_back(id);
                SubmittedChild { object, calls: Vec::new() }
            }
            Child::Actor(calls) => {
                let object = self.submit(task, ACTOR, seed, 0, None, None);
                let calls = (0..calls).map(|call| {
                    let seed = call_seed(seed, call);
                    self.submit(task, METHOD, seed, 0, None, Some(object))
                });
                let calls = calls.collect();
                SubmittedChild { object, calls }
            }
            Child::Cancelled => {
                let object = self.submit(task, TASK, seed, number, None, None);
                self.send(&WorkerMessage::Cancel(object, id, true), None);
                SubmittedChild { object, calls: Vec::new() }
            }
        };
        task.children.push(submitted);
        Step::Continues
    }

    fn submit(
        &mut self,
        task: &mut RunningTask,
        function: u32,
        seed: u64,
        number: u8,
        input: Option<u64>,
        actor: Option<u64>,
    ) -> u64 {
        let id = self.ids.take(1).unwrap();
        let number = [number];
        let mut arguments = vec![Argument::Value(&number)];
        arguments.extend(input.map(|object| Argument::Object(ObjectId(object))));
        let options = match function {
            ACTOR if seed.is_multiple_of(2) => {
                let actor = ActorOptions { max_restarts: 2, max_task_retries: 5, ..ActorOptions::default() };
                Some(RequestOptions { actor: Some(Box::new(actor)), ..RequestOptions::default() })
            }
            // A small buffer: generators wait for their consumers.
            GENERATOR => Some(RequestOptions { buffer: Some(2), ..RequestOptions::default() }),
            _ => None,
        };
        let options = options.map(Box::new);
        let request = TaskRequest { options, actor: actor.map(ObjectId), arguments, refs: Vec::new() };
        let request = postcard::to_stdvec(&request).unwrap();
        let (parent, attempt) = (task.spec.task, task.spec.attempt);
        let submit = SubmitTask { task: id, parent, attempt, function, returns: 1, seed, request: &request };
        self.send(&WorkerMessage::Submit(submit), None);
        *task.holds.entry(id).or_default() += 1;
        id
    }

    fn await_next(&mut self, task: &mut RunningTask) -> Step {
        let (Some(child), Some((seed, kind))) =
            (task.children.get(task.next).cloned(), task.plan.children.get(task.next).copied())
        else {
            task.stage = Stage::Compute;
            return Step::Continues;
        };
        let result = match kind {
            Child::Cancelled => Some(Ok(0)),
            Child::Task(_) => self.await_value_and_contents(task, seed, child.object),
            Child::Generator(_) => match task.delivered.get(&child.object) {
                Some(Ok(_)) => {
                    let items = task.items.remove(&child.object).unwrap_or_default();
                    Some(Ok(combine(seed, None, &items)))
                }
                Some(Err(error)) => Some(Err(error.clone())),
                None => None,
            },
            Child::Actor(_) => self.await_calls(task, seed, &child.calls),
        };
        match result {
            None => Step::Blocked,
            Some(Ok(result)) => {
                task.results.push(result);
                task.next += 1;
                Step::Continues
            }
            Some(Err(error)) => {
                self.fail(task, error);
                Step::Finished
            }
        }
    }

    /// Returns the value of a delivered object. Requests the object otherwise.
    fn await_value(&mut self, task: &mut RunningTask, object: u64) -> Option<Result<u64, TaskError>> {
        match task.delivered.get(&object).cloned() {
            Some(value) => Some(self.check(object, value)),
            None => {
                let is_requested = self.requests.get(&object).is_some_and(|tasks| tasks.contains(&task.spec.task));
                if !is_requested {
                    self.request(task, object);
                }
                None
            }
        }
    }

    /// Returns the result of a task with this seed. If it contains an object, that must be the one that the task stored.
    fn await_value_and_contents(
        &mut self,
        task: &mut RunningTask,
        seed: u64,
        object: u64,
    ) -> Option<Result<u64, TaskError>> {
        let result = match self.await_value(task, object)? {
            Ok(result) => result,
            Err(error) => return Some(Err(error)),
        };
        let Some(content) = task.contents.get(&object).and_then(|contents| contents.first().copied()) else {
            return Some(Ok(result));
        };
        let stored = match self.await_value(task, content)? {
            Ok(stored) => stored,
            Err(error) => return Some(Err(error)),
        };
        if stored != stored_value(seed) {
            self.wrong_values.push(format!("object {content} in the result {object} has a wrong value"));
        }
        Some(Ok(result))
    }

    fn await_calls(&mut self, task: &mut RunningTask, seed: u64, calls: &[u64]) -> Option<Result<u64, TaskError>> {
        let mut results = Vec::new();
        for call in calls {
            match self.await_value(task, *call)? {
                Ok(result) => results.push(result),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(combine(seed, None, &results)))
    }

    fn yield_next(&mut self, task: &mut RunningTask) -> Step {
        let TaskRole::Generator(buffer) = task.spec.role else {
            self.errors.push(format!("generator {} has another role", task.spec.task));
            task.stage = Stage::Compute;
            return Step::Continues;
        };
        if task.next >= usize::from(task.spec.number) {
            task.stage = Stage::Compute;
            return Step::Continues;
        }
        if task.next as u64 >= task.consumed + u64::from(buffer) {
            return Step::Blocked;
        }
        let (index, object) = (task.next as u64, self.ids.take(1).unwrap());
        let (id, attempt) = (task.spec.task, task.spec.attempt);
        let value = encode(item_value(task.spec.seed, index));
        self.send_value(value, |value| WorkerMessage::Yield {
            task: id,
            attempt,
            index,
            object,
            value,
            refs: Vec::new(),
        });
        // The stream holds the item, not the task.
        task.next += 1;
        Step::Continues
    }

    fn finish(&mut self, task: &mut RunningTask) {
        let seed = task.spec.seed;
        let result = match task.spec.function {
            METHOD => call_value(seed),
            GENERATOR => u64::from(task.spec.number),
            _ => combine(seed, task.input, &task.results),
        };
        let refs = task.stored.filter(|_| task.plan.returns_ref && !task.spec.is_root).into_iter().collect();
        self.send_finished(&task.spec, Ok((encode(result), refs)), None, false);
        self.release_holds(task);
    }

    fn fail(&mut self, task: &mut RunningTask, error: TaskError) {
        self.send_finished(&task.spec, Err(error), None, false);
        self.release_holds(task);
    }

    fn release_holds(&mut self, task: &mut RunningTask) {
        for (object, count) in std::mem::take(&mut task.holds) {
            self.send(&WorkerMessage::Release(object, count), None);
        }
    }

    fn send_finished(
        &mut self,
        spec: &QueuedTask,
        returned: Result<(Vec<u8>, Vec<u64>), TaskError>,
        saved: Option<u64>,
        lost: bool,
    ) {
        let (task, attempt, usage) = (spec.task, spec.attempt, AttemptUsage::default());
        match returned {
            Ok((value, refs)) => self.send_value(value, |value| WorkerMessage::Finished {
                task,
                attempt,
                returned: Ok(vec![(value, refs)]),
                usage,
                lost,
                saved,
            }),
            Err(error) => {
                let returned = Err(Box::new(error));
                self.send(&WorkerMessage::Finished { task, attempt, returned, usage, lost, saved }, None);
            }
        }
    }

    /// Sends a message with a value. Values of more than 8000 bytes are files.
    fn send_value(&mut self, value: Vec<u8>, message: impl FnOnce(SentValue<'_>) -> WorkerMessage<'_>) {
        if value.len() > 8000 {
            let file = SealedFile::new(&value).unwrap();
            self.send(&message(SentValue::File(value.len() as u64, None)), Some(file));
        } else {
            let frame = postcard::to_stdvec(&message(SentValue::Inline(&value))).unwrap();
            self.outbox.push_back((frame, None));
        }
    }
}
