//! A program, from its path to what its first task returns.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use sandbar_core::{Code, Fault, FunctionKind, Limits, NodeId, TaskKind};
use sandbar_functions::{LoadedComponent, find_component};
use sandbar_jobs::{JobCounts, JobRecorder, LogOutput, Phase};
use sandbar_sched::JobLimits;
use sandbar_train::UnitServer;
use sandbar_worker::peak_memory_bytes;
use sandbar_worker::program::ProgramWorkerOptions;
use serde::Serialize;

use super::hub::{Counts, JobResult, machine};
use super::keeping::Keeping;
use super::peer::Remnant;
use super::{First, Hub, HubOptions, NewJob, Outside, Program, ProgramTask, StoreOptions, WORKERS_MAX, arguments};
use crate::cluster::{Cluster, Loader, Loading, Runner, Side};
use crate::{Node, NodeError};

/// What a job may have at once. A task that submits more than `call_bytes_max` waits, the others are errors.
const JOB_LIMITS: JobLimits = JobLimits {
    tasks_max: 4_000_000,
    depth_max: 1000,
    objects_max: 16_000_000,
    lineage_bytes_max: 64 << 20,
    groups_max: 1000,
    call_bytes_max: 256 << 20,
};
/// Sandboxes of a worker: tasks that run, or wait for others.
const SANDBOXES_MAX: u32 = 1100;
/// Addresses that a worker for programs reserves, at least: each sandbox has as many as memory of 32 bits.
pub const PROGRAM_ADDRESS_BYTES: u64 = (SANDBOXES_MAX as u64) << 32;
/// All numbers of workers that there are.
const NUMBERS_MAX: u32 = 1 << 28;
/// The task that a job begins with, unless another is named.
pub(super) const MAIN: &str = "main";

/// A program to be run.
#[derive(Debug, Clone)]
pub struct ProgramSpec {
    /// `PATH` or `PATH#task`, where `PATH` is a component or the folder of a crate.
    pub program: String,
    /// Names and values of the task's arguments: JSON, or else text.
    pub arguments: Vec<(String, String)>,
    /// What each task may use: no more than the node was started with.
    pub limits: Limits,
    /// What each task's seed is a function of.
    pub seed: u64,
}

/// Checks that there is a program at a path, `PATH` or `PATH#task`, or among the shipped ones of these folders: before anything
/// is kept of its job.
///
/// # Errors
/// When there is none.
pub fn find_program(program: &str, shipped: &[PathBuf]) -> Result<(), NodeError> {
    let (path, _) = program.rsplit_once('#').unwrap_or((program, MAIN));
    let job_file = format!("{path}.toml");
    find_component(shipped, "", Path::new(path)).map(drop).map_err(|error| match error.into() {
        NodeError::NotFound(message) if Path::new(&job_file).is_file() && !message.contains("did you mean") => {
            NodeError::NotFound(format!("{message} (did you mean the job file `{job_file}`?)"))
        }
        other => other,
    })
}

/// What came of a program.
#[derive(Debug, Clone, Serialize)]
pub struct ProgramSummary {
    /// What the job is called, if anything is kept of it.
    pub job: Option<String>,
    /// `succeeded`.
    pub state: &'static str,
    /// What its first task returned; nothing where that has no JSON.
    pub result: serde_json::Value,
    /// What its tasks came to.
    #[serde(flatten)]
    pub counts: JobCounts,
    /// Bytes of objects that went to disk.
    pub spilled_bytes: u64,
    /// And that came back.
    pub restored_bytes: u64,
    /// Seconds that building and compiling its tasks took before its start.
    pub build_seconds: f64,
    /// From its start to its end.
    pub seconds: f64,
    /// Most memory of the node itself.
    pub peak_memory_bytes: u64,
}

impl Node {
    /// Runs a program: its first task, and all that this submits. What became of it goes to `keeper`, who also answers
    /// for it meanwhile.
    ///
    /// # Errors
    /// What it can't be run for, what its first task failed with, and that somebody stopped it.
    pub async fn run_program(&self, spec: &ProgramSpec, keeper: JobRecorder) -> Result<ProgramSummary, NodeError> {
        let keeping = Keeping::start(keeper, LogOutput::Deduplicated(self.progress.clone())).map_err(host)?;
        let result = tokio::select! {
            result = self.run(spec, &keeping) => result,
            () = keeping.serve() => Err(NodeError::Stopped),
        };
        keeping.finish(&result);
        result
    }

