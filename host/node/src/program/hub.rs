//! The hub: one thread that has the scheduler and the workers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbar_core::{
    Attempt, Code, Fault, Ids, JobId, NodeId, ObjectId, Options, TaskError, TaskId, TenantId, WorkerId,
};
use sandbar_sched::{Action, Demand, Event, Failure, JobLimits, Outcome, Role, Scheduler, Submission, UNIT};
use sandbar_store::Object;
use sandbar_worker::program::{Begin, Bell, CrewOptions, Delivery, Down, Heard, ReturnedUp, Submit, Up, ValueUp};
use tokio::sync::oneshot;

use super::calls::{Call, Names, Program, Read, demand, usual_demand};
use super::members::Member;

/// The hub looks again for so long before it sleeps.
const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// How often workers are looked after, while they have something to do and while they have not.
const TICK: Duration = Duration::from_millis(1);
const IDLE_TICK: Duration = Duration::from_millis(100);
/// Messages of one worker before another's turn.
const MESSAGES_A_TURN: usize = 256;
/// A task that is to end and does not within this takes its worker with it.
const END_TIME_MAX: Duration = Duration::from_secs(2);
/// A worker that can't be started is tried again so often.
const STARTS_MAX: u32 = 5;
/// The level of what is worth a look.
const WARN: u8 = 2;
/// How often tasks are begun again, if they say nothing else.
const RETRIES: u32 = 3;

/// How a hub is made.
#[derive(Debug, Clone)]
pub(crate) struct HubOptions {
    /// Workers that run tasks.
    pub(crate) workers: usize,
    pub(crate) crew: CrewOptions,
    pub(crate) resources: Demand,
    pub(crate) job_limits: JobLimits,
}

/// Gets each line that a task logs: its name, the level (0 to 3), the line.
pub(crate) type Log = Box<dyn Fn(&str, u8, &str) + Send>;

/// A job to be run.
pub(crate) struct NewJob {
    pub(crate) program: Arc<Program>,
    /// The function of its first task.
    pub(crate) function: u32,
    pub(crate) seed: u64,
    /// A list of [`sandbar_core::Argument`], in postcard.
    pub(crate) arguments: Box<[u8]>,
    /// Gets what the first task returns.
    pub(crate) done: oneshot::Sender<JobResult>,
    pub(crate) log: Log,
}

/// What came of a job.
#[derive(Debug)]
pub(crate) struct JobResult {
    /// What its first task returned.
    pub(crate) result: Result<Vec<u8>, Arc<TaskError>>,
    pub(crate) counts: Counts,
}

enum Command {
    Start(NewJob),
    Stop,
}

/// A hub's thread. Dropping it ends all jobs and workers.
pub(crate) struct Hub {
    commands: Mutex<Sender<Command>>,
    bell: Bell,
    thread: Option<JoinHandle<()>>,
}

/// What a hub has done so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) submitted: u64,
    pub(crate) ended: u64,
    pub(crate) failed: u64,
    /// Workers that ended while they ran something.
    pub(crate) lost: u64,
}

impl Hub {
    /// Starts it, and its workers.
    ///
    /// # Errors
    /// When there is no memory, or no thread.
    pub(crate) fn start(options: HubOptions) -> io::Result<Hub> {
        let (commands, received) = channel();
        let bell = Bell::new()?;
        let own_bell = bell.clone();
        let thread = std::thread::Builder::new()
            .name("hub".into())
            .spawn(move || State::new(options, own_bell, received).run())?;
        Ok(Hub { commands: Mutex::new(commands), bell, thread: Some(thread) })
    }

    /// Runs a job.
    pub(crate) fn submit(&self, job: NewJob) {
        self.command(Command::Start(job));
    }

