//! A node in this process, and what is usual for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbar_core::Limits;
use sandbar_node::{JobKeeper, JobShelf, Neighbours, Node, NodeOptions, NodeResources, paths};

use crate::ClientError;
use crate::job::{Job, JobOptions, Program};

/// How a client's node is to be: as that of `host submit`, where nothing else is said.
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
    neighbours: Option<Neighbours>,
}

impl ClientOptions {
    /// As usual.
    pub fn new() -> ClientOptions {
        ClientOptions::default()
    }

    /// Worker processes, which are its processors; as many as the machine has otherwise.
    pub fn workers(mut self, workers: usize) -> ClientOptions {
        self.workers = Some(workers);
        self
    }

    /// Processors that tasks may ask for; one for each worker otherwise.
    pub fn cpus(mut self, cpus: f64) -> ClientOptions {
        self.resources.cpus = Some(cpus);
        self
    }

    /// Devices that tasks may ask for; none otherwise.
    pub fn gpus(mut self, gpus: f64) -> ClientOptions {
        self.resources.gpus = Some(gpus);
        self
    }

    /// What else tasks may ask for, by name.
    pub fn resource(mut self, name: impl Into<String>, amount: f64) -> ClientOptions {
        self.resources.custom.push((name.into(), amount));
        self
    }

    /// What each task may use.
    pub fn limits(mut self, limits: Limits) -> ClientOptions {
        self.limits = limits;
        self
    }

    /// Memory in bytes that tasks may ask for ([`TaskOptions::memory`](crate::TaskOptions::memory)); two fifths of what there
    /// is otherwise.
    pub fn memory(mut self, bytes: u64) -> ClientOptions {
        self.rows_bytes = Some(bytes);
        self
    }

    /// Memory in bytes for objects, before they go to disk; three tenths of what there is otherwise.
    pub fn object_memory(mut self, bytes: u64) -> ClientOptions {
        self.objects_bytes = Some(bytes);
        self
    }

    /// Bytes of the disk that objects leave free.
    pub fn disk_reserve(mut self, bytes: u64) -> ClientOptions {
        self.disk_reserve_bytes = Some(bytes);
        self
    }

    /// The folder for what can be made again, compiled code among it; the user's own otherwise. It must be no other user's.
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> ClientOptions {
        self.cache = Some(folder.into());
        self
    }

    /// The folder of objects on disk; that for temporary files otherwise.
    pub fn spill(mut self, folder: impl Into<PathBuf>) -> ClientOptions {
        self.spill = Some(folder.into());
        self
    }

    /// The folder for what is kept of jobs; the user's own otherwise, where `host jobs` finds them.
    pub fn state(mut self, folder: impl Into<PathBuf>) -> ClientOptions {
        self.state = Some(folder.into());
        self
    }

    /// Nodes of this process that it runs tasks for, and that run tasks for it, and its number among them.
    #[doc(hidden)]
    pub fn neighbours(mut self, number: u16, neighbours: &Neighbours) -> ClientOptions {
        (self.number, self.neighbours) = (number, Some(neighbours.clone()));
        self
    }

    /// The program `host-worker`; the one beside this program otherwise.
    pub fn worker(mut self, program: impl Into<PathBuf>) -> ClientOptions {
        self.worker = Some(program.into());
        self
    }
}

/// A node in this process, for jobs of this process. Cheap to clone: with the last of them the node ends, and all its jobs.
#[derive(Clone)]
pub struct Client {
    of: Arc<OfClient>,
}

struct OfClient {
    node: Node,
    shelf: JobShelf,
}

impl Client {
    /// Starts a node. Inside a tokio runtime that has timers and input and output, which all that is asked of it needs, too.
    ///
    /// # Errors
    /// When a folder or the workers' program is not there, or not the user's.
    pub fn start(options: ClientOptions) -> Result<Client, ClientError> {
        let ClientOptions { workers, limits, rows_bytes, objects_bytes, disk_reserve_bytes, .. } = options;
        let or_else = |own: Option<PathBuf>, usual: fn() -> Result<PathBuf, String>| own.map_or_else(usual, Ok);
        let is_alone = options.neighbours.is_none();
        let node = NodeOptions {
            number: options.number,
            neighbours: options.neighbours,
            cluster: None,
            workers: workers.unwrap_or_else(sandbar_node::machine::cores).max(1),
            limits,
            cache: or_else(options.cache, paths::cache_folder).map_err(ClientError::Setup)?,
            shipped: paths::shipped(),
            spill: options.spill.unwrap_or_else(std::env::temp_dir),
            memory_bytes_max: rows_bytes.unwrap_or_else(paths::memory_for_rows),
            object_bytes_max: objects_bytes.unwrap_or_else(paths::memory_for_objects),
            disk_reserve_bytes,
            worker: or_else(options.worker, paths::worker).map_err(ClientError::Setup)?,
            gpus: None,
            on_demand: false,
            resources: options.resources,
        };
        let state = or_else(options.state, paths::state_folder).map_err(ClientError::Setup)?;
        let shelf = JobShelf::open(state.join("jobs"));
        let node = Node::start(node);
        if !is_alone {
            node.begin_programs().map_err(|fault| ClientError::Setup(fault.to_string()))?;
        }
        Ok(Client { of: Arc::new(OfClient { node, shelf }) })
    }

    /// Loads a program: a component, or the folder of a crate, which is built when it is stale. It is compiled once for all
    /// jobs that are begun with it.
    ///
    /// # Errors
    /// When it can't be built or compiled, or is none.
    pub async fn program(&self, path: impl AsRef<Path>) -> Result<Program, ClientError> {
        Ok(Program(self.of.node.load_program(path.as_ref()).await?))
    }

    /// Begins a job of a program's tasks. Several may be under way.
    ///
    /// # Errors
    /// When the node can't run programs.
    pub async fn job(&self, program: &Program, options: JobOptions) -> Result<Job, ClientError> {
        let what = format!("{}#{}", program.path().display(), options.name);
        // Where nothing can be kept of it, it runs nevertheless, and has no name.
        let keeper = self.of.shelf.begin(&what, &[]).unwrap_or_else(|_| JobKeeper::nowhere());
        Job::begin(&self.of.node, program, options, keeper).await
    }

    /// Gets the node ready to go: its neighbours give it nothing more, and fetch what only it has. Done once they have.
    ///
    /// # Errors
    /// When the node can't run programs.
    #[doc(hidden)]
    pub async fn drain(&self) -> Result<(), ClientError> {
        self.of.node.drain().await.map_err(|fault| ClientError::Setup(fault.to_string()))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
