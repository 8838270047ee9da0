//! Fetching of many small objects together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt;
use quinn::Connection;
use sandbar_core::ObjectId;

use super::clock::{sleep_ms, within_ms};
use super::message::{FOUND, Refusal, SmallRequest, TransferRequest, refusal_len};
use super::stream_reader::{ReadFault, StreamReader};
use super::{FetchError, Holder, HolderError, MemoryPermit, Priority, RootHash, TransferLimits, Transfers};

/// Parameters of a small object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallSpec {
    /// The object.
    pub object: ObjectId,
    /// Its length in bytes, as announced by its owner: at most [`TransferLimits::small_bytes_max`].
    pub bytes: u32,
    /// Its hash, as announced by its owner.
    pub root: RootHash,
}

/// Fetched small objects.
#[derive(Debug)]
pub struct FetchedSmallObjects {
    /// Each object in the order requested, or why it failed.
    pub objects: Vec<Result<Arc<[u8]>, HolderError>>,
    /// The admitted memory. Keep it until the objects' memory is accounted for elsewhere.
    pub permit: MemoryPermit,
}

impl Transfers {
    /// Fetches small objects from one holder, with several requests in flight. Dropping the future cancels it.
    ///
    /// # Errors
    /// No request was sent. Errors of single objects are in the result.
    pub async fn fetch_small(
        &self,
        holder: &Holder,
        objects: &[SmallSpec],
        priority: Priority,
    ) -> Result<FetchedSmallObjects, FetchError> {
        let limits = &self.0.limits;
        let Some(first) = objects.first() else {
            let permit = self.admit(ObjectId(0), 0, priority).await?;
            return Ok(FetchedSmallObjects { objects: Vec::new(), permit });
        };
        if let Some(large) = objects.iter().find(|small| u64::from(small.bytes) > limits.small_bytes_max) {
            let (bytes, max) = (u64::from(large.bytes), limits.small_bytes_max);
            return Err(FetchError::TooLarge { object: large.object, bytes, max });
        }
        let permit =
            self.admit(first.object, objects.iter().map(|small| u64::from(small.bytes)).sum(), priority).await?;
        let connected = match within_ms(limits.connect_ms_max, holder.link.connect()).await {
            Some(result) => result,
            None => Err(format!("no connection within {} ms", limits.connect_ms_max)),
        };
        let connection = match connected {
            Ok(connection) => connection,
            Err(why) => {
                let unreachable = |_| Err(HolderError::Unreachable(why.clone()));
                return Ok(FetchedSmallObjects { objects: objects.iter().map(unreachable).collect(), permit });
            }
        };
        let count = AtomicU64::new(0);
        let requests = requests(objects, limits).map(|some| self.request(&connection, some, priority, &count));
        let requests = futures::stream::iter(requests).buffered(limits.small_requests_max);
        let objects = requests.concat().await;
        Ok(FetchedSmallObjects { objects, permit })
    }

    /// Fetches the objects of one request.
    async fn request(
        &self,
        connection: &Connection,
        objects: &[SmallSpec],
        priority: Priority,
        count: &AtomicU64,
    ) -> Vec<Result<Arc<[u8]>, HolderError>> {
        let mut done = Vec::with_capacity(objects.len());
        let stopped = tokio::select! {
            biased;
            result = exchange(connection, objects, priority, count, &mut done) => result.err(),
            error = stall(count, &self.0.limits) => Some(error),
        };
        let error = stopped.unwrap_or(HolderError::Protocol("its answer ends too early"));
        done.resize(objects.len(), Err(error));
        done
    }
}

/// Splits objects into requests within the limits.
fn requests<'a>(
    mut objects: &'a [SmallSpec],
    limits: &TransferLimits,
) -> impl Iterator<Item = &'a [SmallSpec]> + use<'a> {
    let (objects_max, bytes_max) = (limits.small_objects_max, limits.small_request_bytes_max);
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |small: &&SmallSpec| {
            bytes += u64::from(small.bytes);
            bytes <= bytes_max
        };
        // The first always fits: the limit of a request is at least that of an object.
        let count = objects.iter().take(objects_max).take_while(fits).count();
        let (now, later) = objects.split_at_checked(count)?;
        objects = later;
        (!now.is_empty()).then_some(now)
    })
}

async fn exchange(
    connection: &Connection,
    objects: &[SmallSpec],
    priority: Priority,
    count: &AtomicU64,
    done: &mut Vec<Result<Arc<[u8]>, HolderError>>,
) -> Result<(), HolderError> {
    let lost = |error: &dyn std::fmt::Display| HolderError::ConnectionLost(error.to_string());
    let (mut to, from) = connection.open_bi().await.map_err(|error| lost(&error))?;
    let named = objects.iter().map(|small| SmallRequest { object: small.object, bytes: small.bytes }).collect();
    let written = to.write_all(&TransferRequest::Small { priority, objects: named }.write()).await;
    written.map_err(|error| lost(&error))?;
    let _ = to.finish();
    let mut from = StreamReader::new(from, count);
    for small in objects {
        let object = read_object(&mut from, small).await?;
        done.push(object);
    }
    if from.is_over().await.map_err(fault)? {
        Ok(())
    } else {
        Err(HolderError::Protocol("it sent more than was requested"))
    }
}

/// Reads one object.
async fn read_object(
    from: &mut StreamReader<'_>,
    small: &SmallSpec,
) -> Result<Result<Arc<[u8]>, HolderError>, HolderError> {
    let [status] = from.array().await.map_err(fault)?;
    if status != FOUND {
        let mut rest = [0; 8];
        from.fill(&mut rest[..refusal_len(status)]).await.map_err(fault)?;
        let refusal = Refusal::read(status, rest).ok_or(HolderError::Protocol("invalid status byte"))?;
        return Ok(Err(refusal.error(u64::from(small.bytes)).unwrap_or(HolderError::Idle { ms: 0 })));
    }
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, small.bytes as usize).collect();
    if let Some(bytes) = Arc::get_mut(&mut bytes) {
        from.fill(bytes).await.map_err(fault)?;
    }
    let is_right = RootHash::hash(&bytes) == small.root;
    Ok(if is_right { Ok(bytes) } else { Err(HolderError::BadChunk { range: 0..u64::from(small.bytes) }) })
}

fn fault(fault: ReadFault) -> HolderError {
    match fault {
        ReadFault::Ended => HolderError::Protocol("its answer ends too early"),
        ReadFault::Reset => HolderError::Failed,
        ReadFault::ConnectionLost(why) => HolderError::ConnectionLost(why),
    }
}

/// Waits until the holder stalls.
async fn stall(count: &AtomicU64, limits: &TransferLimits) -> HolderError {
    loop {
        let before = count.load(Ordering::Relaxed);
        sleep_ms(limits.stall_ms_max).await;
        let bytes = count.load(Ordering::Relaxed) - before;
        if bytes < limits.stall_bytes_min {
            return HolderError::Stalled { ms: limits.stall_ms_max, bytes };
        }
    }
}
