//! The runner of programs: loads a program, runs its first task, and returns the job's summary.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sandbar_core::{Code, Fault, FunctionKind, Limits, NodeId, TaskKind};
use sandbar_functions::{FunctionLoader, LoadedComponent, find_component};
use sandbar_jobs::{JobProgress, JobRecorder, LogOutput, Phase};
use sandbar_machine::memory_for_tasks;
use sandbar_sched::{JobLimits, RESOURCE_UNIT, ResourceSet};
use sandbar_worker::program::ProgramWorkerOptions;
use sandbar_worker::{CallJob, CallScheduler, GpuProcesses, Leases, peak_memory_bytes};

use crate::arguments;
use crate::calls::{Program, ProgramTask, units};
use crate::engine::{EngineOptions, JobCounters, JobOutputs, JobResult, NewJob, RootTask, WORKERS_MAX};
use crate::error::ProgramError;
use crate::files::{ArgumentFiles, JobFiles};
use crate::peer::{CachedResult, ClusterServices};
use crate::recording::JobRecording;
use crate::summary::ProgramSummary;
use crate::thread::{Runtime, RuntimeHandle, RuntimeOptions, StoreOptions};

/// Limits of a job. A task that exceeds `call_bytes_max` waits; exceeding another limit is an error.
const JOB_LIMITS: JobLimits = JobLimits {
    tasks_max: 4_000_000,
    depth_max: 1000,
    objects_max: 16_000_000,
    lineage_bytes_max: 64 << 20,
    groups_max: 1000,
    call_bytes_max: 256 << 20,
};
/// Maximum sandboxes of a worker: running tasks, and tasks that wait for others.
const SANDBOXES_MAX: u32 = 1100;
/// Minimum address space of a worker for programs: each sandbox reserves a 32-bit memory.
pub const PROGRAM_ADDRESS_BYTES: u64 = (SANDBOXES_MAX as u64) << 32;
/// Number of worker ids in a whole cluster.
const WORKER_IDS_MAX: u32 = 1 << 28;
/// Default name of a job's first task.
pub(crate) const MAIN: &str = "main";

/// A program to run.
#[derive(Debug, Clone)]
pub struct ProgramSpec {
    /// `PATH` or `PATH#task`, where `PATH` is a component or the folder of a crate.
    pub program: String,
    /// Names and values of the task's arguments. A value is JSON, text, or `@PATH` for files.
    pub arguments: Vec<(String, String)>,
    /// Limits of each task, within those of the node.
    pub limits: Limits,
    /// Seed of the job.
    pub seed: u64,
}

/// Checks that a program exists at a path (`PATH` or `PATH#task`) or among the shipped ones, before a job is created for it.
///
/// # Errors
/// Fails if it does not exist.
pub fn find_program(program: &str, shipped: &[PathBuf]) -> Result<(), ProgramError> {
    let (path, _) = program.rsplit_once('#').unwrap_or((program, MAIN));
    let job_file = format!("{path}.toml");
    find_component(shipped, "", Path::new(path)).map(drop).map_err(|error| match error.into() {
        ProgramError::NotFound(message) if Path::new(&job_file).is_file() && !message.contains("did you mean") => {
            ProgramError::NotFound(format!("{message} (did you mean the job file `{job_file}`?)"))
        }
        other => other,
    })
}

/// Resources that tasks may request, where they differ from those of the machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeResources {
    /// CPUs; by default one for each worker.
    pub cpus: Option<f64>,
    /// GPUs; by default none.
    pub gpus: Option<f64>,
    /// Custom resources, by name.
    pub custom: Vec<(String, f64)>,
}

/// Options of a [`ProgramRunner`].
#[derive(Debug, Clone)]
pub struct ProgramRunnerOptions {
    /// Number of the node, unique in its cluster.
    pub node: u16,
    /// Workers that run tasks.
    pub workers: usize,
    /// Path of `host-worker`.
    pub worker: PathBuf,
    /// Maximum limits of a task.
    pub limits: Limits,
    /// GPU processes.
    pub gpus: Option<Arc<GpuProcesses>>,
    /// Resources that tasks may request.
    pub resources: NodeResources,
    /// Memory that tasks may request, in bytes.
    pub memory_bytes_max: u64,
    /// Memory for objects before they spill, in bytes.
    pub object_bytes_max: u64,
    /// Folder for spilled objects.
    pub spill: PathBuf,
    /// Disk space to keep free when spilling, in bytes; `None` for the default.
    pub disk_reserve_bytes: Option<u64>,
    /// Other nodes.
    pub peers: Option<Arc<dyn RuntimePeers>>,
}

