//! The composition of a node: workers, compiler, job runner, runtime of programs, cluster.
//!
//! [`Node`] connects the crates, and has no logic of its own. No guest code runs in this process.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod error;
pub mod machine;

pub use error::NodeError;
#[doc(hidden)]
pub use sandbar_cluster::fuzz_tenant_request;
pub use sandbar_cluster::{
    AddressError, AuditActor, AuditError, AuditRecord, AuditSummary, ClientTimeouts, Cluster, ClusterClient,
    ClusterError, ClusterJob, ClusterOptions, ComponentError, ComponentKey, ComponentReference, ComponentSignature,
    ComponentVersion, FileArgument, FileId, FollowEvent, JobComponent, JobFileWork, JobWork, ListenOn, Member,
    MemberState, NamedStoredFile, NewClusterJob, NewComponent, NewToken, NodeAddress, PredictionWork, ProgramWork,
    RegisteredComponent, StoredFile, SubmissionKey, Tenant, TenantError, TenantSettings, TenantToken, TokenUse,
    UploadContents, UsageBy, UsageQuery, UsageReport, UsageRow, audit_folder, create_cluster, create_node_token,
    read_audit, signed_message, verify_audit,
};
/// Targets of log lines: each is the target of a module or a prefix of its submodules' targets.
pub mod log_targets {
    pub use sandbar_cluster::{ATTEMPTS_LOG_TARGET as CONNECTION_ATTEMPTS, LOG_TARGET as CLUSTER};
    pub use sandbar_jobs::LOG_TARGET as JOBS;
    pub use sandbar_runtime::LOG_TARGET as RUNTIME;
}
pub use sandbar_core::{Code, ComponentId, Fault, FunctionKind, Limits, REGISTERED_PREFIX, TenantId, UsageAmounts};
pub use sandbar_dataset::{DatasetError, NamedFile, OutputFormat, TableColumn, find_files, write_table};
pub use sandbar_dense::{Costs as GpuCosts, DeviceInfo as GpuInfo, DeviceProfile as GpuProfile};
pub use sandbar_functions::{
    BuildError, BuildReporter, FunctionError, Inspected, InspectedFunction, InspectedParameter, build_crate,
    cached_component, keep_component,
};
pub use sandbar_jobs::{
    ActorRow, BundleRow, DurationStats, ErrorRow, GroupRow, HolderRow, InspectError, JobCounts, JobFailure,
    JobFolderLimits, JobName, JobProgress, JobQuery, JobRecord, JobRecorder, JobResponse, JobStore, JobStoreError,
    JobSummary, Listing, LogCounts, LogReader, LoggedLine, MemoryView, NameSummary, NodeRow, ObjectRow, Phase,
    ProcessRow, ProgressRow, ResourceRow, RunState, StopMark, StoredJob, TaskRow, WorkerRow, now_ms, trace, utc_text,
};
pub use sandbar_machine::has_little_memory;
pub use sandbar_runtime::{
    Amounts, ArgumentPlan, ClientJob, ClientJobSpec, ClientListener, LoadedProgram, NodeResources, ObjectValue,
    ProgramError, ProgramPlan, ProgramSpec, ProgramSummary, ProgramTask, find_program,
};
#[doc(hidden)]
pub use sandbar_runtime::{FuzzInput, InProcessPeers, generate_peer_message, run_fuzz_inputs};
pub use sandbar_sandbox::CONTRACT;
pub use sandbar_store::Heap;
#[doc(hidden)]
pub use sandbar_train::fuzz_model_metadata;
pub use sandbar_train::{
    ColumnPlan, FoundComponent, FunctionPlan, GroupFailure, InputPlan, InputSpec, Job, JobFileError, JobOutcome,
    JobPlan, ModelComponent, ModelPlan, ModelSpec, NamedJobFiles, NamedPredictionFiles, OutputPlan, OutputSpec,
    Override, PredictSpec, PredictSummary, RowsSummary, TextTable, TrainError, TrainPlan, TrainSpec, TrainSummary,
    TransformSpec,
};
#[doc(hidden)]
pub use sandbar_wire::fuzz_join_token;
pub use sandbar_wire::{
    IdentityError, Name, NameError, PROTOCOL_VERSION, PublicKey, SigningKey, TenantRole, Timestamp, TokenId,
};
pub use sandbar_worker::GpuMachine;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbar_cluster::NodeServices;
use sandbar_functions::{FunctionLoader, LoaderOptions};
use sandbar_runtime::{ProgramRunner, ProgramRunnerOptions, RuntimePeers};
use sandbar_train::{JobRunner, JobRunnerOptions, RemoteTrainers, UnitServer};
use sandbar_worker::{Compiler, GpuProcesses, Pool, PoolOptions};

/// Options of a node.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Number of the node, unique in its cluster and never reused.
    pub number: u16,
    /// Other nodes in this process.
    #[doc(hidden)]
    pub in_process_peers: Option<InProcessPeers>,
    /// The cluster of the node.
    pub cluster: Option<Cluster>,
    /// Number of worker processes.
    pub workers: usize,
    /// Resources that tasks may request.
    pub resources: NodeResources,
    /// Maximum limits of a call.
    pub limits: Limits,
    /// Cache folder, for compiled code and components.
    pub cache: PathBuf,
    /// Folders of shipped functions.
    pub shipped: Vec<PathBuf>,
    /// Folder for spilled rows and objects.
    pub spill: PathBuf,
    /// Memory for grouped rows before they spill, in bytes.
    pub memory_bytes_max: u64,
    /// Memory for objects of programs before they spill, in bytes.
    pub object_bytes_max: u64,
    /// Disk space to keep free when spilling, in bytes; `None` for the default.
    pub disk_reserve_bytes: Option<u64>,
    /// Path of `host-worker`.
    pub worker: PathBuf,
    /// GPUs that jobs may use.
    pub gpus: Option<Arc<GpuMachine>>,
    /// Whether workers start with the first call instead of with the node.
    pub on_demand: bool,
}