    fn command(&self, command: Command) {
        // A hub that has ended drops what it is asked, and who asked is told by that.
        let _ = self.commands.lock().unwrap_or_else(PoisonError::into_inner).send(command);
        self.bell.ring();
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The value of an object.
#[derive(Debug, Clone)]
enum Stored {
    Inline(Box<[u8]>),
    File(Object),
}

struct Job {
    first: TaskId,
    driver: WorkerId,
    done: Option<oneshot::Sender<JobResult>>,
    log: Log,
}

/// An attempt that is to end.
struct Ending {
    worker: WorkerId,
    since: Instant,
    why: Option<Fault>,
}

struct State {
    options: HubOptions,
    bell: Bell,
    commands: Receiver<Command>,
    count: Counts,
    sched: Scheduler<Call, Stored>,
    members: BTreeMap<WorkerId, Member>,
    jobs: FxHashMap<JobId, Job>,
    ids: Ids,
    next_worker: u32,
    next_job: u32,
    names: Names,
    ending: FxHashMap<TaskId, Ending>,
    /// Tasks that may take so long, and since when they run.
    timed: FxHashMap<TaskId, (Duration, WorkerId, Option<Instant>)>,
    actions: Vec<Action<Stored>>,
    /// What first tasks of jobs returned.
    results: FxHashMap<ObjectId, Stored>,
    /// Jobs whose first tasks have ended in this step.
    done: Vec<(JobId, Result<(), Arc<TaskError>>)>,
    /// The job of who asked for an object last.
    asking: Option<JobId>,
    /// What came of actions.
    events: VecDeque<Event<Call, Stored>>,
    failed_starts: u32,
    stopping: bool,
}

const THIS_NODE: NodeId = NodeId(0);
/// Who gives out the numbers of jobs' first tasks: no worker.
const OWN: WorkerId = WorkerId(0);

impl State {
    fn new(options: HubOptions, bell: Bell, commands: Receiver<Command>) -> State {
        State {
            options,
            bell,
            commands,
            count: Counts::default(),
            sched: Scheduler::new(sandbar_sched::Options::default()),
            members: BTreeMap::new(),
            jobs: FxHashMap::default(),
            // Workers' numbers start behind it.
            ids: Ids::of(OWN),
            next_worker: 1,
            next_job: 1,
            names: Names::default(),
            ending: FxHashMap::default(),
            timed: FxHashMap::default(),
            actions: Vec::new(),
            results: FxHashMap::default(),
            done: Vec::new(),
            asking: None,
            events: VecDeque::new(),
            failed_starts: 0,
            stopping: false,
        }
    }

    fn run(mut self) {
        // Each large object is a file.
        let files = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
        self.step(Event::NodeJoined { node: THIS_NODE, resources: self.options.resources.clone() });
        for _ in 0..self.options.workers {
            self.start_worker(Role::Tasks);
        }
        let mut frame = Vec::new();
        let (mut last_work, mut last_tick) = (Instant::now(), Instant::now());
        while !self.stopping {
            let worked = self.turn(&mut frame);
            let now = Instant::now();
            if now - last_tick >= TICK {
                last_tick = now;
                self.look_after(now);
            }
            if worked {
                last_work = now;
            } else if now - last_work < LOOK_AGAIN {
                std::thread::yield_now();
            } else {
                self.sleep();
            }
        }
    }

    /// Sleeps until somebody says something, or it is time to look around.
    fn sleep(&mut self) {
        let is_busy = self.members.values().any(Member::is_busy);
        let time = if is_busy { TICK } else { IDLE_TICK };
        let mut command = None;
        self.bell.sleep(Some(time), || {
            command = self.commands.try_recv().ok();
            command.is_some() || self.members.values().any(|member| member.crew.has_some())
        });
        command.into_iter().for_each(|command| self.obey(command));
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start(job) => self.start_job(job),
            Command::Stop => self.stopping = true,
        }
    }

    /// Hears everybody, and does what comes of it.
    fn turn(&mut self, frame: &mut Vec<u8>) -> bool {
        let mut worked = false;
        while let Ok(command) = self.commands.try_recv() {
            worked = true;
            self.obey(command);
        }
        let workers: Vec<WorkerId> = self.members.keys().copied().collect();
        for worker in workers {
            worked |= self.hear(worker, frame);
        }
        for member in self.members.values_mut() {
            if let Err(e) = member.crew.flush() {
                member.broken.get_or_insert_with(|| e.to_string());
            }
        }
        worked
    }

    fn hear(&mut self, worker: WorkerId, frame: &mut Vec<u8>) -> bool {
        for heard in 0..MESSAGES_A_TURN {
            let Some(member) = self.members.get_mut(&worker) else { return heard > 0 };
            match member.crew.hear(frame) {
                Ok(Heard::Nothing) => return heard > 0,
                Ok(Heard::Some) => {
                    let understood = match postcard::from_bytes(frame) {
                        Ok(message) => self.understand(worker, message),
                        Err(e) => Err(io::Error::other(e)),
                    };
                    if let Err(e) = understood {
                        self.lose(worker, &format!("it said something that makes no sense: {e}"));
                    }
                }
                Err(e) => self.lose(worker, &e.to_string()),
            }
        }
        true
    }

    fn understand(&mut self, worker: WorkerId, message: Up<'_>) -> io::Result<()> {
        match message {
            Up::Submit(submit) => {
                if let Some(task) = self.submission(worker, &submit)? {
                    self.step(Event::Submitted { task });
                }
            }
            Up::Began(submit) => {
                let id = TaskId(submit.task);
                if let Some(member) = self.members.get_mut(&worker) {
                    member.began(id);
                }
                match self.submission(worker, &submit)? {
                    Some(task) => self.step(Event::BeganInline { task, worker }),
                    None => self.interrupt(worker, id, Attempt(0), None),
                }
            }
            Up::Ran { submit, returned, nanos, memory_bytes: _ } => {
                let outcome = self.outcome(worker, TaskId(submit.task), returned)?;
                if let Some(task) = self.submission(worker, &submit)? {
                    self.step(Event::RanInline { task, worker, outcome, nanos });
                }
            }
            Up::Finished { task, attempt, returned, nanos, memory_bytes: _ } => {
                let task = TaskId(task);
                let outcome = self.outcome(worker, task, returned)?;
                if let Some(member) = self.members.get_mut(&worker) {
                    member.ended(task);
                }
                self.step(Event::Finished { task, attempt: Attempt(attempt), worker, outcome, nanos });
            }
            Up::Put { object, task, value, refs } => {
                let value = self.stored(worker, value)?;
                let refs = refs.into_iter().map(ObjectId).collect();
                self.step(Event::Put { object: ObjectId(object), task: TaskId(task), worker, value, refs });
            }
            Up::Blocked(task, blocked) => {
                let task = TaskId(task);
                if let Some(member) = self.members.get_mut(&worker).filter(|_| blocked) {
                    member.waits(task);
                }
                self.step(Event::Blocked { task, worker, blocked });
            }
            Up::Want(object, task) => {
                self.asking = self.sched.job_of(TaskId(task));
                self.step(Event::Wanted { object: ObjectId(object), worker, task: TaskId(task) });
            }
            Up::Released(object, times) => self.step(Event::Released { object: ObjectId(object), worker, times }),
            Up::Cancel(object, recursive) => {
                if let Some(task) = self.sched.maker(ObjectId(object)) {
                    self.step(Event::Cancelled { task, recursive });
                }
            }
            Up::Log(task, level, line) => self.log(TaskId(task), level, line),
        }
        Ok(())
    }

    /// What a task submits; none of one that is not there any more, which has no children.
    fn submission(&mut self, worker: WorkerId, submit: &Submit<'_>) -> io::Result<Option<Submission<Call>>> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let Read { options, arguments, needs, refs } = Read::of(submit.request).map_err(io::Error::other)?;
        let parent = TaskId(submit.parent);
        let program = self.sched.call(parent).map(|call| call.program.clone());
        let (Some(program), Some(job)) = (program, self.sched.job_of(parent)) else { return Ok(None) };
        let known = program.tasks.get(submit.function as usize).ok_or_else(|| wrong("a function that is not there"))?;
        let options = options.as_deref();
        let name = match options.and_then(|options| options.name.clone()) {
            Some(name) => self.names.of(name),
            None => known.name.clone(),
        };
        let id = TaskId(submit.task);
        if let Some(limit) = options.and_then(|options| options.timeout_ms) {
            self.timed.insert(id, (Duration::from_millis(limit), worker, None));
        }
        let usual = Options::default();
        let chosen = options.unwrap_or(&usual);
        Ok(Some(Submission {
            id,
            job,
            parent: Some((parent, Attempt(submit.attempt), worker)),
            name,
            returns: submit.returns,
            demand: options.map_or_else(usual_demand, demand),
            priority: chosen.priority,
            retries_max: chosen.max_retries.unwrap_or(RETRIES),
            retry_failures: chosen.retry_failures,
            refs,
            call: Call {
                function: submit.function,
                seed: submit.seed,
                arguments,
                program,
                needs: needs.as_slice().into(),
            },
            needs,
        }))
    }

    fn outcome(
        &mut self,
        worker: WorkerId,
        task: TaskId,
        returned: Result<ReturnedUp<'_>, Box<TaskError>>,
    ) -> io::Result<Outcome<Stored>> {
        let ending = self.ending.remove(&task);
        self.timed.remove(&task);
        Ok(match returned {
            Ok(values) => {
                let values = values
                    .into_iter()
                    .map(|(value, refs)| Ok((self.stored(worker, value)?, refs.into_iter().map(ObjectId).collect())));
                Outcome::Succeeded(values.collect::<io::Result<_>>()?)
            }
            Err(error) => {
                self.count.failed += 1;
                let why = ending.and_then(|ending| ending.why);
                let error = why.map_or(*error, |fault| TaskError { fault, chain: Vec::new() });
                Outcome::Failed(Failure { error: Arc::new(error), system: false })
            }
        })
    }

    fn stored(&mut self, worker: WorkerId, value: ValueUp<'_>) -> io::Result<Stored> {
        match value {
            ValueUp::Inline(bytes) => Ok(Stored::Inline(bytes.into())),
            ValueUp::File(bytes) => {
                let member = self.members.get_mut(&worker).ok_or(io::ErrorKind::NotFound)?;
                Ok(Stored::File(member.crew.next_file(bytes)?))
            }
        }
    }

    fn log(&self, task: TaskId, level: u8, line: &str) {
        let Some(view) = self.sched.task(task) else { return };
        if let Some(job) = self.jobs.get(&view.job) {
            (job.log)(view.name, level, line);
        }
    }

    /// Has the scheduler decide, and does what it wants done.
    fn step(&mut self, event: Event<Call, Stored>) {
        let mut next = Some(event);
        while let Some(event) = next {
            if let Event::Submitted { .. } | Event::BeganInline { .. } | Event::RanInline { .. } = &event {
                self.count.submitted += 1;
            }
            let mut actions = std::mem::take(&mut self.actions);
            self.sched.step(event, &mut actions);
            actions.drain(..).for_each(|action| self.act(action));
            self.actions = actions;
            self.end_jobs();
            next = self.events.pop_front();
        }
    }

    fn end_jobs(&mut self) {
        while let Some((job, result)) = self.done.pop() {
            self.job_done(job, result);
        }
    }

    fn act(&mut self, action: Action<Stored>) {
        match action {
            Action::Run { worker, task, attempt: _ } => self.give(worker, task),
            Action::Recall { worker } => {
                if let Some(member) = self.members.get_mut(&worker) {
                    let mut tasks = member.take_back();
                    for task in &tasks {
                        unneeded(member, &self.sched, *task);
                    }
                    tasks.extend(member.waiting.drain(..));
                    self.events.push_back(Event::Recalled { worker, tasks });
                }
            }
            Action::Interrupt { worker, task, attempt } => self.interrupt(worker, task, attempt, None),
            Action::Deliver { worker, object } => self.deliver(worker, object),
            Action::Refuse { worker, object, error } => self.refuse(worker, object, &error),
            // Nobody holds what a job's first task returns, but whoever submitted the job.
            Action::Drop { object, value } if Ids::giver(object.0) == OWN => drop(self.results.insert(object, value)),
            Action::Drop { .. } => {}
            Action::Ended { .. } => self.count.ended += 1,
            Action::JobDone { job, result } => self.done.push((job, result)),
        }
    }

    fn deliver(&mut self, worker: WorkerId, object: ObjectId) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        if let Err(e) = tell(member, &self.sched, object, true) {
            member.broken.get_or_insert_with(|| e.to_string());
        }
    }

