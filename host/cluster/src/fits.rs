//! Units of groups that other nodes fit: each is sent with the trainers' hashes, and what came of it comes back.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use arrow_buffer::Buffer;
use futures::future::{BoxFuture, FutureExt as _};
use sandbar_batch::Header;
use sandbar_core::{Code, ComponentId, Fault, Limits, NodeId};
use sandbar_store::{Mapping, SegmentPart};
use sandbar_train::{FittedModels, RemoteTrainers, TrainerRef, UnitLog, UnitRequest, UnitTrainer};
use sandbar_wire::{Channel, Connection, Frames};
use sandbar_worker::{BatchLocation, GROUP_BYTES, Groups, Payload};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::{Cluster, Inner, members, parts, programs};

pub(super) const FITS: Channel = Channel::new(10);
/// Bytes of what says what is to be fitted, and of what came of it.
const ASK_BYTES_MAX: u64 = 16 << 20;
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Each part of a message comes within this, if its sender has it.
const PART_TIME_MAX: Duration = Duration::from_secs(30);

/// A unit that is to be fitted. Its memory follows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) trainers: Vec<TrainerRef>,
    pub(super) limits: Limits,
    pub(super) seed: u64,
    pub(super) groups: Groups,
    pub(super) batches: Vec<BatchLocation>,
    pub(super) bytes: u64,
    pub(super) shares: u32,
}

/// What came of a model.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Given {
    /// Headers and bodies of batches of models.
    pub(super) batches: Vec<(ByteBuf, ByteBuf)>,
    pub(super) faults: Vec<(u32, Fault)>,
}

/// What came of each model, and what was logged.
pub(super) type Answer = Result<(Vec<Given>, Vec<String>), Fault>;

/// Another node of the cluster.
struct Peer {
    name: String,
    slots: usize,
    connection: Connection,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peer").field(&self.name).finish()
    }
}

impl UnitTrainer for Peer {
    fn slots(&self) -> usize {
        self.slots
    }

    fn fit<'a>(&'a self, unit: &'a UnitRequest<'a>) -> BoxFuture<'a, Result<UnitLog, String>> {
        async move { ask(&self.connection, unit).await.map_err(|why| format!("node {}: {why}", self.name)) }.boxed()
    }
}

async fn ask(connection: &Connection, unit: &UnitRequest<'_>) -> Result<UnitLog, String> {
    let Payload::File { file, batches } = unit.payload else { return Err("its unit is no memory".to_owned()) };
    let Some(first) = unit.models.first() else { return Ok((Vec::new(), Vec::new())) };
    let asked = Ask {
        trainers: unit.models.iter().map(|binding| TrainerRef::of(binding)).collect(),
        limits: first.limits,
        seed: unit.seed,
        groups: unit.groups.clone(),
        batches: batches.to_vec(),
        bytes: file.bytes() as u64,
        shares: unit.shares as u32,
    };
    // SAFETY: nobody writes to what is lent, and the payload holds it.
    let memory = unsafe { Mapping::lent(file.as_fd(), file.bytes() as u64) }.map_err(|e| e.to_string())?;
    let mut frames = connection.open(FITS).await.map_err(|e| e.to_string())?;
    let words = postcard::to_stdvec(&asked).map_err(|e| e.to_string())?;
    // Its memory is taken when its turn has come, after others'.
    parts::send(&frames, &words, PART_TIME_MAX).await.map_err(|e| e.to_string())?;
    parts::send(&frames, &memory, Duration::MAX).await.map_err(|e| e.to_string())?;
    // How long training takes nobody knows: its end, or its node's, ends this.
    let mut answer = Vec::new();
    loop {
        let part = frames.recv().await.map_err(|e| e.to_string())?.ok_or("it did not say what came of it")?;
        if part.is_empty() {
            break;
        }
        answer.extend_from_slice(&part);
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return Err(format!("what came of it has more than {ANSWER_BYTES_MAX} bytes"));
        }
    }
    let answer: Answer = postcard::from_bytes(&answer).map_err(|e| e.to_string())?;
    let (given, log) = answer.map_err(|fault| fault.to_string())?;
    if given.len() != unit.models.len() {
        return Err(format!("it gives {} models, where {} were asked for", given.len(), unit.models.len()));
    }
    let count = unit.groups.count as usize;
    let fitted = given.into_iter().map(|given| fitted(given, count)).collect::<Result<_, _>>()?;
    Ok((fitted, log))
}