    async fn run(&self, spec: &ProgramSpec, keeping: &Keeping) -> Result<ProgramSummary, NodeError> {
        let (path, name) = spec.program.rsplit_once('#').unwrap_or((&spec.program, MAIN));
        let path = Path::new(path);
        let built_before = self.progress.build_time();
        let program = self.program(path, spec.limits).await?;
        let build_seconds = (self.progress.build_time() - built_before).as_secs_f64();
        let begun = || self.progress.enter(Phase::Running, 0);
        let first = FirstTask { path, name, arguments: &spec.arguments, seed: spec.seed, lasting: None };
        let summary = run(&*self.hub()?, program, first, keeping, begun).await?;
        Ok(ProgramSummary { build_seconds, ..summary })
    }

    /// Builds a program, if it is the folder of a crate, compiles it, and asks it for its tasks.
    pub(super) async fn program(&self, path: &Path, limits: Limits) -> Result<Arc<Program>, NodeError> {
        let loaded = self.functions.load_path("", path).await?;
        let program = Arc::new(program(&loaded, limits)?);
        if let Some(neighbours) = &self.options.neighbours {
            neighbours.know(&program);
        }
        if let Some(cluster) = &self.options.cluster {
            cluster.know(program.compiled.id(), File::open(&loaded.file).map_err(NodeError::file(&loaded.file))?);
        }
        Ok(program)
    }

    fn outside(&self) -> Option<Arc<dyn Outside>> {
        let neighbours = self.options.neighbours.clone().map(|neighbours| Arc::new(neighbours) as Arc<dyn Outside>);
        neighbours.or_else(|| self.options.cluster.as_ref().map(Cluster::outside))
    }

    /// What this node does for its cluster.
    fn side(&self, hub: &Arc<Hub>) -> Side {
        // Builds for other nodes are not shown as progress of this node's jobs.
        let functions = self.functions.with_progress(Arc::default());
        let folder = self.options.cache.join("fetched");
        let (limits, unit_bytes_max) = (self.options.limits, self.options.memory_bytes_max / 2);
        let fitter = UnitServer::new(self.pool.clone(), functions.clone(), limits, unit_bytes_max);
        let load = move |file: File, path: PathBuf, limits: Limits| -> Loading {
            let functions = functions.clone();
            Box::pin(async move { program(&functions.load(file, &path).await?, limits).map(Arc::new) })
        };
        Side {
            loader: Loader { folder, load: Box::new(load) },
            runner: runner(hub),
            fitter,
            limits: self.options.limits,
            object_bytes_max: self.options.object_bytes_max,
        }
    }

    /// Starts what runs programs before there is one: others may have some run here.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn begin_programs(&self) -> Result<(), Fault> {
        self.hub().map(drop)
    }

    /// Gets the node ready to go. Done once no other needs anything of it, and no job of its own runs.
    ///
    /// # Errors
    /// When it can't run programs.
    #[doc(hidden)]
    pub async fn drain(&self) -> Result<(), Fault> {
        let asker = self.hub()?.asker();
        asker.leave().await;
        Ok(())
    }

    /// The hub of all programs that this node runs, started for the first of them.
    pub(crate) fn hub(&self) -> Result<Arc<Hub>, Fault> {
        let mut hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = &*hub {
            return Ok(hub.clone());
        }
        let (node, first) = (NodeId(self.options.number.into()), u32::from(self.options.number) * WORKERS_MAX);
        let outside = self.outside();
        let options = HubOptions {
            node,
            // One that knows no others has them all.
            numbers: first..if outside.is_some() { first + WORKERS_MAX } else { NUMBERS_MAX },
            outside,
            workers: self.options.workers,
            worker_options: ProgramWorkerOptions {
                limits: self.options.limits,
                sandboxes: SANDBOXES_MAX,
                inline: true,
                value_bytes_max: self.options.object_bytes_max,
                program: self.options.worker.clone(),
                gpus: self.gpus.clone(),
            },
            resources: machine(&self.options),
            job_limits: JOB_LIMITS,
            store: StoreOptions {
                memory_bytes_max: self.options.object_bytes_max,
                job_bytes_max: u64::MAX,
                folder: self.options.spill.clone(),
                reserve_bytes: self.options.disk_reserve_bytes,
            },
        };
        let (resources, slots) = (options.resources.clone(), self.options.workers as u32);
        let started = Arc::new(Hub::start(options).map_err(host)?);
        if let Some(neighbours) = &self.options.neighbours {
            neighbours.enter(node, started.asker(), resources, slots);
        } else if let Some(cluster) = &self.options.cluster {
            cluster.begin(started.asker(), &resources, slots, self.side(&started));
        }
        Ok(hub.insert(started).clone())
    }
}

