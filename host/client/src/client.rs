//! The client's node, which runs in the client's process, and its options.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbar_core::{Fault, Limits, TenantId};
use sandbar_node::{InProcessPeers, JobRecorder, JobStore, Node, NodeOptions, NodeResources, machine};

use crate::ClientError;
use crate::job::{Job, JobOptions, Program};

/// Options of a client's node. The defaults are those of `host submit`.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    workers: Option<usize>,
    limits: Limits,
    rows_bytes: Option<u64>,
    objects_bytes: Option<u64>,
    disk_reserve_bytes: Option<u64>,
    cache: Option<PathBuf>,
    spill: Option<PathBuf>,
    state: Option<PathBuf>,
    worker: Option<PathBuf>,
    resources: NodeResources,
    number: u16,
    in_process_peers: Option<InProcessPeers>,
}

impl ClientOptions {
    /// Returns the default options.
    pub fn new() -> ClientOptions {
        ClientOptions::default()
    }

    /// Sets the number of worker processes. Default: one for each core of the machine.
    pub fn workers(mut self, workers: usize) -> ClientOptions {
        self.workers = Some(workers);
        self
    }

    /// Sets the number of CPUs that tasks share. Default: one for each worker.
    pub fn cpus(mut self, cpus: f64) -> ClientOptions {
        self.resources.cpus = Some(cpus);
        self
    }

    /// Sets the number of GPUs that tasks share. Default: 0.
    pub fn gpus(mut self, gpus: f64) -> ClientOptions {
        self.resources.gpus = Some(gpus);
        self
    }

    /// Adds a custom resource that tasks can request by name.
    pub fn resource(mut self, name: impl Into<String>, amount: f64) -> ClientOptions {
        self.resources.custom.push((name.into(), amount));
        self
    }

    /// Sets the limits of each task.
    pub fn limits(mut self, limits: Limits) -> ClientOptions {
        self.limits = limits;
        self
    }

    /// Sets the memory, in bytes, that tasks can request ([`TaskOptions::memory`](crate::TaskOptions::memory)).
    /// Default: two fifths of the memory that this process may use.
    pub fn memory(mut self, bytes: u64) -> ClientOptions {
        self.rows_bytes = Some(bytes);
        self
    }

    /// Sets the memory for objects, in bytes, above which objects spill to disk. Default: three tenths of the memory
    /// that this process may use.
    pub fn object_memory(mut self, bytes: u64) -> ClientOptions {
        self.objects_bytes = Some(bytes);
        self
    }

    /// Sets the disk space to keep free when objects spill, in bytes.
    pub fn disk_reserve(mut self, bytes: u64) -> ClientOptions {
        self.disk_reserve_bytes = Some(bytes);
        self
    }

    /// Sets the cache folder, which holds compiled code and other data that can be rebuilt. Default: the user's cache
    /// folder. The folder must belong to the user.
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> ClientOptions {
        self.cache = Some(folder.into());
        self
    }

    /// Sets the folder for spilled objects. Default: the folder for temporary files.
    pub fn spill(mut self, folder: impl Into<PathBuf>) -> ClientOptions {
        self.spill = Some(folder.into());
        self
    }

    /// Sets the folder for job records. Default: the user's state folder, which `host jobs` reads.
    pub fn state(mut self, folder: impl Into<PathBuf>) -> ClientOptions {
        self.state = Some(folder.into());
        self
    }

    /// Sets the in-process peers, with which the node exchanges tasks, and the node's number among them.
    #[doc(hidden)]
    pub fn in_process_peers(mut self, number: u16, peers: &InProcessPeers) -> ClientOptions {
        (self.number, self.in_process_peers) = (number, Some(peers.clone()));
        self
    }

    /// Sets the path of the `host-worker` program. Default: `host-worker` beside this program.
    pub fn worker(mut self, program: impl Into<PathBuf>) -> ClientOptions {
        self.worker = Some(program.into());
        self
    }
}

/// A node in this process that runs jobs of this process. Cheap to clone. Dropping the last clone ends the node and all
/// its jobs.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    node: Node,
    job_store: JobStore,
}

impl Client {
    /// Starts a node. Call this and all methods of the client inside a tokio runtime with timers and IO enabled.
    ///
    /// # Errors
    /// A folder or the worker program is missing, or does not belong to the user.
    pub fn start(options: ClientOptions) -> Result<Client, ClientError> {
        let ClientOptions { workers, limits, rows_bytes, objects_bytes, disk_reserve_bytes, .. } = options;
        let or_else = |own: Option<PathBuf>, usual: fn() -> Result<PathBuf, Fault>| own.map_or_else(usual, Ok);
        let is_alone = options.in_process_peers.is_none();
        let node = NodeOptions {
            number: options.number,
            in_process_peers: options.in_process_peers,
            cluster: None,
            workers: workers.unwrap_or_else(machine::cores).max(1),
            limits,
            cache: or_else(options.cache, machine::cache_folder).map_err(ClientError::Setup)?,
            shipped: machine::shipped(),
            spill: options.spill.unwrap_or_else(std::env::temp_dir),
            memory_bytes_max: rows_bytes.unwrap_or_else(machine::memory_for_rows),
            object_bytes_max: objects_bytes.unwrap_or_else(machine::memory_for_objects),
            disk_reserve_bytes,
            worker: or_else(options.worker, machine::worker).map_err(ClientError::Setup)?,
            gpus: None,
            on_demand: false,
            resources: options.resources,
        };
        let state = or_else(options.state, machine::state_folder).map_err(ClientError::Setup)?;
        let job_store = JobStore::open(state.join("jobs"));
        let node = Node::start(node);
        if !is_alone {
            node.programs().start().map_err(ClientError::Setup)?;
        }
        Ok(Client { shared: Arc::new(ClientShared { node, job_store }) })
    }

    /// Loads a program: a component, or the folder of a crate, which is built if it is stale. The component is compiled
    /// once for all jobs that are started with the program.
    ///
    /// # Errors
    /// The crate can't be built, the component can't be compiled, or it is not a program.
    pub async fn program(&self, path: impl AsRef<Path>) -> Result<Program, ClientError> {
        Ok(Program(self.shared.node.programs().load_program(path.as_ref()).await?))
    }

    /// Starts a job with a program's tasks. Several jobs can run at the same time.
    ///
    /// # Errors
    /// The node can't run programs.
    pub async fn job(&self, program: &Program, options: JobOptions) -> Result<Job, ClientError> {
        let program_text = format!("{}#{}", program.path().display(), options.name);
        // If the job can't be recorded, it runs without a name.
        let recorder = self.shared.job_store.create(&program_text, &[], TenantId::DEFAULT);
        let recorder = recorder.unwrap_or_else(|_| JobRecorder::disabled(TenantId::DEFAULT));
        Job::start(&self.shared.node, program, options, recorder).await
    }

    /// Drains the node: its peers send it no more tasks and fetch the objects that only it has. Returns once they have.
    ///
    /// # Errors
    /// The node can't run programs.
    #[doc(hidden)]
    pub async fn drain(&self) -> Result<(), ClientError> {
        self.shared.node.programs().drain().await.map_err(ClientError::Setup)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