    /// Tells a worker why it can't have the object that it has just asked for.
    fn refuse(&mut self, worker: WorkerId, object: ObjectId, error: &TaskError) {
        let (Some(member), Some(job)) = (self.members.get_mut(&worker), self.asking) else { return };
        let bytes = postcard::to_stdvec(error).unwrap_or_default();
        let (value, contains) = (Delivery::Failed(&bytes), Vec::new());
        member.crew.tell(&Down::Deliver { job: job.0, object: object.0, value, contains, wanted: true });
    }

    fn give(&mut self, worker: WorkerId, task: TaskId) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        if !member.waiting.is_empty() {
            member.waiting.push_back(task);
            return;
        }
        match give(member, &self.sched, task) {
            Ok(true) => {}
            Ok(false) => member.waiting.push_back(task),
            Err(e) => drop(member.broken.get_or_insert_with(|| e.to_string())),
        }
    }

    /// Ends an attempt, begun or not.
    fn interrupt(&mut self, worker: WorkerId, task: TaskId, attempt: Attempt, why: Option<Fault>) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.crew.tell(&Down::Cancel(task.0, attempt.0));
        member.crew.interrupt(task.0);
        self.ending.entry(task).or_insert(Ending { worker, since: Instant::now(), why });
    }

    fn start_worker(&mut self, role: Role) -> Option<WorkerId> {
        let id = WorkerId(self.next_worker);
        self.next_worker += 1;
        match Member::start(&self.options.crew, id, role, &self.bell) {
            Ok(member) => {
                self.members.insert(id, member);
                self.step(Event::WorkerReady { worker: id, node: THIS_NODE, role });
                Some(id)
            }
            Err(_) => {
                self.failed_starts += 1;
                None
            }
        }
    }

    fn start_job(&mut self, new: NewJob) {
        let job = JobId(self.next_job);
        self.next_job += 1;
        let NewJob { program, function, seed, arguments, done, log } = new;
        let Some(id) = self.ids.take(1).map(TaskId) else { return };
        self.step(Event::JobStarted { job, tenant: TenantId::DEFAULT, limits: self.options.job_limits });
        let Some(driver) = self.start_worker(Role::Driver(job)) else {
            let fault = Fault::new(Code::Host, "a worker for the job can't be started");
            let result = Err(Arc::new(TaskError { fault, chain: Vec::new() }));
            let _ = done.send(JobResult { result, counts: self.count });
            return;
        };
        let name = program.tasks.get(function as usize).map_or_else(|| "main".into(), |task| task.name.clone());
        self.jobs.insert(job, Job { first: id, driver, done: Some(done), log });
        let task = Submission {
            id,
            job,
            parent: None,
            name,
            returns: 1,
            demand: Demand::default(),
            priority: 0,
            retries_max: 0,
            retry_failures: false,
            needs: Vec::new(),
            refs: Vec::new(),
            call: Call { program, function, seed, arguments, needs: Box::new([]) },
        };
        self.step(Event::Submitted { task });
    }

    fn job_done(&mut self, job: JobId, result: Result<(), Arc<TaskError>>) {
        let Some(mut ended) = self.jobs.remove(&job) else { return };
        let value = self.results.remove(&ended.first.returns(0));
        let result = result.map(|()| match value {
            Some(Stored::Inline(bytes)) => bytes.into_vec(),
            _ => Vec::new(),
        });
        if let Some(done) = ended.done.take() {
            let _ = done.send(JobResult { result, counts: self.count });
        }
        self.events.push_back(Event::JobEnded { job });
        if let Some(mut member) = self.members.remove(&ended.driver) {
            member.crew.kill();
            self.events.push_back(Event::WorkerLost { worker: ended.driver, begun: Vec::new() });
        }
    }

    /// A worker is gone, or has to go.
    fn lose(&mut self, worker: WorkerId, why: &str) {
        let Some(mut member) = self.members.remove(&worker) else { return };
        member.crew.kill();
        let begun = member.all_begun();
        self.ending.retain(|_, ending| ending.worker != worker);
        if begun.is_empty() && member.started.elapsed() < END_TIME_MAX {
            self.failed_starts += 1;
        } else {
            self.failed_starts = 0;
        }
        if !begun.is_empty() {
            self.count.lost += 1;
            let jobs: BTreeSet<JobId> = begun.iter().filter_map(|task| self.sched.job_of(*task)).collect();
            for job in jobs.iter().filter_map(|job| self.jobs.get(job)) {
                let line = format!("a worker is lost, with {} tasks that it had begun: {why}", begun.len());
                (job.log)("node", WARN, &line);
            }
        }
        self.step(Event::WorkerLost { worker, begun });
        if self.failed_starts < STARTS_MAX {
            self.replace(member.role);
        } else {
            self.give_up(why);
        }
    }

    /// Ends all jobs: workers end before they have begun anything, again and again.
    fn give_up(&mut self, why: &str) {
        let fault = Fault::new(Code::Host, format!("workers can't be started: {why}"));
        let error = Arc::new(TaskError { fault, chain: Vec::new() });
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        self.done.extend(jobs.into_iter().map(|job| (job, Err(error.clone()))));
        self.failed_starts = 0;
        self.end_jobs();
        while let Some(event) = self.events.pop_front() {
            self.step(event);
        }
    }

    /// Starts another worker for one that is gone.
    fn replace(&mut self, role: Role) {
        match role {
            Role::Tasks => drop(self.start_worker(role)),
            // Of a job whose first task was not begun.
            Role::Driver(job) if self.jobs.contains_key(&job) => {
                if let (Some(driver), Some(job)) = (self.start_worker(role), self.jobs.get_mut(&job)) {
                    job.driver = driver;
                }
            }
            Role::Driver(_) => {}
        }
    }

    /// What is to be done now and then.
    fn look_after(&mut self, now: Instant) {
        let mut gone = Vec::new();
        for member in self.members.values_mut() {
            member.crew.take_unpublished();
            if let Some(why) = member.broken.take() {
                gone.push((member.id, why));
            } else if !member.crew.has_some() && member.crew.is_gone() {
                gone.push((member.id, "it has ended".to_owned()));
            }
            while let Some(task) = member.waiting.front().copied() {
                match give(member, &self.sched, task) {
                    Ok(true) => drop(member.waiting.pop_front()),
                    Ok(false) => break,
                    Err(e) => {
                        gone.push((member.id, e.to_string()));
                        break;
                    }
                }
            }
        }
        for (worker, why) in gone {
            self.lose(worker, &why);
        }
        self.end_late(now);
        self.end_again(now);
    }

    /// Ends tasks that have run as long as they may.
    fn end_late(&mut self, now: Instant) {
        let mut late = Vec::new();
        for (task, (limit, _, since)) in &mut self.timed {
            let Some(view) = self.sched.task(*task) else { continue };
            let Some(worker) = view.worker else { continue };
            let begun = self.members.get(&worker).is_some_and(|member| member.has_begun(*task));
            match since {
                None if begun => *since = Some(now),
                Some(since) if now - *since >= *limit => late.push((*task, worker, view.attempt, *limit)),
                _ => {}
            }
        }
        for (task, worker, attempt, limit) in late {
            self.timed.remove(&task);
            let why = Fault::new(Code::TimeOut, format!("it ran longer than {} ms (timeout)", limit.as_millis()));
            self.interrupt(worker, task, attempt, Some(why));
        }
    }

    /// Signals again for tasks that are still there.
    fn end_again(&mut self, now: Instant) {
        let mut stuck = Vec::new();
        for (task, ending) in &self.ending {
            let Some(member) = self.members.get(&ending.worker) else { continue };
            // There is one word for it.
            if member.crew.progress().0 == Some(task.0) {
                member.crew.interrupt(task.0);
            }
            if now - ending.since > END_TIME_MAX {
                stuck.push(ending.worker);
            }
        }
        for worker in stuck {
            self.lose(worker, "a task did not end when it was told to");
        }
    }
}

