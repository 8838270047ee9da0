//! Objects of a cluster's nodes: fetched into memory files, and served out of them.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sandbar_core::{NodeId, ObjectId};
use sandbar_store::{Landing, LandingView, Mapping, Object};
use sandbar_wire::{FetchSpec, Held, Priority, Root, Source, Target, Tree, View};

use super::Inner;
use super::asks::Ask;

/// What was shared and nobody asked for since is let go of after this.
const SHARED_TIME: Duration = Duration::from_secs(4);
/// So long a node may take to say what an object is: it may come from disk, and is hashed.
const DESCRIBE_TIME_MAX: Duration = Duration::from_secs(60);

/// What others fetch of this node.
#[derive(Default)]
pub(super) struct Shared(Mutex<HashMap<ObjectId, SharedObject>>);

struct SharedObject {
    bytes: Arc<Mapping>,
    root: Root,
    touched: Instant,
}

impl Shared {
    fn objects(&self) -> MutexGuard<'_, HashMap<ObjectId, SharedObject>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What peers may fetch: what was described to somebody, and what is being fetched here.
pub(super) struct Served(pub(super) Arc<Inner>);

impl Source for Served {
    fn find(&self, _: NodeId, object: ObjectId) -> Held {
        if let Some(shared) = self.0.shared.objects().get_mut(&object) {
            shared.touched = Instant::now();
            return Held::Whole(shared.bytes.clone());
        }
        self.0.transfers.partial(object).map_or(Held::NotHere, Held::Partial)
    }
}

/// What an object of this node is: its hash and its length. It can be fetched for a while then.
pub(super) async fn describe(inner: &Inner, object: ObjectId) -> Result<(Root, u64), String> {
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
        let tree = Tree::of(&mapping);
        (mapping, tree)
    });
    let (mapping, tree) = hashed.await.map_err(|e| e.to_string())?;
    let (root, bytes) = (tree.root(), Arc::new(mapping));
    let described = (root, bytes.len() as u64);
    inner.transfers.keep_tree(object, tree);
    inner.shared.objects().insert(object, SharedObject { bytes, root, touched: Instant::now() });
    Ok(described)
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
        gone.into_iter().for_each(|object| inner.transfers.forget(object));
    }
}

/// Fetches the value of an object from a node that is connected.
pub(super) async fn fetch(inner: &Inner, node: NodeId, object: ObjectId, bytes: u64) -> Result<Object, String> {
    let connection = inner.link(node).ok_or_else(|| format!("there is no connection to node {node}"))?;
    let request = postcard::to_stdvec(&Ask::Describe(object.0)).map_err(|e| e.to_string())?;
    let answer = connection.request(&request, DESCRIBE_TIME_MAX).await.map_err(|e| e.to_string())?;
    let described: Result<([u8; 32], u64), String> = postcard::from_bytes(&answer).map_err(|e| e.to_string())?;
    let (root, length) = described?;
    if length != bytes {
        return Err(format!("node {node} has {length} bytes of object {object}, where {bytes} were to be"));
    }
    let spec = FetchSpec {
        object,
        bytes,
        root: Root(root),
        holders: vec![connection.holder(node)],
        priority: Priority::Get,
        finder: None,
    };
    let reserve = |bytes: u64| Ok(LandingTarget(Landing::new(usize::try_from(bytes).map_err(std::io::Error::other)?)?));
    let fetched = inner.transfers.fetch(spec, reserve).await.map_err(|e| e.to_string())?;
    fetched.target.0.seal().map_err(|e| e.to_string())
}

struct LandingTarget(Landing);

struct LandingSeen(Arc<LandingView>);

// SAFETY: a landing is as many initialised bytes, mapped as long as it lives, of a file that nobody else has.
unsafe impl Target for LandingTarget {
    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }

    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn view(&self) -> Arc<dyn View> {
        Arc::new(LandingSeen(self.0.view()))
    }
}

// SAFETY: the view is of the same bytes, mapped as long as it lives.
unsafe impl View for LandingSeen {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }
}
