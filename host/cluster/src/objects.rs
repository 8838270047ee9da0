//! Objects of a cluster's nodes: fetched into memory files, and served out of them.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt as _};
use sandbar_core::{NodeId, ObjectId};
use sandbar_runtime::Wanted;
use sandbar_store::{Mapping, ReceiveBuffer, ReceiveBufferView, SealedFile};
use sandbar_wire::{
    Connection, FailedHolder, FetchSpec, FetchTarget, FetchedObject, HashTree, HeldObject, Holder, HolderFinder,
    Locations, ObjectSource, RootHash, SourceAssignment, TargetView,
};
use serde::de::DeserializeOwned;

use super::Inner;
use super::asks::{self, Ask};

/// What was shared and nobody asked for since is let go of after this.
const SHARED_TIME: Duration = Duration::from_secs(4);
/// So long a node may take to say what an object is: it may come from disk, and is hashed.
const DESCRIBE_TIME_MAX: Duration = Duration::from_secs(60);

/// Of a shorter object there is one holder: nobody asks who else has it.
const SPREAD_BYTES_MIN: u64 = 1 << 20;

/// What others fetch of this node, and who of them has how much of it: of each other they fetch it, too.
#[derive(Default)]
pub(super) struct Shared {
    objects: Mutex<HashMap<ObjectId, SharedObject>>,
    locations: Mutex<Locations>,
}

struct SharedObject {
    bytes: Arc<Mapping>,
    root: RootHash,
    touched: Instant,
}

