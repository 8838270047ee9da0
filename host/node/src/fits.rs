//! Fits of the groups of a unit: on this node's workers, or on another's.
//!
//! What comes of a unit is a function of its numbers, its trainers and the job's seed, wherever it is computed: another node
//! gets all of it, and gives back what its workers handed back. What is lost with a node is computed here.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, FutureExt as _, select_all};
use sandbar_core::{Blame, Code, ComponentId, Fault, FunctionKind, Limits};
use sandbar_dataset::UnitShape;
use sandbar_dense::DeviceChoice;
use sandbar_jobs::JobProgress;
use sandbar_store::SegmentDraft;
use sandbar_worker::{Binding, CallRequest, CallWork, Groups, Payload, Pool};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::function::{Loaded, log_lines};
use crate::results::Fitted;
use crate::{Node, NodeError};

/// Another node, which fits groups.
pub(crate) trait Place: Send + Sync + std::fmt::Debug {
    /// Units that it may have at once.
    fn slots(&self) -> usize;

    /// Fits the groups of a unit. Gives what came of each model, or why that node can't say, and what was logged.
    fn fit<'a>(&'a self, unit: &'a UnitFit<'a>) -> BoxFuture<'a, Result<FitLog, String>>;
}

/// What came of each model, and lines that were logged.
pub(crate) type FitLog = (Vec<Fitted>, Vec<String>);

/// A unit to be fitted.
#[derive(Debug)]
pub(crate) struct UnitFit<'a> {
    pub(crate) models: &'a [Arc<Binding>],
    pub(crate) seed: u64,
    pub(crate) payload: &'a Payload,
    pub(crate) groups: &'a Groups,
    pub(crate) shares: usize,
}

/// The trainers of a job, and where they run.
pub(crate) struct Fits {
    pool: Arc<Pool>,
    progress: Arc<JobProgress>,
    models: Vec<Arc<Binding>>,
    seed: u64,
    /// Units that this node may have at once, where others have some.
    here: Arc<Semaphore>,
    places: Vec<Taken>,
    elsewhere: AtomicU64,
}

/// A place, and what is left of it.
struct Taken {
    place: Arc<dyn Place>,
    free: Arc<Semaphore>,
    is_lost: AtomicBool,
}

impl Fits {
    pub(crate) fn new(pool: Arc<Pool>, progress: Arc<JobProgress>, models: Vec<Arc<Binding>>, seed: u64) -> Fits {
        let here = Arc::new(Semaphore::new(2 * pool.workers()));
        Fits { pool, progress, models, seed, here, places: Vec::new(), elsewhere: AtomicU64::new(0) }
    }

    /// Has other nodes fit units, too.
    pub(crate) fn spread_over(&mut self, places: Vec<Arc<dyn Place>>) {
        let taken = |place: Arc<dyn Place>| Taken {
            free: Arc::new(Semaphore::new(2 * place.slots())),
            place,
            is_lost: AtomicBool::new(false),
        };
        self.places = places.into_iter().map(taken).collect();
    }

    pub(crate) fn models(&self) -> &[Arc<Binding>] {
        &self.models
    }

    /// Units that are under way at once.
    pub(crate) fn at_once(&self) -> usize {
        2 * (self.pool.workers() + self.places.iter().map(|taken| taken.place.slots()).sum::<usize>())
    }

    /// Groups that other nodes have fitted.
    pub(crate) fn elsewhere(&self) -> u64 {
        self.elsewhere.load(Relaxed)
    }

    /// Fits the groups of a unit with each model.
    pub(crate) async fn fit(
        &self,
        payload: &Payload,
        groups: &Groups,
        shape: UnitShape,
    ) -> Result<Vec<Fitted>, NodeError> {
        let unit = UnitFit { models: &self.models, seed: self.seed, payload, groups, shares: shares(shape) };
        if self.places.is_empty() {
            return fit_here(&self.pool, &self.progress, &unit).await;
        }
        let permit = match self.place().await {
            (permit, None) => permit,
            (permit, Some(taken)) => match taken.place.fit(&unit).await {
                Ok((fitted, log)) => {
                    log.into_iter().for_each(|line| self.progress.log(line));
                    self.progress.add_models(fitted.iter().map(Fitted::models).sum());
                    self.elsewhere.fetch_add(groups.count.into(), Relaxed);
                    return Ok(fitted);
                }
                Err(why) => {
                    if !taken.is_lost.swap(true, Relaxed) {
                        self.progress.log(format!("{why}; what it was to train is trained here"));
                    }
                    drop(permit);
                    self.here.clone().acquire_owned().await.ok()
                }
            },
        };
        let fitted = fit_here(&self.pool, &self.progress, &unit).await;
        drop(permit);
        fitted
    }