fn fitted(given: Given, count: usize) -> Result<FittedModels, String> {
    let mut fitted = FittedModels::new(count);
    for (header, body) in &given.batches {
        let header = Header::parse(header).map_err(|e| e.to_string())?;
        let schema = sandbar_batch::decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?;
        let body = Buffer::from_slice_ref(body.as_slice());
        let batch = sandbar_batch::read(&header, Arc::new(schema), &body).map_err(|e| e.to_string())?;
        fitted.add(&[batch]).map_err(|fault| fault.to_string())?;
    }
    if let Some((group, _)) = given.faults.iter().find(|(group, _)| *group as usize >= count) {
        return Err(format!("it speaks of group {group} of {count}"));
    }
    fitted.faults.extend(given.faults);
    Ok(fitted)
}

fn given(fitted: &FittedModels) -> Result<Given, Fault> {
    let wrong = |e: sandbar_batch::LayoutError| Fault::new(Code::Host, e.to_string());
    let encode = |batch| {
        let encoded = sandbar_batch::encode(&batch).map_err(wrong)?;
        Ok((ByteBuf::from(encoded.header.clone()), ByteBuf::from(encoded.body())))
    };
    let batches = fitted.to_batches()?.into_iter().map(encode).collect::<Result<_, Fault>>()?;
    Ok(Given { batches, faults: fitted.faults.clone() })
}

/// Fits a unit of another node.
pub(super) async fn serve(inner: Arc<Inner>, node: Option<NodeId>, mut frames: Frames) {
    let answer: Answer = async {
        let wrong = |why: String| programs::fault(&format!("a unit of another node: {why}"));
        let hub = inner.hub.get().ok_or_else(|| programs::fault("this node runs nothing for others"))?;
        let words = parts::recv(&mut frames, ASK_BYTES_MAX, PART_TIME_MAX).await.map_err(wrong)?;
        let asked: Ask = postcard::from_bytes(&words).map_err(|e| wrong(e.to_string()))?;
        check(&asked).map_err(wrong)?;
        let _turn = hub.services.units.acquire(asked.bytes).await?;
        let mut draft = hub.services.units.draft(asked.bytes).map_err(|e| wrong(e.to_string()))?;
        let mut at = 0;
        let take = |part: &[u8]| {
            draft.put(&SegmentPart::Bytes(at, part))?;
            at += part.len();
            Ok(())
        };
        parts::recv_into(&mut frames, asked.bytes, PART_TIME_MAX, take).await.map_err(wrong)?;
        if at as u64 != asked.bytes {
            return Err(wrong(format!("it has {at} bytes, where {} were to come", asked.bytes)));
        }
        for trainer in &asked.trainers {
            programs::have(&inner, node, trainer.component).await?;
        }
        let payload = Payload::File { file: Arc::new(draft.lend()), batches: asked.batches.into() };
        let folder = |component: ComponentId| hub.services.component_path(component);
        let models = hub.services.units.bind(&asked.trainers, asked.limits, folder).await?;
        let shares = asked.shares.max(1) as usize;
        let unit = UnitRequest { models: &models, seed: asked.seed, payload: &payload, groups: &asked.groups, shares };
        let (fitted, log) = hub.services.units.fit(&unit).await?;
        Ok((fitted.iter().map(given).collect::<Result<_, Fault>>()?, log))
    }
    .await;
    if let Ok(bytes) = postcard::to_stdvec(&answer) {
        // Who asked may be gone.
        let _ = parts::send(&frames, &bytes, PART_TIME_MAX).await;
        let _ = frames.flush().await;
    }
}

/// Whether all that a unit speaks of lies in its memory.
fn check(asked: &Ask) -> Result<(), String> {
    let is_within = |at: u64, bytes: u64| at.checked_add(bytes).is_some_and(|end| end <= asked.bytes);
    let groups = &asked.groups;
    let of_batch = |batch: &BatchLocation| {
        let bytes = batch.body_bytes.checked_add(batch.header_bytes);
        bytes.is_some_and(|bytes| is_within(batch.body_at, bytes))
    };
    let is_good = is_within(groups.table_at, u64::from(groups.count) * GROUP_BYTES as u64)
        && is_within(groups.extra_at, groups.extra_bytes)
        && groups.first <= groups.count
        && asked.batches.iter().all(of_batch)
        && u64::from(asked.shares) <= u64::from(groups.count).max(1);
    is_good.then_some(()).ok_or_else(|| "it speaks of what is not in it".to_owned())
}

impl RemoteTrainers for Cluster {
    fn trainers(&self, components: Vec<(ComponentId, std::fs::File)>) -> BoxFuture<'_, Vec<Arc<dyn UnitTrainer>>> {
        async move {
            components.into_iter().for_each(|(component, file)| self.know(component, file));
            let trainer = |(member, connection): (members::Member, Connection)| {
                let slots = member.slots.min(super::links::SLOTS_MAX) as usize;
                (slots > 0).then(|| Arc::new(Peer { name: member.name, slots, connection }) as Arc<dyn UnitTrainer>)
            };
            self.inner.others().await.into_iter().filter_map(trainer).collect()
        }
        .boxed()
    }
}
