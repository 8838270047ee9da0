//! Training of work units, on this node's workers or on other nodes.
//!
//! The models of a unit are a function of its numbers, its trainers and the job's seed, wherever they are computed.
//! Another node receives the whole unit and returns what its workers returned. Units of a lost node are trained here.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, FutureExt as _, select_all};
use sandbar_core::{Blame, Code, ComponentId, Fault, FunctionKind, JobRun, Limits, NodeId, TenantId};
use sandbar_dataset::UnitShape;
use sandbar_dense::DeviceChoice;
use sandbar_functions::{FunctionLoader, LoadedComponent, log_lines};
use sandbar_jobs::JobProgress;
use sandbar_store::{SegmentDraft, SegmentPool};
use sandbar_worker::{
    Binding, CallJob, CallRequest, CallScheduler, CallUsage, CallWork, Groups, JobCalls, Payload, Pool,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::TrainError;
use crate::results::FittedModels;

/// Finds other nodes that train units.
pub trait RemoteTrainers: Send + Sync + std::fmt::Debug {
    /// Returns the other nodes, for a job whose trainers are in these components.
    fn trainers(&self, components: Vec<(ComponentId, File)>) -> BoxFuture<'_, Vec<Arc<dyn UnitTrainer>>>;
}

/// Another node that trains units.
pub trait UnitTrainer: Send + Sync + std::fmt::Debug {
    /// Returns the number of units that it trains concurrently.
    fn slots(&self) -> usize;

    /// Trains a unit. Returns the models and log lines.
    ///
    /// # Errors
    /// Fails if the node is lost, or can't train the unit.
    fn fit<'a>(&'a self, unit: &'a UnitRequest<'a>) -> BoxFuture<'a, Result<UnitLog, Fault>>;
}

/// The fitted models of each trainer, and the log lines.
pub type UnitLog = (Vec<FittedModels>, Vec<String>);

/// A unit to train.
#[derive(Debug)]
pub struct UnitRequest<'a> {
    /// The tenant that it is of.
    pub tenant: TenantId,
    /// The job that it is of, in accounts.
    pub run: &'a JobRun,
    /// Trainers.
    pub models: &'a [Arc<Binding>],
    /// Seed of the job.
    pub seed: u64,
    /// Rows of the groups.
    pub payload: &'a Payload,
    /// Positions of the groups in the payload.
    pub groups: &'a Groups,
    /// Number of concurrent calls for each trainer.
    pub shares: usize,
}

/// Distributes the units of a job among this node and others.
pub(crate) struct UnitScheduler {
    calls: JobCalls,
    progress: Arc<JobProgress>,
    models: Vec<Arc<Binding>>,
    seed: u64,
    /// Units of this node, if other nodes train some.
    local: Arc<Semaphore>,
    remote: Vec<RemoteTrainer>,
    remote_groups: AtomicU64,
}

struct RemoteTrainer {
    trainer: Arc<dyn UnitTrainer>,
    slots: Arc<Semaphore>,
    is_lost: AtomicBool,
}

impl UnitScheduler {
    pub(crate) fn new(
        calls: JobCalls,
        progress: Arc<JobProgress>,
        models: Vec<Arc<Binding>>,
        seed: u64,
    ) -> UnitScheduler {
        let local = Arc::new(Semaphore::new(2 * calls.pool().workers()));
        UnitScheduler { calls, progress, models, seed, local, remote: Vec::new(), remote_groups: AtomicU64::new(0) }
    }

    /// Sets the other nodes.
    pub(crate) fn set_remote(&mut self, trainers: Vec<Arc<dyn UnitTrainer>>) {
        let remote = |trainer: Arc<dyn UnitTrainer>| RemoteTrainer {
            slots: Arc::new(Semaphore::new(2 * trainer.slots())),
            trainer,
            is_lost: AtomicBool::new(false),
        };
        self.remote = trainers.into_iter().map(remote).collect();
    }

    pub(crate) fn models(&self) -> &[Arc<Binding>] {
        &self.models
    }

    /// Returns the number of concurrent units.
    pub(crate) fn concurrency(&self) -> usize {
        2 * (self.calls.pool().workers() + self.remote.iter().map(|remote| remote.trainer.slots()).sum::<usize>())
    }

    /// Returns the number of groups that other nodes trained.
    pub(crate) fn remote_groups(&self) -> u64 {
        self.remote_groups.load(Relaxed)
    }

