//! The composition root: a job, from its file to its models or rows.
//!
//! [`Job`] is what a user writes; [`Node`] has the workers, the compiler and the
//! folders; [`Node::submit`] reads, transforms, groups, trains and writes, and
//! [`Node::predict`] uses what was written. No other room is tied to another
//! here by anything but its public face, and no guest's code runs in this
//! process.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod cluster;
mod error;
pub mod machine;
mod program;

pub use cluster::{
    ClientTimes, Cluster, ClusterClient, ClusterError, ClusterJob, ClusterOptions, Followed, ListenOn, Member,
    MemberState, NewClusterJob, NodeAddress, create_cluster, create_token,
};
pub use error::NodeError;
pub use program::{
    Amounts, ArgumentPlan, ClientJob, ClientJobSpec, Listen, LoadedProgram, ObjectValue, ProgramPlan, ProgramSpec,
    ProgramSummary, ProgramTask, find_program,
};
#[doc(hidden)]
pub use program::{Neighbours, Saying, hear_any, said_any};
pub use sandbar_core::{Code, Fault, FunctionKind, Limits};
pub use sandbar_dataset::OutputFormat;
pub use sandbar_functions::{
    BuildError, BuildReporter, FunctionError, Inspected, InspectedFunction, InspectedParameter, build_crate,
};
pub use sandbar_jobs::{
    ActorRow, BundleRow, DurationStats, ErrorRow, GroupRow, HolderRow, InspectError, JobCounts, JobFailure,
    JobFolderLimits, JobName, JobQuery, JobRecord, JobRecorder, JobResponse, JobStore, JobStoreError, JobSummary,
    Listing, LogCounts, LogReader, LoggedLine, MemoryView, NameSummary, NodeRow, ObjectRow, ProcessRow, ProgressRow,
    ResourceRow, RunState, StopMark, StoredJob, TaskRow, WorkerRow, trace,
};
pub use sandbar_jobs::{JobProgress, Phase};
pub use sandbar_machine::has_little_memory;
pub use sandbar_sandbox::CONTRACT;
pub use sandbar_store::Heap;
pub use sandbar_train::{
    ColumnPlan, FunctionPlan, GroupFailure, InputPlan, InputSpec, Job, JobFileError, JobOutcome, JobPlan, ModelPlan,
    ModelSpec, OutputPlan, OutputSpec, Override, PredictSpec, PredictSummary, RowsSummary, TextTable, TrainError,
    TrainPlan, TrainSpec, TrainSummary, TransformSpec,
};
pub use sandbar_wire::PROTOCOL_VERSION;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sandbar_functions::{FunctionLoader, LoaderOptions};
use sandbar_train::{JobRunner, JobRunnerOptions, RemoteTrainers};
use sandbar_worker::{Compiler, GpuProcesses, NativeHandlers, Pool, PoolOptions};

pub use sandbar_dense::{Costs as GpuCosts, DeviceInfo as GpuInfo, DeviceProfile as GpuProfile};
pub use sandbar_worker::GpuMachine;
pub use sandbar_worker::program::{PROGRAM_ARGUMENT, run_program_worker};
pub use sandbar_worker::{COMPILER_ARGUMENT, WORKER_ARGUMENT, run_compiler};

/// Runs a worker until its node closes the socket.
///
/// # Errors
/// Of its set-up and its socket.
pub fn run_worker() -> std::io::Result<()> {
    sandbar_worker::run_worker(NativeHandlers {
        collectors: sandbar_train::create_block_collector,
        readers: sandbar_train::create_row_group_reader,
    })
}