    /// A place for a unit: here, or on another node, whichever is free first.
    async fn place(&self) -> (Option<OwnedSemaphorePermit>, Option<&Taken>) {
        let here = self.here.clone().acquire_owned().map(|permit| (permit.ok(), None)).boxed();
        let there = self.places.iter().filter(|taken| !taken.is_lost.load(Relaxed)).map(|taken| {
            let permit = taken.free.clone().acquire_owned();
            permit.map(move |permit| (permit.ok(), Some(taken))).boxed()
        });
        select_all(std::iter::once(here).chain(there)).await.0
    }
}

/// A trainer, as another node knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Trainer {
    pub(crate) component: ComponentId,
    /// Its place among the component's functions.
    function: u32,
    params: String,
    /// For errors.
    name: String,
    device: Option<DeviceChoice>,
}

impl Trainer {
    pub(crate) fn of(binding: &Binding) -> Trainer {
        let (function, params, name) = (binding.function, binding.params.clone(), binding.name.clone());
        Trainer { component: binding.program.id(), function, params, name, device: binding.device }
    }
}

/// Trainers that are kept ready for other nodes.
const BINDINGS_MAX: usize = 256;

/// Fits units of other nodes.
pub(crate) struct Fitter {
    node: Arc<Node>,
    turns: Arc<Semaphore>,
    known: Mutex<KnownTrainers>,
}

#[derive(Default)]
struct KnownTrainers {
    /// Of several trainers.
    components: HashMap<ComponentId, Arc<Loaded>>,
    bindings: HashMap<Trainer, Arc<Binding>>,
}

impl Fitter {
    pub(crate) fn new(node: Arc<Node>) -> Fitter {
        let turns = Arc::new(Semaphore::new(2 * node.pool.workers()));
        Fitter { node, turns, known: Mutex::default() }
    }

    /// Waits until there is room for a unit of so many bytes.
    pub(crate) async fn turn(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Fault> {
        let most = self.node.options.memory_bytes_max / 2;
        if bytes > most {
            return Err(Fault::new(Code::Host, format!("a unit of {bytes} bytes, where this node has {most}")));
        }
        let ended = |_| Fault::new(Code::Host, "the node ends");
        self.turns.clone().acquire_owned().await.map_err(ended)
    }

    /// Memory for a unit.
    pub(crate) fn draft(&self, bytes: u64) -> std::io::Result<SegmentDraft> {
        self.node.pool.draft(usize::try_from(bytes).map_err(std::io::Error::other)?)
    }

    /// Trainers whose components are where the folder has them.
    pub(crate) async fn bindings(
        &self,
        trainers: &[Trainer],
        limits: Limits,
        folder: impl Fn(ComponentId) -> PathBuf,
    ) -> Result<Vec<Arc<Binding>>, Fault> {
        let limits = limits.within(&self.node.options.limits);
        let mut bindings = Vec::with_capacity(trainers.len());
        for trainer in trainers {
            let known = self.known().bindings.get(trainer).filter(|known| known.limits == limits).cloned();
            let binding = match known {
                Some(known) => known,
                None => self.bind(trainer, limits, &folder(trainer.component)).await?,
            };
            bindings.push(binding);
        }
        Ok(bindings)
    }

    async fn bind(&self, trainer: &Trainer, limits: Limits, path: &Path) -> Result<Arc<Binding>, Fault> {
        let known = self.known().components.get(&trainer.component).cloned();
        let loaded = match known {
            Some(known) => known,
            None => {
                let file = File::open(path).map_err(|e| Fault::new(Code::Host, format!("{}: {e}", path.display())))?;
                Arc::new(self.node.load(file, path).await?)
            }
        };
        if loaded.compiled.id() != trainer.component {
            return Err(Fault::new(Code::Export, "it is another component").of(&trainer.name));
        }
        let function = loaded.functions.get(trainer.function as usize);
        if function.is_none_or(|known| known.kind != FunctionKind::Trainer) {
            return Err(Fault::new(Code::Export, "it has no such trainer").of(&trainer.name));
        }
        let loaded = self.know(trainer.component, loaded);
        let (params, name) = (trainer.params.clone(), trainer.name.clone());
        let binding = Binding::new(loaded.compiled.clone(), trainer.function, params, limits, name)?;
        let binding = binding.on(trainer.device);
        self.known().bindings.insert(trainer.clone(), binding.clone());
        Ok(binding)
    }

    /// Gives a component as it is known from then on: another unit may have loaded it meanwhile.
    fn know(&self, id: ComponentId, loaded: Arc<Loaded>) -> Arc<Loaded> {
        let mut known = self.known();
        if known.bindings.len().max(known.components.len()) >= BINDINGS_MAX {
            *known = KnownTrainers::default();
        }
        known.components.entry(id).or_insert(loaded).clone()
    }

    fn known(&self) -> MutexGuard<'_, KnownTrainers> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fits the groups of a unit. Gives what was logged, too.
    pub(crate) async fn fit(&self, unit: &UnitFit<'_>) -> Result<FitLog, Fault> {
        let progress = JobProgress::default();
        let fitted = fit_here(&self.node.pool, &progress, unit).await;
        let fault = |error| match error {
            NodeError::Fault(fault) => fault,
            other => Fault::new(Code::Host, other.to_string()),
        };
        Ok((fitted.map_err(fault)?, progress.take_log()))
    }
}

/// What calls of a job have in common.
struct Call<'a> {
    pool: &'a Pool,
    progress: &'a JobProgress,
    seed: u64,
}

