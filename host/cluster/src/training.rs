//! Training of units on other nodes: a request with the trainers' component ids and the unit's memory, and a response with
//! the models.

use std::fmt::Display;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use arrow_buffer::Buffer;
use futures::future::{BoxFuture, FutureExt as _};
use sandbar_batch::Header;
use sandbar_core::{ComponentId, Fault, JobRun, Limits, NodeId, TenantId};
use sandbar_store::{Mapping, SegmentPart};
use sandbar_train::{FittedModels, TrainerRef, UnitLog, UnitRequest, UnitTrainer};
use sandbar_wire::{Channel, Connection, Frames};
use sandbar_worker::{BatchLocation, GROUP_BYTES, Groups, Payload};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::error::{ClusterError, host_fault};
use crate::member::{Member, SLOTS_MAX};
use crate::state::ClusterState;
use crate::{chunks, components, encoding};

/// Channel of training requests.
pub(crate) const TRAINING: Channel = Channel::new(10);
/// Maximum bytes of a request without the unit's memory.
const REQUEST_BYTES_MAX: u64 = 16 << 20;
const RESPONSE_BYTES_MAX: u64 = 1 << 30;
/// Maximum time for each chunk that its sender has ready.
const CHUNK_TIME_MAX: Duration = Duration::from_secs(30);

/// A request to train a unit. The unit's memory follows. The encoding depends on the order of the fields.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TrainRequest {
    /// The tenant of the job.
    pub(crate) tenant: TenantId,
    /// The job, in accounts.
    pub(crate) run: JobRun,
    pub(crate) trainers: Vec<TrainerRef>,
    pub(crate) limits: Limits,
    pub(crate) seed: u64,
    pub(crate) groups: Groups,
    pub(crate) batches: Vec<BatchLocation>,
    /// Bytes of the unit's memory.
    pub(crate) bytes: u64,
    /// Number of concurrent calls for each trainer.
    pub(crate) shares: u32,
}

/// The models of one trainer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TrainedModels {
    /// Headers and bodies of batches of models.
    pub(crate) batches: Vec<(ByteBuf, ByteBuf)>,
    /// Groups that failed.
    pub(crate) faults: Vec<(u32, Fault)>,
}

/// The models of each trainer, and the log lines.
pub(crate) type TrainResponse = Result<(Vec<TrainedModels>, Vec<String>), Fault>;

/// Another node that trains units.
struct NodeTrainer {
    name: String,
    slots: usize,
    connection: Connection,
}

impl std::fmt::Debug for NodeTrainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NodeTrainer").field(&self.name).finish()
    }
}

impl UnitTrainer for NodeTrainer {
    fn slots(&self) -> usize {
        self.slots
    }

    fn fit<'a>(&'a self, unit: &'a UnitRequest<'a>) -> BoxFuture<'a, Result<UnitLog, Fault>> {
        let of_node = |fault: Fault| Fault { message: format!("node {}: {}", self.name, fault.message), ..fault };
        async move { train(&self.connection, unit).await.map_err(of_node) }.boxed()
    }
}

/// Returns the other nodes that accept tasks. They fetch the components of the trainers from this node.
pub(crate) async fn trainers(cluster: &ClusterState) -> Vec<Arc<dyn UnitTrainer>> {
    let trainer = |(member, connection): (Member, Connection)| {
        let slots = member.slots.min(SLOTS_MAX) as usize;
        (slots > 0).then(|| Arc::new(NodeTrainer { name: member.name, slots, connection }) as Arc<dyn UnitTrainer>)
    };
    cluster.ready_peers().await.into_iter().filter_map(trainer).collect()
}

/// Trains a unit on another node.
async fn train(connection: &Connection, unit: &UnitRequest<'_>) -> Result<UnitLog, Fault> {
    let Payload::File { file, batches } = unit.payload else {
        return Err(host_fault("the unit is not in shared memory"));
    };
    let Some(first) = unit.models.first() else { return Ok((Vec::new(), Vec::new())) };
    let request = TrainRequest {
        tenant: unit.tenant,
        run: unit.run.clone(),
        trainers: unit.models.iter().map(|binding| TrainerRef::for_binding(binding)).collect(),
        limits: first.limits,
        seed: unit.seed,
        groups: unit.groups.clone(),
        batches: batches.to_vec(),
        bytes: file.bytes() as u64,
        shares: unit.shares as u32,
    };
    // SAFETY: no process writes to lent memory, and the payload keeps it alive.
    let memory = unsafe { Mapping::lent(file.as_fd(), file.bytes() as u64) }.map_err(host_fault)?;
    let mut frames = connection.open(TRAINING).await.map_err(host_fault)?;
    let request = encoding::postcard("the request to train a unit", &request)?;
    chunks::send(&frames, &request, CHUNK_TIME_MAX).await?;
    // The node accepts the memory once it has room for it, however long that takes.
    chunks::send(&frames, &memory, Duration::MAX).await?;
    // The duration of training is unknown. The end of the connection ends this.
    let mut response = Vec::new();
    loop {
        let chunk = frames.recv().await.map_err(host_fault)?.ok_or(ClusterError::MessageIncomplete)?;
        if chunk.is_empty() {
            break;
        }
        response.extend_from_slice(&chunk);
        if response.len() as u64 > RESPONSE_BYTES_MAX {
            return Err(ClusterError::MessageTooLong(RESPONSE_BYTES_MAX).into());
        }
    }
    let response: TrainResponse = postcard::from_bytes(&response).map_err(host_fault)?;
    let (trained, log) = response?;
    if trained.len() != unit.models.len() {
        let expected = unit.models.len();
        return Err(host_fault(format!("it returned the models of {} trainers instead of {expected}", trained.len())));
    }
    let count = unit.groups.count as usize;
    let models = trained.into_iter().map(|trained| decode_models(trained, count)).collect::<Result<_, _>>()?;
    Ok((models, log))
}