/// A node: this process, its workers and its compiler.
#[derive(Debug)]
pub struct Node {
    functions: FunctionLoader,
    jobs: JobRunner,
    programs: Arc<ProgramRunner>,
    progress: Arc<JobProgress>,
    /// Other nodes in this process, and the number of this node among them.
    in_process_peers: Option<(InProcessPeers, u16)>,
}

impl Node {
    /// Starts the workers, unless they start on demand. Must be called within a tokio runtime.
    pub fn start(options: NodeOptions) -> Node {
        let gpus = options.gpus.clone().map(GpuProcesses::new);
        let pool = Arc::new(Pool::start(PoolOptions {
            workers: options.workers,
            limits: options.limits,
            program: options.worker.clone(),
            gpus: gpus.clone(),
            on_demand: options.on_demand,
        }));
        let progress = Arc::<JobProgress>::default();
        let compiler = Compiler::new(options.cache.join("compiled"), options.worker.clone());
        let loader_options =
            LoaderOptions { limits: options.limits, cache: options.cache.clone(), shipped: options.shipped.clone() };
        let functions = FunctionLoader::new(pool.clone(), compiler, progress.clone(), loader_options);
        let runner_options = JobRunnerOptions {
            spill: options.spill.clone(),
            memory_bytes_max: options.memory_bytes_max,
            gpus: options.gpus.clone(),
            remote: options.cluster.clone().map(|cluster| Arc::new(cluster) as Arc<dyn RemoteTrainers>),
        };
        let in_process_peers = options.in_process_peers.clone().map(|peers| (peers, options.number));
        let peers = peers(&options, &pool, &functions, &runner_options);
        let program_options = ProgramRunnerOptions {
            node: options.number,
            workers: options.workers,
            worker: options.worker,
            limits: options.limits,
            gpus,
            resources: options.resources,
            memory_bytes_max: options.memory_bytes_max,
            object_bytes_max: options.object_bytes_max,
            spill: options.spill,
            disk_reserve_bytes: options.disk_reserve_bytes,
            peers,
        };
        let programs = Arc::new(ProgramRunner::new(functions.clone(), progress.clone(), program_options));
        let jobs = JobRunner::new(pool, programs.clone(), functions.clone(), progress.clone(), runner_options);
        Node { functions, jobs, programs, progress, in_process_peers }
    }

    /// Returns the progress of the running job.
    pub fn progress(&self) -> &Arc<JobProgress> {
        &self.progress
    }

    /// Runs a job of a tenant.
    ///
    /// # Errors
    /// Fails if the whole job fails; failures of single groups are in its summary.
    pub async fn submit(&self, job: &Job, tenant: TenantId) -> Result<JobOutcome, NodeError> {
        Ok(self.jobs.run(job, tenant).await?)
    }

    /// Plans a job by the checks of [`Node::submit`], without reading rows or building crates.
    ///
    /// # Errors
    /// Fails where [`Node::submit`] would before it reads rows.
    pub async fn plan(&self, job: &Job, tenant: TenantId) -> Result<JobPlan, NodeError> {
        Ok(self.jobs.plan(job, tenant).await?)
    }

    /// Predicts with stored models.
    ///
    /// # Errors
    /// Fails if the models or the input are unusable; rows without a model have null predictions.
    pub async fn predict(&self, spec: &PredictSpec, tenant: TenantId) -> Result<PredictSummary, NodeError> {
        Ok(self.jobs.predict(spec, tenant).await?)
    }

    /// Inspects the component or crate at `path`.
    ///
    /// # Errors
    /// Fails if it does not exist, its build fails, or it is not a valid component.
    pub async fn inspect(&self, path: &Path) -> Result<Inspected, NodeError> {
        Ok(self.functions.inspect(path).await?)
    }

    /// Returns the runner of programs.
    pub fn programs(&self) -> &ProgramRunner {
        &self.programs
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some((peers, number)) = &self.in_process_peers {
            peers.remove(*number);
        }
    }
}

/// Returns the other nodes of the runtime: those of this process, or of the cluster.
fn peers(
    options: &NodeOptions,
    pool: &Arc<Pool>,
    functions: &FunctionLoader,
    job_options: &JobRunnerOptions,
) -> Option<Arc<dyn RuntimePeers>> {
    if let Some(peers) = &options.in_process_peers {
        return Some(Arc::new(peers.clone()));
    }
    let cluster = options.cluster.as_ref()?;
    // Compilations for other nodes are not progress of this node's job.
    let functions = functions.with_progress(Arc::default());
    let unit_bytes_max = options.memory_bytes_max / 2;
    Some(cluster.runtime_peers(NodeServices {
        units: UnitServer::new(pool.clone(), functions.clone(), options.limits, unit_bytes_max),
        functions,
        components: options.cache.join("fetched"),
        limits: options.limits,
        pool: pool.clone(),
        // The cluster has the services: options that held the cluster would keep it alive.
        job_options: JobRunnerOptions { remote: None, ..job_options.clone() },
        object_bytes_max: options.object_bytes_max,
    }))
}