/// Fits the groups of a unit on the workers of this node.
pub(crate) async fn fit_here(
    pool: &Pool,
    progress: &JobProgress,
    unit: &UnitFit<'_>,
) -> Result<Vec<Fitted>, NodeError> {
    let call = Call { pool, progress, seed: unit.seed };
    let calls = unit.models.iter().map(|binding| fit(&call, binding, unit.payload, unit.groups, unit.shares));
    futures::future::try_join_all(calls).await
}

/// Groups of few rows may take long each: up to so many, of so many rows at the mean, go to several workers.
const SHARED_GROUPS_MAX: usize = 4096;
const SHARED_ROWS_MAX: usize = 1024;
/// Bytes that their calls may read together, each of which reads all of the unit, and how many there are at most.
const SHARED_BYTES_MAX: usize = 16 << 20;
const SHARES_MAX: usize = 64;

/// Into how many calls the groups of a unit go, for each model: a function of the data alone, as which groups share a
/// sandbox may show in the models of a trainer that keeps something from one to the next.
fn shares(shape: UnitShape) -> usize {
    if shape.groups > SHARED_GROUPS_MAX || shape.rows > SHARED_ROWS_MAX.saturating_mul(shape.groups) {
        return 1;
    }
    let bytes = shape.rows.saturating_mul(shape.columns).saturating_mul(size_of::<f64>()).max(1);
    (SHARED_BYTES_MAX / bytes).clamp(1, SHARES_MAX.min(shape.groups.max(1)))
}

/// Fits all groups of a unit with one model, in so many calls side by side.
async fn fit(
    call: &Call<'_>,
    binding: &Arc<Binding>,
    payload: &Payload,
    groups: &Groups,
    shares: usize,
) -> Result<Fitted, NodeError> {
    let count = groups.count as usize;
    let bounds = |share: usize| (share * count / shares) as u32;
    let calls = (0..shares).map(|share| {
        let groups = Groups { first: bounds(share), count: bounds(share + 1), ..groups.clone() };
        fit_share(call, binding, payload, groups, count)
    });
    let mut fitted = Fitted::new(count);
    futures::future::try_join_all(calls).await?.into_iter().for_each(|share| fitted.join(share));
    Ok(fitted)
}

/// Fits some of the `all` groups of a unit, in as many calls as their output takes.
async fn fit_share(
    call: &Call<'_>,
    binding: &Arc<Binding>,
    payload: &Payload,
    mut groups: Groups,
    all: usize,
) -> Result<Fitted, NodeError> {
    let mut fitted = Fitted::new(all);
    loop {
        let work = CallWork::Fit(payload.clone(), groups.clone().into());
        let called = call.pool.call(CallRequest { binding: binding.clone(), seed: call.seed, work }).await;
        log_lines(call.progress, &binding.name, &called.log);
        let completed = match called.result {
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
        let before = groups.without.len();
        groups.without.extend(settled);
        call.progress.add_models(fitted.models() - models);
        if groups.without.len() >= (groups.count - groups.first) as usize || groups.without.len() == before {
            return Ok(fitted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_groups_go_to_several_workers_and_large_ones_or_many_do_not() {
        for (groups, rows, columns, expected) in [
            (0, 0, 2, 1),
            (1, 10, 2, 1),
            (24, 240, 3, 24),
            (1000, 100_000, 2, 10),
            (1000, 10_000, 2, 64),
            (4096, 400_000, 2, 2),
            // Many: each takes no time. Large: each call would read all of them.
            (17_500, 175_000, 3, 1),
            (20, 500_000, 2, 1),
        ] {
            let shape = UnitShape { groups, columns, rows, test_rows: 0 };
            assert_eq!(shares(shape), expected, "{shape:?}");
        }
    }
}