/// The other nodes of a runtime.
pub trait RuntimePeers: Send + Sync + std::fmt::Debug {
    /// Returns the services of the other nodes.
    fn services(&self) -> Arc<dyn ClusterServices>;

    /// Called once, when this node's runtime has started.
    fn started(&self, runtime: RuntimeStarted);

    /// Called for each program that this node loads, with its component.
    fn loaded(&self, program: &Arc<Program>, component: File);
}

/// A runtime that has started.
pub struct RuntimeStarted {
    /// The node.
    pub node: NodeId,
    /// Handle of the runtime.
    pub handle: RuntimeHandle,
    /// Resources of the node.
    pub resources: ResourceSet,
    /// Workers that run tasks.
    pub slots: u32,
    /// Runs programs of the cluster's jobs.
    pub run: RunProgram,
}

/// A program of a job of the cluster.
pub struct ClusterProgram {
    /// The program.
    pub program: Arc<Program>,
    /// Name of its first task.
    pub task: String,
    /// Names and values of the first task's arguments.
    pub arguments: Vec<(String, String)>,
    /// Files that the client has sent for arguments, of which the arguments have the paths.
    pub files: Vec<ArgumentFiles>,
    /// Results of its tasks that a lost node had computed.
    pub resumed: Vec<CachedResult>,
    /// Number of the job's run.
    pub run: u32,
    /// Recorder of the job.
    pub recorder: JobRecorder,
}

/// Runs a program of the cluster to its end.
pub type RunProgram = Box<dyn Fn(ClusterProgram) -> RunningProgram + Send + Sync>;
/// A program that runs.
pub type RunningProgram = Pin<Box<dyn Future<Output = Result<ProgramSummary, ProgramError>> + Send>>;

impl std::fmt::Debug for RuntimeStarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeStarted").field("node", &self.node).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ClusterProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterProgram").field("task", &self.task).finish_non_exhaustive()
    }
}

/// Runs programs on this node. The runtime starts with the first program.
#[derive(Debug)]
pub struct ProgramRunner {
    pub(crate) functions: FunctionLoader,
    progress: Arc<JobProgress>,
    pub(crate) options: ProgramRunnerOptions,
    runtime: Mutex<Option<Arc<Runtime>>>,
}

impl ProgramRunner {
    /// Creates a runner.
    pub fn new(functions: FunctionLoader, progress: Arc<JobProgress>, options: ProgramRunnerOptions) -> ProgramRunner {
        ProgramRunner { functions, progress, options, runtime: Mutex::default() }
    }

    /// Runs a program. `recorder` records the job, and responds to queries about it while it runs.
    ///
    /// # Errors
    /// Fails if the program can't start, its first task fails, or the user stops it.
    pub async fn run(&self, spec: &ProgramSpec, recorder: JobRecorder) -> Result<ProgramSummary, ProgramError> {
        let recording =
            JobRecording::start(recorder, LogOutput::Deduplicated(self.progress.clone())).map_err(start_fault)?;
        let result = tokio::select! {
            result = self.run_recorded(spec, &recording) => result,
            () = recording.serve() => Err(ProgramError::Stopped),
        };
        recording.finish(&result);
        result
    }

    async fn run_recorded(&self, spec: &ProgramSpec, recording: &JobRecording) -> Result<ProgramSummary, ProgramError> {
        let (path, name) = spec.program.rsplit_once('#').unwrap_or((&spec.program, MAIN));
        let path = Path::new(path);
        let built_before = self.progress.build_time();
        let program = self.load(path, spec.limits).await?;
        let build_seconds = (self.progress.build_time() - built_before).as_secs_f64();
        let on_started = || self.progress.enter(Phase::Running, 0);
        let files = JobFiles::default();
        let first = FirstTask { path, name, arguments: &spec.arguments, files, seed: spec.seed, run: 1, lasting: None };
        let summary = run(&*self.runtime()?, program, first, recording, on_started).await?;
        Ok(ProgramSummary { build_seconds, ..summary })
    }

    /// Builds a program if it is the folder of a crate, compiles it, and reads its tasks.
    pub(crate) async fn load(&self, path: &Path, limits: Limits) -> Result<Arc<Program>, ProgramError> {
        let loaded = self.functions.load_path("", path).await?;
        let program = Arc::new(program(&loaded, limits)?);
        if let Some(peers) = &self.options.peers {
            peers.loaded(&program, File::open(&loaded.file).map_err(ProgramError::file(&loaded.file))?);
        }
        Ok(program)
    }