/// Where a node keeps things, and how many workers it has.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Its number: no two of a cluster have the same, and none is used again.
    pub number: u16,
    /// Others of this process that it runs tasks for, and that run tasks for it.
    #[doc(hidden)]
    pub neighbours: Option<Neighbours>,
    /// The cluster that it is in, whose nodes run tasks for it, and it for them.
    pub cluster: Option<Cluster>,
    /// Worker processes.
    pub workers: usize,
    /// What programs are told that there is.
    pub resources: NodeResources,
    /// What a call may ask for at most.
    pub limits: Limits,
    /// Folder for what can be made again: compiled code, components.
    pub cache: PathBuf,
    /// Folders of functions that can be named without their path.
    pub shipped: Vec<PathBuf>,
    /// Folder for what does not fit in memory.
    pub spill: PathBuf,
    /// Memory for grouped rows before they spill, in bytes.
    pub memory_bytes_max: u64,
    /// Memory for objects of programs before they spill, in bytes.
    pub object_bytes_max: u64,
    /// What objects leave free of the disk, in bytes; a usual share otherwise.
    pub disk_reserve_bytes: Option<u64>,
    /// The program `host-worker`: a worker, or the compiler.
    pub worker: PathBuf,
    /// GPUs, if jobs may use any.
    pub gpus: Option<Arc<GpuMachine>>,
    /// Whether a worker starts with the first call instead of with the node.
    pub on_demand: bool,
}

/// What tasks may ask for, where that is not what was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeResources {
    /// Processors; one for each worker otherwise.
    pub cpus: Option<f64>,
    /// Devices; none otherwise.
    pub gpus: Option<f64>,
    /// What else there is, by name.
    pub custom: Vec<(String, f64)>,
}

/// A node: this process, its workers and its compiler.
pub struct Node {
    pool: Arc<Pool>,
    functions: FunctionLoader,
    jobs: JobRunner,
    options: NodeOptions,
    gpus: Option<Arc<GpuProcesses>>,
    progress: Arc<JobProgress>,
    /// What runs programs, once there was one.
    hub: Mutex<Option<Arc<program::Hub>>>,
}

impl Node {
    /// Starts the workers, unless they start on demand. Call it inside a tokio runtime.
    pub fn start(options: NodeOptions) -> Node {
        let gpus = options.gpus.clone().map(GpuProcesses::new);
        let pool = Pool::start(PoolOptions {
            workers: options.workers,
            limits: options.limits,
            program: options.worker.clone(),
            gpus: gpus.clone(),
            on_demand: options.on_demand,
        });
        let (pool, progress) = (Arc::new(pool), Arc::<JobProgress>::default());
        let compiler = Compiler::new(options.cache.join("compiled"), options.worker.clone());
        let functions = FunctionLoader::new(
            pool.clone(),
            compiler,
            progress.clone(),
            LoaderOptions { limits: options.limits, cache: options.cache.clone(), shipped: options.shipped.clone() },
        );
        let jobs = JobRunner::new(
            pool.clone(),
            functions.clone(),
            progress.clone(),
            JobRunnerOptions {
                spill: options.spill.clone(),
                memory_bytes_max: options.memory_bytes_max,
                gpus: options.gpus.clone(),
                remote: options.cluster.clone().map(|cluster| Arc::new(cluster) as Arc<dyn RemoteTrainers>),
            },
        );
        Node { pool, functions, jobs, options, gpus, progress, hub: Mutex::default() }
    }

    /// Runs a job.
    ///
    /// # Errors
    /// Fails if the whole job fails; failures of single groups are in its summary.
    pub async fn submit(&self, job: &Job) -> Result<JobOutcome, NodeError> {
        Ok(self.jobs.run(job).await?)
    }

    /// Plans a job by the checks of [`Node::submit`], without reading rows or building crates.
    ///
    /// # Errors
    /// Fails where [`Node::submit`] would before it reads rows.
    pub async fn plan(&self, job: &Job) -> Result<JobPlan, NodeError> {
        Ok(self.jobs.plan(job).await?)
    }

    /// Predicts with stored models.
    ///
    /// # Errors
    /// Fails if the models or the input are unusable; rows without a model have null predictions.
    pub async fn predict(&self, spec: &PredictSpec) -> Result<PredictSummary, NodeError> {
        Ok(self.jobs.predict(spec).await?)
    }

    /// Inspects the component or crate at `path`.
    ///
    /// # Errors
    /// Fails if it does not exist, its build fails, or it is not a valid component.
    pub async fn inspect(&self, path: &Path) -> Result<Inspected, NodeError> {
        Ok(self.functions.inspect(path).await?)
    }

    /// How far the job at hand is.
    pub fn progress(&self) -> &Arc<JobProgress> {
        &self.progress
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(neighbours) = &self.options.neighbours {
            neighbours.leave(self.options.number);
        }
    }
}