/// What came of a job that has ended just now.
pub(super) fn summary(
    keeping: &Keeping,
    result: serde_json::Value,
    counts: &Counts,
    started: Instant,
) -> ProgramSummary {
    ProgramSummary {
        job: keeping.name().map(|name| name.as_str().to_owned()),
        state: "succeeded",
        result,
        counts: keeping.counts(),
        spilled_bytes: counts.spilled_bytes,
        restored_bytes: counts.restored_bytes,
        build_seconds: 0.0,
        seconds: started.elapsed().as_secs_f64(),
        peak_memory_bytes: peak_memory_bytes(std::process::id()),
    }
}

/// What a program begins with.
struct FirstTask<'a> {
    path: &'a Path,
    name: &'a str,
    arguments: &'a [(String, String)],
    seed: u64,
    /// If another node may take it over: see [`NewJob::lasting`].
    lasting: Option<(Arc<str>, Vec<Remnant>)>,
}

/// Has a hub run a program that is loaded.
async fn run(
    hub: &Hub,
    program: Arc<Program>,
    first: FirstTask<'_>,
    keeping: &Keeping,
    begun: impl FnOnce(),
) -> Result<ProgramSummary, NodeError> {
    let FirstTask { path, name, arguments, seed, lasting } = first;
    let function = find(&program, name, path)?;
    // Files may be many, and their disk slow.
    let (of, given) = (program.clone(), arguments.to_vec());
    let arguments = tokio::task::spawn_blocking(move || arguments::arguments(&of.tasks[function], &given));
    let (arguments, given) = arguments.await??;
    let ended = || Fault::new(Code::Host, "the node ended before the program did");
    let started = Instant::now();
    let mut job = hub.submit(NewJob {
        program,
        first: First::Function(function as u32, arguments),
        seed,
        lasting,
        given: Arc::new(given),
        bars: keeping.bars(),
        log: keeping.log().ok_or_else(ended)?,
        left: keeping.left(),
    });
    keeping.begun(job.asker(), job.id());
    begun();
    let JobResult { result, counts } = job.result().await.ok_or_else(ended)?;
    let result = result.map_err(|error| NodeError::Task((*error).clone()))?;
    Ok(summary(keeping, arguments::result(name, &result)?, &counts, started))
}

/// What runs jobs of the cluster, for as long as the hub is there.
fn runner(hub: &Arc<Hub>) -> Runner {
    let hub = Arc::downgrade(hub);
    Box::new(move |program, name, arguments, remnants, keeper| {
        let hub = hub.clone();
        Box::pin(async move {
            // What other nodes and tenants say opens nothing of this machine, whoever let it in.
            if let Some(name) = arguments::names_files(&arguments) {
                return Err(NodeError::Invalid(format!("argument `{name}` is a file: a cluster's job has none")));
            }
            let hub = hub.upgrade().ok_or(NodeError::Dropped)?;
            let keeping = Keeping::start(keeper, LogOutput::Callback(Box::new(|_| {}))).map_err(host)?;
            let lasting = keeping.name().map(|name| (name.as_str().into(), remnants));
            let path = Path::new("the program");
            let first = FirstTask { path, name: &name, arguments: &arguments, seed: 0, lasting };
            let result = tokio::select! {
                result = run(&hub, program, first, &keeping, || {}) => result,
                () = keeping.serve() => Err(NodeError::Stopped),
            };
            keeping.finish(&result);
            result
        })
    })
}

fn host(error: std::io::Error) -> Fault {
    Fault::new(Code::Host, format!("the node can't run programs: {error}"))
}

/// The tasks of a component.
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

pub(super) fn find(program: &Program, name: &str, path: &Path) -> Result<usize, Fault> {
    let is_task = |task: &&ProgramTask| task.kind == TaskKind::Task;
    let found = program.tasks.iter().position(|task| is_task(&task) && &*task.name == name);
    let is_generator = |task: &ProgramTask| task.kind == TaskKind::Generator && &*task.name == name;
    found.ok_or_else(|| {
        if program.tasks.iter().any(is_generator) {
            let message = format!("`{name}` is a generator: a task takes its items, no job begins with it");
            return Fault::new(Code::Export, message).of(&path.display().to_string());
        }
        let there: Vec<_> = program.tasks.iter().filter(is_task).map(|task| &*task.name).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        let message = format!("it has no task `{name}`; its tasks are: {there} (choose one by PATH#TASK)");
        Fault::new(Code::Export, message).of(&path.display().to_string())
    })
}