    /// Starts the runtime before the first program, so that other nodes can run tasks here.
    ///
    /// # Errors
    /// Fails if a process or thread can't be started.
    pub fn start(&self) -> Result<(), Fault> {
        self.runtime().map(drop)
    }

    /// Prepares the node to leave its cluster. Returns when no other node needs it and no job of its own runs.
    ///
    /// # Errors
    /// Fails if the runtime can't start.
    pub async fn drain(&self) -> Result<(), Fault> {
        let handle = self.runtime()?.handle();
        handle.drain().await;
        Ok(())
    }

    /// Returns the runtime, which the first call starts.
    pub(crate) fn runtime(&self) -> Result<Arc<Runtime>, Fault> {
        let mut runtime: MutexGuard<'_, Option<Arc<Runtime>>> =
            self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(runtime.clone());
        }
        let (node, first) = (NodeId(self.options.node.into()), u32::from(self.options.node) * WORKERS_MAX);
        let peers = self.options.peers.as_ref().map(|peers| peers.services());
        let resources = resources_of(&self.options);
        let options = RuntimeOptions {
            engine: EngineOptions {
                node,
                // A node without peers has all ids.
                worker_ids: first..if peers.is_some() { first + WORKERS_MAX } else { WORKER_IDS_MAX },
                workers: self.options.workers as u32,
                resources: resources.clone(),
                job_limits: JOB_LIMITS,
                task_limits: self.options.limits,
                memory_bytes_max: self.options.object_bytes_max,
                task_bytes_max: memory_for_tasks(),
            },
            peers,
            workers: ProgramWorkerOptions {
                limits: self.options.limits,
                sandboxes: SANDBOXES_MAX,
                inline: true,
                value_bytes_max: self.options.object_bytes_max,
                program: self.options.worker.clone(),
                gpus: self.options.gpus.clone(),
            },
            store: StoreOptions { folder: self.options.spill.clone(), reserve_bytes: self.options.disk_reserve_bytes },
        };
        let slots = self.options.workers as u32;
        let started = Arc::new(Runtime::start(options).map_err(start_fault)?);
        if let Some(peers) = &self.options.peers {
            let (handle, run) = (started.handle(), cluster_runner(&started));
            peers.started(RuntimeStarted { node, handle, resources, slots, run });
        }
        Ok(runtime.insert(started).clone())
    }
}

impl CallScheduler for ProgramRunner {
    fn start(&self, job: CallJob) -> Result<Box<dyn Leases>, Fault> {
        CallScheduler::start(&self.runtime()?.handle(), job)
    }
}

/// Returns the node's resources: by default a CPU for each worker, the memory, and no GPUs.
fn resources_of(options: &ProgramRunnerOptions) -> ResourceSet {
    let NodeResources { cpus, gpus, custom } = &options.resources;
    ResourceSet {
        cpus: cpus.map_or(options.workers as u64 * RESOURCE_UNIT, units),
        gpus: gpus.map_or(0, units),
        memory: options.memory_bytes_max,
        custom: custom.iter().map(|(name, amount)| (name.as_str().into(), units(*amount))).collect(),
    }
}

/// Loads a program from a component file.
///
/// # Errors
/// Fails if it is not a valid component.
pub async fn load_program(
    functions: &FunctionLoader,
    file: File,
    path: &Path,
    limits: Limits,
) -> Result<Arc<Program>, Fault> {
    program(&functions.load(file, path).await?, limits).map(Arc::new)
}

/// Summarizes a job that has succeeded.
pub(crate) fn summary(
    recording: &JobRecording,
    result: serde_json::Value,
    counters: &JobCounters,
    started: Instant,
) -> ProgramSummary {
    ProgramSummary {
        job: recording.name().map(|name| name.as_str().to_owned()),
        state: "succeeded",
        result,
        counts: recording.counts(),
        spilled_bytes: counters.spilled_bytes,
        restored_bytes: counters.restored_bytes,
        build_seconds: 0.0,
        seconds: started.elapsed().as_secs_f64(),
        peak_memory_bytes: peak_memory_bytes(std::process::id()),
    }
}

/// The first task of a job.
struct FirstTask<'a> {
    path: &'a Path,
    name: &'a str,
    arguments: &'a [(String, String)],
    /// Files of the job, as yet none.
    files: JobFiles,
    seed: u64,
    /// Number of the job's run.
    run: u32,
    /// Set if another node may take the job over: see [`NewJob::lasting`].
    lasting: Option<(Arc<str>, Vec<CachedResult>)>,
}