/// Tells a worker of an object: one that it wanted, or that a task needs which it is given next.
fn tell(member: &mut Member, sched: &Scheduler<Call, Stored>, object: ObjectId, wanted: bool) -> io::Result<()> {
    let (Some(job), Some(stored)) = (sched.job_of_object(object), sched.value(object)) else { return Ok(()) };
    let contains = sched.contained(object).map(|object| object.0).collect();
    let mut error = Vec::new();
    let (value, file) = match stored {
        Ok(Stored::Inline(bytes)) => (Delivery::Value(bytes), None),
        Ok(Stored::File(file)) => (Delivery::File(file.bytes()), Some(file)),
        Err(failed) => {
            error = postcard::to_stdvec(&**failed).map_err(io::Error::other)?;
            (Delivery::Failed(&error), None)
        }
    };
    let message = Down::Deliver { job: job.0, object: object.0, value, contains, wanted };
    match file {
        Some(file) => member.crew.tell_with(&message, file)?,
        None => member.crew.tell(&message),
    }
    drop(error);
    Ok(())
}

/// A task was taken back: its worker does not need what it was told for it.
fn unneeded(member: &mut Member, sched: &Scheduler<Call, Stored>, task: TaskId) {
    let (Some(call), Some(job)) = (sched.call(task), sched.job_of(task)) else { return };
    for object in &call.needs {
        member.crew.tell(&Down::Unneeded(job.0, object.0));
    }
}

/// Gives a task to a worker, with what it needs. Says whether there was room.
fn give(member: &mut Member, sched: &Scheduler<Call, Stored>, task: TaskId) -> io::Result<bool> {
    let (Some(call), Some(view)) = (sched.call(task), sched.task(task)) else { return Ok(true) };
    let program = call.program.compiled.number();
    if member.programs.insert(program) {
        let tasks = call.program.tasks.len() as u32;
        member.crew.send_program(&call.program.compiled, &call.program.limits, tasks)?;
    }
    for object in &call.needs {
        tell(member, sched, *object, false)?;
    }
    let begin = Begin {
        task: task.0,
        attempt: view.attempt.0,
        job: view.job.0,
        program,
        function: call.function,
        seed: call.seed,
        needs: call.needs.iter().map(|object| object.0).collect(),
        arguments: &call.arguments,
    };
    Ok(match member.crew.give(&begin) {
        Some(given) => {
            member.gave(task, given);
            true
        }
        None => {
            unneeded(member, sched, task);
            false
        }
    })
}

/// The resources of this machine: its processors and its memory.
pub(super) fn machine(cpus: usize, memory: u64) -> Demand {
    Demand { cpus: cpus as u64 * UNIT, memory, ..Demand::default() }
}