    /// Trains all models of a unit.
    pub(crate) async fn fit(
        &self,
        payload: &Payload,
        groups: &Groups,
        shape: UnitShape,
    ) -> Result<Vec<FittedModels>, TrainError> {
        let (tenant, run, shares) = (self.calls.tenant(), self.calls.run(), shares(shape));
        let unit = UnitRequest { tenant, run, models: &self.models, seed: self.seed, payload, groups, shares };
        if self.remote.is_empty() {
            return fit_locally(&self.calls, &self.progress, &unit).await;
        }
        let permit = match self.acquire().await {
            (permit, None) => permit,
            (permit, Some(remote)) => match remote.trainer.fit(&unit).await {
                Ok((fitted, log)) => {
                    log.into_iter().for_each(|line| self.progress.log(line));
                    self.progress.add_models(fitted.iter().map(FittedModels::models).sum());
                    self.remote_groups.fetch_add(groups.count.into(), Relaxed);
                    return Ok(fitted);
                }
                Err(fault) => {
                    if !remote.is_lost.swap(true, Relaxed) {
                        self.progress.log(format!("{fault}; its units are trained on this node"));
                    }
                    drop(permit);
                    self.local.clone().acquire_owned().await.ok()
                }
            },
        };
        let fitted = fit_locally(&self.calls, &self.progress, &unit).await;
        drop(permit);
        fitted
    }

    /// Waits for the first free slot, of this node or of another.
    async fn acquire(&self) -> (Option<OwnedSemaphorePermit>, Option<&RemoteTrainer>) {
        let local = self.local.clone().acquire_owned().map(|permit| (permit.ok(), None)).boxed();
        let remote = self.remote.iter().filter(|remote| !remote.is_lost.load(Relaxed)).map(|remote| {
            let permit = remote.slots.clone().acquire_owned();
            permit.map(move |permit| (permit.ok(), Some(remote))).boxed()
        });
        select_all(std::iter::once(local).chain(remote)).await.0
    }
}

/// A trainer in a message to another node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TrainerRef {
    /// Component of the trainer.
    pub component: ComponentId,
    /// Index among the component's functions.
    function: u32,
    params: String,
    /// Name in errors.
    name: String,
    device: Option<DeviceChoice>,
}

impl TrainerRef {
    /// Refers to a bound trainer.
    pub fn for_binding(binding: &Binding) -> TrainerRef {
        let (function, params, name) = (binding.function, binding.params.clone(), binding.name.clone());
        TrainerRef { component: binding.program.id(), function, params, name, device: binding.device }
    }
}

/// Maximum number of trainers that a node keeps loaded for others.
const BINDINGS_MAX: usize = 256;

/// Trains units for other nodes.
#[derive(Debug)]
pub struct UnitServer {
    pool: Arc<Pool>,
    functions: FunctionLoader,
    /// Limits of a call.
    limits: Limits,
    /// Maximum bytes of a unit.
    unit_bytes_max: u64,
    slots: Arc<Semaphore>,
    loaded: Mutex<LoadedTrainers>,
    /// Memory of units of the tenant whose unit came last: another tenant gets other memory.
    segments: Mutex<(TenantId, SegmentPool)>,
}

#[derive(Debug, Default)]
struct LoadedTrainers {
    components: HashMap<ComponentId, Arc<LoadedComponent>>,
    bindings: HashMap<TrainerRef, Arc<Binding>>,
}

impl UnitServer {
    /// Creates a server on the workers of `pool`, for calls within `limits` and units of at most `unit_bytes_max`
    /// bytes.
    pub fn new(pool: Arc<Pool>, functions: FunctionLoader, limits: Limits, unit_bytes_max: u64) -> UnitServer {
        let slots = Arc::new(Semaphore::new(2 * pool.workers()));
        let (loaded, segments) = (Mutex::default(), Mutex::default());
        UnitServer { pool, functions, limits, unit_bytes_max, slots, loaded, segments }
    }