/// Runs a loaded program.
async fn run(
    runtime: &Runtime,
    program: Arc<Program>,
    first: FirstTask<'_>,
    recording: &JobRecording,
    on_started: impl FnOnce(),
) -> Result<ProgramSummary, ProgramError> {
    let FirstTask { path, name, arguments, files, seed, run, lasting } = first;
    let function = find_task(&program, name, path)?;
    // This may look up many files on a slow disk.
    let (tasks, values) = (program.clone(), arguments.to_vec());
    let encode = move || arguments::encode_arguments(&tasks.tasks[function], &values, files);
    let encoded = tokio::task::spawn_blocking(encode);
    let (arguments, files) = encoded.await??;
    let shut_down = || Fault::new(Code::Host, "the node shut down before the program finished");
    let started = Instant::now();
    let mut job = runtime.submit(NewJob {
        tenant: recording.tenant(),
        run: recording.run(run),
        program,
        root_task: RootTask::Function { function: function as u32, arguments },
        seed,
        lasting,
        files: Arc::new(files),
        outputs: JobOutputs {
            progress: recording.progress(),
            log: recording.log_sender().ok_or_else(shut_down)?,
            finished: recording.finished_job(),
        },
    });
    recording.started(job.handle(), job.id());
    on_started();
    let JobResult { result, counters } = job.result().await.ok_or_else(shut_down)?;
    let result = result.map_err(|error| ProgramError::Task((*error).clone()))?;
    Ok(summary(recording, arguments::decode_result(name, &result)?, &counters, started))
}

/// Returns the function that runs programs of the cluster while the runtime exists.
fn cluster_runner(runtime: &Arc<Runtime>) -> RunProgram {
    let runtime = Arc::downgrade(runtime);
    Box::new(move |ClusterProgram { program, task, arguments, files, resumed, run: number, recorder }| {
        let runtime = runtime.clone();
        Box::pin(async move {
            let runtime = runtime.upgrade().ok_or(ProgramError::Dropped)?;
            let recording =
                JobRecording::start(recorder, LogOutput::Callback(Box::new(|_| {}))).map_err(start_fault)?;
            let lasting = recording.name().map(|name| (name.as_str().into(), resumed));
            let path = Path::new("the program");
            // Other nodes and tenants must not open files of this machine.
            let files = JobFiles::sent(files);
            let first = FirstTask { path, name: &task, arguments: &arguments, files, seed: 0, run: number, lasting };
            let result = tokio::select! {
                result = run(&runtime, program, first, &recording, || {}) => result,
                () = recording.serve() => Err(ProgramError::Stopped),
            };
            recording.finish(&result);
            result
        })
    })
}

/// Returns the fault for a thread, process or memory that can't be created.
pub(crate) fn start_fault(error: std::io::Error) -> Fault {
    Fault::new(Code::Host, format!("the node can't run programs: {error}"))
}

/// Reads the tasks of a component.
fn program(loaded: &LoadedComponent, limits: Limits) -> Result<Program, Fault> {
    let malformed = |e| Fault::new(Code::BadOutput, format!("its description is malformed: {e}"));
    let tasks = loaded.functions.iter().filter(|function| function.kind == FunctionKind::Task).map(|function| {
        let arguments = postcard::from_bytes(&function.arguments).map_err(malformed)?;
        let (returns, count, kind) = postcard::from_bytes(&function.returns).map_err(malformed)?;
        Ok(ProgramTask { name: function.name.as_str().into(), arguments, returns, count, kind })
    });
    let tasks = tasks.collect::<Result<_, Fault>>()?;
    Ok(Program { compiled: loaded.compiled.clone(), limits, tasks })
}

/// Returns the index of a task that a job can start with.
///
/// # Errors
/// Fails if the program has no such task, or it is a generator.
pub(crate) fn find_task(program: &Program, name: &str, path: &Path) -> Result<usize, Fault> {
    let is_task = |task: &&ProgramTask| task.kind == TaskKind::Task;
    let found = program.tasks.iter().position(|task| is_task(&task) && &*task.name == name);
    let is_generator = |task: &ProgramTask| task.kind == TaskKind::Generator && &*task.name == name;
    found.ok_or_else(|| {
        if program.tasks.iter().any(is_generator) {
            let message = format!(
                "`{name}` is a generator: a job can't start with one; start with a task that consumes its items"
            );
            return Fault::new(Code::Export, message).in_function(&path.display().to_string());
        }
        let names: Vec<_> = program.tasks.iter().filter(is_task).map(|task| &*task.name).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let message = format!("it has no task `{name}`; its tasks are: {names} (choose one by PATH#TASK)");
        Fault::new(Code::Export, message).in_function(&path.display().to_string())
    })
}