fn decode_models(trained: TrainedModels, groups: usize) -> Result<FittedModels, Fault> {
    let mut models = FittedModels::new(groups);
    for (header, body) in &trained.batches {
        let header = Header::parse(header).map_err(host_fault)?;
        let schema = sandbar_batch::decode_schema(header.schema_bytes()).map_err(host_fault)?;
        let body = Buffer::from_slice_ref(body.as_slice());
        let batch = sandbar_batch::read(&header, Arc::new(schema), &body).map_err(host_fault)?;
        models.add(&[batch])?;
    }
    if let Some((group, _)) = trained.faults.iter().find(|(group, _)| *group as usize >= groups) {
        return Err(host_fault(format!("it returned an error of group {group}, and the unit has {groups} groups")));
    }
    models.faults.extend(trained.faults);
    Ok(models)
}

fn encode_models(models: &FittedModels) -> Result<TrainedModels, Fault> {
    let encode = |batch| {
        let encoded = sandbar_batch::encode(&batch).map_err(host_fault)?;
        Ok((ByteBuf::from(encoded.header.clone()), ByteBuf::from(encoded.body())))
    };
    let batches = models.to_batches()?.into_iter().map(encode).collect::<Result<_, Fault>>()?;
    Ok(TrainedModels { batches, faults: models.faults.clone() })
}

/// Creates a fault about a unit of another node.
fn of_unit(reason: impl Display) -> Fault {
    host_fault(format!("a unit of another node: {reason}"))
}

/// Trains a unit of another node.
pub(crate) async fn serve(cluster: Arc<ClusterState>, node: Option<NodeId>, mut frames: Frames) {
    let response: TrainResponse = async {
        let runtime = cluster.runtime.get();
        let runtime = runtime.ok_or_else(|| host_fault("this node runs no tasks of other nodes"))?;
        let bytes = chunks::receive(&mut frames, REQUEST_BYTES_MAX, CHUNK_TIME_MAX).await.map_err(of_unit)?;
        let request: TrainRequest = postcard::from_bytes(&bytes).map_err(of_unit)?;
        validate(&request)?;
        let _permit = runtime.services.units.acquire(request.bytes).await?;
        let mut draft = runtime.services.units.draft(request.tenant, request.bytes).map_err(of_unit)?;
        let mut at = 0;
        let write = |chunk: &[u8]| {
            draft.put(&SegmentPart::Bytes(at, chunk))?;
            at += chunk.len();
            Ok(())
        };
        chunks::receive_into(&mut frames, request.bytes, CHUNK_TIME_MAX, write).await.map_err(of_unit)?;
        if at as u64 != request.bytes {
            return Err(of_unit(format!("it has {at} bytes instead of {}", request.bytes)));
        }
        for trainer in &request.trainers {
            components::ensure_stored(&cluster, node, trainer.component).await?;
        }
        let payload = Payload::File { file: Arc::new(draft.lend()), batches: request.batches.into() };
        let path = |component: ComponentId| runtime.services.component_path(component);
        let models = runtime.services.units.bind(&request.trainers, request.limits, path).await?;
        let shares = request.shares.max(1) as usize;
        let (tenant, run, seed, groups) = (request.tenant, &request.run, request.seed, &request.groups);
        let unit = UnitRequest { tenant, run, models: &models, seed, payload: &payload, groups, shares };
        let (models, log) = runtime.services.units.fit(&unit, &runtime.handle, node).await?;
        Ok((models.iter().map(encode_models).collect::<Result<_, Fault>>()?, log))
    }
    .await;
    if let Ok(bytes) = postcard::to_stdvec(&response) {
        // The requesting node may have disconnected.
        let _ = chunks::send(&frames, &bytes, CHUNK_TIME_MAX).await;
        let _ = frames.flush().await;
    }
}

/// Checks that all locations of a request are within its memory.
fn validate(request: &TrainRequest) -> Result<(), Fault> {
    let is_within = |at: u64, bytes: u64| at.checked_add(bytes).is_some_and(|end| end <= request.bytes);
    let groups = &request.groups;
    let is_batch_within = |batch: &BatchLocation| {
        let bytes = batch.body_bytes.checked_add(batch.header_bytes);
        bytes.is_some_and(|bytes| is_within(batch.body_at, bytes))
    };
    let is_valid = is_within(groups.table_at, u64::from(groups.count) * GROUP_BYTES as u64)
        && is_within(groups.extra_at, groups.extra_bytes)
        && groups.first <= groups.count
        && request.batches.iter().all(is_batch_within)
        && u64::from(request.shares) <= u64::from(groups.count).max(1);
    is_valid.then_some(()).ok_or_else(|| of_unit("its locations are not within its memory"))
}