impl Shared {
    fn objects(&self) -> MutexGuard<'_, HashMap<ObjectId, SharedObject>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locations(&self) -> MutexGuard<'_, Locations> {
        self.locations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a node has fetched, or was fetching, is not to be had of it any more.
    pub(super) fn lose(&self, node: NodeId) {
        self.locations().remove_node(node);
    }
}

/// What peers may fetch: what was described to somebody, and what is being fetched here.
pub(super) struct Served(pub(super) Arc<Inner>);

impl ObjectSource for Served {
    fn find(&self, _: NodeId, object: ObjectId) -> HeldObject {
        if let Some(shared) = self.0.shared.objects().get_mut(&object) {
            shared.touched = Instant::now();
            return HeldObject::Whole(shared.bytes.clone());
        }
        self.0.transfers.partial(object).map_or(HeldObject::NotFound, HeldObject::Partial)
    }
}

/// What an object is: its hash and its length.
pub(super) type Described = ([u8; 32], u64);

/// What an object of this node is, for another one that is to fetch it. It can be fetched for a while then.
pub(super) async fn describe(inner: &Inner, object: ObjectId) -> Result<Described, String> {
    let (root, bytes) = share(inner, object).await?;
    Ok((root.0, bytes))
}

/// From whom a node is to fetch an object of this one, after it gave up some. None if there is nobody but this node.
///
/// The node that asks is named to others from now on: it asks once it serves what it has.
pub(super) fn holders(inner: &Inner, node: NodeId, object: ObjectId, gone: &[NodeId]) -> Vec<NodeId> {
    let own = NodeId(inner.own.number.into());
    let mut locations = inner.shared.locations();
    if !inner.shared.objects().contains_key(&object) || !locations.add_holder(object, own) {
        return Vec::new();
    }
    match locations.reassign(object, node, gone) {
        SourceAssignment::Holders(nodes) => nodes,
        // It has dropped it since.
        SourceAssignment::AlreadyWhole => {
            locations.remove_holder(object, node);
            Vec::new()
        }
        SourceAssignment::NoHolder | SourceAssignment::Full => Vec::new(),
    }
}

/// A node has all of an object of this one, or has given it up.
pub(super) fn fetched(inner: &Inner, node: NodeId, object: ObjectId, whole: bool) {
    let mut locations = inner.shared.locations();
    if !whole {
        locations.remove_holder(object, node);
    } else if inner.shared.objects().contains_key(&object) {
        locations.add_holder(object, node);
    }
}

async fn share(inner: &Inner, object: ObjectId) -> Result<(RootHash, u64), String> {
    if let Some(shared) = inner.shared.objects().get_mut(&object) {
        shared.touched = Instant::now();
        return Ok((shared.root, shared.bytes.len() as u64));
    }
    let hub = inner.hub.get().ok_or("it runs no programs")?;
    let (tell, told) = tokio::sync::oneshot::channel();
    hub.asker.share(object, Box::new(move |value| drop(tell.send(value))));
    let value = told.await.map_err(|_| "the node ends")??;
    let mapping = Mapping::sealed(value.as_fd(), value.bytes()).map_err(|e| e.to_string())?;
    let hashed = tokio::task::spawn_blocking(move || {
        let tree = HashTree::of(&mapping);
        (mapping, tree)
    });
    let (mapping, tree) = hashed.await.map_err(|e| e.to_string())?;
    let (root, bytes) = (tree.root(), Arc::new(mapping));
    let shared = (root, bytes.len() as u64);
    inner.transfers.keep_tree(object, tree);
    inner.shared.objects().insert(object, SharedObject { bytes, root, touched: Instant::now() });
    Ok(shared)
}

/// Lets go of what nobody has asked for in a while, again and again.
pub(super) async fn let_go(inner: Arc<Inner>) {
    loop {
        tokio::time::sleep(SHARED_TIME / 4).await;
        let mut gone = Vec::new();
        inner.shared.objects().retain(|object, shared| {
            let stays = shared.touched.elapsed() < SHARED_TIME;
            gone.extend((!stays).then_some(*object));
            stays
        });
        for object in gone {
            inner.transfers.forget(object);
            inner.shared.locations().forget(object);
        }
    }
}

/// Fetches the value of an object that a node has which is connected: from that one, and from others that fetch it.
pub(super) async fn fetch(inner: &Arc<Inner>, wanted: Wanted) -> Result<SealedFile, String> {
    let Wanted { node, object, bytes, priority } = wanted;
    let connection = inner.link(node).ok_or_else(|| format!("there is no connection to node {node}"))?;
    let described: Result<Described, String> = ask(&connection, &Ask::Describe(object.0)).await?;
    let (root, length) = described?;
    if length != bytes {
        return Err(format!("node {node} has {length} bytes of object {object}, where {bytes} were to be"));
    }
    let is_spread = bytes >= SPREAD_BYTES_MIN;
    let finder = AtSource { inner: inner.clone(), node, connection: connection.clone() };
    let spec = FetchSpec {
        object,
        bytes,
        root: RootHash(root),
        // Who else has it is asked once what comes is served from here: others may be sent here then.
        holders: if is_spread { Vec::new() } else { vec![connection.holder(node)] },
        priority,
        finder: is_spread.then(|| Arc::new(finder) as Arc<dyn HolderFinder>),
    };
    let here = fetch_here(inner, spec, is_spread).await;
    if is_spread {
        let is_whole = here.is_ok();
        // Whoever is gone need not know.
        inner.handle.spawn(async move { ask::<()>(&connection, &Ask::Fetched(object.0, is_whole)).await });
    }
    here
}

/// Fetches an object into a memory file of this node. If it is `spread`, other nodes can fetch it from here as well.
///
/// Creating and sealing the file can wait for every processor of a busy machine, so neither runs on the threads that keep
/// connections alive.
async fn fetch_here(inner: &Arc<Inner>, spec: FetchSpec, spread: bool) -> Result<SealedFile, String> {
    let (object, bytes, root) = (spec.object, spec.bytes, spec.root);
    let reserve = async |bytes: u64| {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        Ok(LandingTarget(tokio::task::spawn_blocking(move || ReceiveBuffer::new(bytes)).await??))
    };
    let fetched = inner.transfers.fetch(spec, reserve).await.map_err(|e| e.to_string())?;
    let FetchedObject { target: LandingTarget(buffer), serving, .. } = fetched;
    let sealed = tokio::task::spawn_blocking(move || buffer.seal()).await.map_err(|e| e.to_string())?;
    let here = sealed.map_err(|e| e.to_string())?;
    if spread {
        let bytes = Arc::new(Mapping::sealed(here.as_fd(), bytes).map_err(|e| e.to_string())?);
        inner.shared.objects().insert(object, SharedObject { bytes, root, touched: Instant::now() });
    }
    // Peers find the object without a gap: first in the transfer, then among the shared objects.
    drop(serving);
    Ok(here)
}

async fn ask<T: DeserializeOwned>(connection: &Connection, asked: &Ask) -> Result<T, String> {
    asks::ask(connection, asked, DESCRIBE_TIME_MAX).await
}

/// Those of some nodes that are connected.
fn linked(inner: &Inner, nodes: impl IntoIterator<Item = NodeId>) -> Vec<Holder> {
    nodes.into_iter().filter_map(|node| Some(inner.link(node)?.holder(node))).collect()
}

/// Asks the node that has an object who else has it.
struct AtSource {
    inner: Arc<Inner>,
    node: NodeId,
    connection: Connection,
}

impl HolderFinder for AtSource {
    fn find_more(&self, object: ObjectId, gone: &[FailedHolder]) -> BoxFuture<'static, Vec<Holder>> {
        let (inner, node, connection) = (self.inner.clone(), self.node, self.connection.clone());
        let gone: Vec<NodeId> = gone.iter().map(|gone| gone.holder).collect();
        async move {
            let had_source = gone.contains(&node);
            let nodes: Vec<NodeId> = ask(&connection, &Ask::Holders(object.0, gone)).await.unwrap_or_default();
            let mut holders = linked(&inner, nodes);
            if holders.is_empty() && !had_source {
                holders.push(connection.holder(node));
            }
            holders
        }
        .boxed()
    }
}

struct LandingTarget(ReceiveBuffer);

struct LandingSeen(Arc<ReceiveBufferView>);

// SAFETY: a landing is as many initialised bytes, mapped as long as it lives, of a file that nobody else has.
unsafe impl FetchTarget for LandingTarget {
    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }

    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn view(&self) -> Arc<dyn TargetView> {
        Arc::new(LandingSeen(self.0.view()))
    }
}

// SAFETY: the view is of the same bytes, mapped as long as it lives.
unsafe impl TargetView for LandingSeen {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }
}