    /// Waits for a free slot for a unit of `bytes` bytes.
    ///
    /// # Errors
    /// Fails if the unit is too large.
    pub async fn acquire(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Fault> {
        if bytes > self.unit_bytes_max {
            let message =
                format!("a unit of {bytes} bytes exceeds the limit of this node, {} bytes", self.unit_bytes_max);
            return Err(Fault::new(Code::Host, message));
        }
        self.slots.clone().acquire_owned().await.map_err(|_| Fault::new(Code::Host, "the node is shutting down"))
    }

    /// Allocates memory for a unit of a tenant.
    ///
    /// # Errors
    /// Fails if no memory is available.
    pub fn draft(&self, tenant: TenantId, bytes: u64) -> std::io::Result<SegmentDraft> {
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        if segments.0 != tenant {
            *segments = (tenant, SegmentPool::default());
        }
        segments.1.draft(usize::try_from(bytes).map_err(std::io::Error::other)?)
    }

    /// Binds trainers, whose components are at the paths that `path_of` returns.
    ///
    /// # Errors
    /// Fails if a component is invalid or lacks the trainer.
    pub async fn bind(
        &self,
        trainers: &[TrainerRef],
        limits: Limits,
        path_of: impl Fn(ComponentId) -> PathBuf,
    ) -> Result<Vec<Arc<Binding>>, Fault> {
        let limits = limits.within(&self.limits);
        let mut bindings = Vec::with_capacity(trainers.len());
        for trainer in trainers {
            let known = self.loaded().bindings.get(trainer).filter(|known| known.limits == limits).cloned();
            let binding = match known {
                Some(known) => known,
                None => self.bind_one(trainer, limits, &path_of(trainer.component)).await?,
            };
            bindings.push(binding);
        }
        Ok(bindings)
    }

    async fn bind_one(&self, trainer: &TrainerRef, limits: Limits, path: &Path) -> Result<Arc<Binding>, Fault> {
        let known = self.loaded().components.get(&trainer.component).cloned();
        let component = match known {
            Some(known) => known,
            None => {
                let file = File::open(path).map_err(|e| Fault::new(Code::Host, format!("{}: {e}", path.display())))?;
                Arc::new(self.functions.load(file, path).await?)
            }
        };
        if component.compiled.id() != trainer.component {
            return Err(Fault::new(Code::Export, "the file is another component").in_function(&trainer.name));
        }
        let function = component.functions.get(trainer.function as usize);
        if function.is_none_or(|known| known.kind != FunctionKind::Trainer) {
            return Err(Fault::new(Code::Export, "it has no such trainer").in_function(&trainer.name));
        }
        let component = self.insert(trainer.component, component);
        let (params, name) = (trainer.params.clone(), trainer.name.clone());
        let binding = Binding::new(component.compiled.clone(), trainer.function, params, limits, name)?;
        let binding = binding.on(trainer.device);
        self.loaded().bindings.insert(trainer.clone(), binding.clone());
        Ok(binding)
    }

    /// Inserts a component, unless another unit has loaded it concurrently. Returns the one that is kept.
    fn insert(&self, id: ComponentId, component: Arc<LoadedComponent>) -> Arc<LoadedComponent> {
        let mut loaded = self.loaded();
        if loaded.bindings.len().max(loaded.components.len()) >= BINDINGS_MAX {
            *loaded = LoadedTrainers::default();
        }
        loaded.components.entry(id).or_insert(component).clone()
    }

    fn loaded(&self) -> MutexGuard<'_, LoadedTrainers> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Trains a unit of node `origin`, as a job of `scheduler`. Returns its models and log lines.
    ///
    /// # Errors
    /// Fails if this node fails; failures of groups are in the result.
    pub async fn fit(
        &self,
        unit: &UnitRequest<'_>,
        scheduler: &dyn CallScheduler,
        origin: Option<NodeId>,
    ) -> Result<UnitLog, Fault> {
        let progress = JobProgress::default();
        let (run, usage) = (unit.run.clone(), CallUsage::default());
        if let Payload::File { file, .. } = unit.payload {
            usage.add(|usage| usage.network_bytes += file.bytes() as u64);
        }
        let job = CallJob { name: "train", tenant: unit.tenant, origin, run, usage };
        let calls = JobCalls::start(&self.pool, scheduler, job)?;
        let fitted = fit_locally(&calls, &progress, unit).await;
        let fault = |error| match error {
            TrainError::Fault(fault) => fault,
            other => Fault::new(Code::Host, other.to_string()),
        };
        Ok((fitted.map_err(fault)?, progress.take_log()))
    }
}

/// Context of a unit's calls.
struct FitContext<'a> {
    calls: &'a JobCalls,
    progress: &'a JobProgress,
    seed: u64,
}

