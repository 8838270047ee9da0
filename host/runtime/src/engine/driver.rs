//! What the engine needs of its surroundings: time, processes, the disk, files, and other nodes.

use std::io;
use std::time::Instant;

use sandbar_core::{Fault, NodeId, TenantId, WorkerId};
use sandbar_sched::WorkerKind;
use sandbar_store::{DiskCompletion, DiskTask, SealedFile};

use crate::file_reader::{ReadRequest, ReadResult};
use crate::link::BoxedWorkerLink;
use crate::peer::{Callback, RemoteObject, TenantComponent};

/// Performs the engine's input and output. Requests return at once; their results are later inputs of the engine.
pub(crate) trait Driver {
    fn now(&self) -> Instant;

    /// Returns the time of the machine's monotonic clock, in nanoseconds.
    fn monotonic_nanos(&self) -> u64;

    /// Starts a worker process, which serves this tenant alone.
    fn start_worker(&mut self, worker: WorkerId, kind: WorkerKind, tenant: TenantId) -> io::Result<BoxedWorkerLink>;

    /// Returns whether the node belongs to a cluster.
    fn has_peers(&self) -> bool;

    /// Requests worker ids of the cluster: [`super::Engine::add_worker_ids`].
    fn request_worker_ids(&mut self);

    /// Fetches a value of another node: [`super::Engine::fetched`] with this number.
    fn fetch(&mut self, number: u64, object: RemoteObject);

    /// Returns a callback for a value that this node fetches from itself, like [`Driver::fetch`].
    fn on_fetched(&self, number: u64) -> Callback<Result<SealedFile, Fault>>;

    /// Loads a component of another node: [`super::Engine::loaded`] with the node and its number of the program.
    fn load(&mut self, node: NodeId, program: u32, component: TenantComponent);

    /// Reads a file of a job.
    fn read_file(&mut self, request: ReadRequest);

    /// Returns the next file that was read.
    fn next_file(&mut self) -> Option<ReadResult>;

    /// Returns whether there is a next file.
    fn has_files(&self) -> bool;

    /// Writes or reads a value on disk.
    fn submit_disk_task(&mut self, task: DiskTask);

    /// Returns the next completion of a disk task.
    fn next_disk_completion(&mut self) -> Option<DiskCompletion>;
}