/// Fits the groups of a unit on the workers of this node.
pub(crate) async fn fit_locally(
    calls: &JobCalls,
    progress: &JobProgress,
    unit: &UnitRequest<'_>,
) -> Result<Vec<FittedModels>, TrainError> {
    let context = FitContext { calls, progress, seed: unit.seed };
    let fits = unit.models.iter().map(|binding| fit(&context, binding, unit.payload, unit.groups, unit.shares));
    futures::future::try_join_all(fits).await
}

/// Maximum groups of a unit that is split among several calls. A small group may take long to train.
const SHARED_GROUPS_MAX: usize = 4096;
/// Maximum mean rows of the groups of such a unit.
const SHARED_ROWS_MAX: usize = 1024;
/// Maximum bytes that the calls of a unit read together. Each call reads the whole unit.
const SHARED_BYTES_MAX: usize = 16 << 20;
/// Maximum calls of a unit for each model.
const SHARES_MAX: usize = 64;

/// Returns the number of calls that a unit is split into, for each model. It depends on the data alone: the groups of a
/// call share a sandbox, so that a trainer with state between groups may return other models for other calls.
fn shares(shape: UnitShape) -> usize {
    if shape.groups > SHARED_GROUPS_MAX || shape.rows > SHARED_ROWS_MAX.saturating_mul(shape.groups) {
        return 1;
    }
    let bytes = shape.rows.saturating_mul(shape.columns).saturating_mul(size_of::<f64>()).max(1);
    (SHARED_BYTES_MAX / bytes).clamp(1, SHARES_MAX.min(shape.groups.max(1)))
}

/// Fits all groups of a unit with one model, in `shares` concurrent calls.
async fn fit(
    context: &FitContext<'_>,
    binding: &Arc<Binding>,
    payload: &Payload,
    groups: &Groups,
    shares: usize,
) -> Result<FittedModels, TrainError> {
    let count = groups.count as usize;
    let bounds = |share: usize| (share * count / shares) as u32;
    let calls = (0..shares).map(|share| {
        let groups = Groups { first: bounds(share), count: bounds(share + 1), ..groups.clone() };
        fit_share(context, binding, payload, groups, count)
    });
    let mut fitted = FittedModels::new(count);
    futures::future::try_join_all(calls).await?.into_iter().for_each(|share| fitted.merge(share));
    Ok(fitted)
}

/// Fits a share of a unit's `unit_groups` groups. Calls again for the remaining groups as long as a call settles some:
/// the output of a call is limited.
async fn fit_share(
    context: &FitContext<'_>,
    binding: &Arc<Binding>,
    payload: &Payload,
    mut groups: Groups,
    unit_groups: usize,
) -> Result<FittedModels, TrainError> {
    let mut fitted = FittedModels::new(unit_groups);
    loop {
        let work = CallWork::Fit(payload.clone(), groups.clone().into());
        let response = context.calls.call(CallRequest { binding: binding.clone(), seed: context.seed, work }).await;
        log_lines(context.progress, &binding.name, &response.log);
        let completed = match response.result {
            Ok(completed) => completed,
            Err(fault) if fault.code.blame() == Blame::Host => return Err(fault.into()),
            Err(fault) => {
                let rest = (groups.first..groups.count).filter(|g| !groups.without.contains(g));
                fitted.faults.extend(rest.map(|g| (g, fault.clone())));
                return Ok(fitted);
            }
        };
        let models = fitted.models();
        let mut settled = fitted.add(&completed.product.into_batches()?)?;
        settled.extend(completed.lost_groups.iter().map(|(g, _)| *g));
        fitted.faults.extend(completed.lost_groups);
        let settled_before = groups.without.len();
        groups.without.extend(settled);
        context.progress.add_models(fitted.models() - models);
        if groups.without.len() >= (groups.count - groups.first) as usize || groups.without.len() == settled_before {
            return Ok(fitted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_small_groups_are_split_among_calls() {
        for (groups, rows, columns, expected) in [
            (0, 0, 2, 1),
            (1, 10, 2, 1),
            (24, 240, 3, 24),
            (1000, 100_000, 2, 10),
            (1000, 10_000, 2, 64),
            (4096, 400_000, 2, 2),
            // Many groups are fast to train. Of large groups, each call would read all.
            (17_500, 175_000, 3, 1),
            (20, 500_000, 2, 1),
        ] {
            let shape = UnitShape { groups, columns, rows, test_rows: 0 };
            assert_eq!(shares(shape), expected, "{shape:?}");
        }
    }
}
