//! Components that tasks of other nodes are of: fetched, compiled, kept.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use sandbar_core::{Code, ComponentId, Fault, Limits, NodeId};
use sandbar_machine::write_atomically;
use sandbar_wire::{Connection, Frames};
use sha2::{Digest, Sha256};

use super::asks::Ask;
use super::links::COMPONENTS;
use super::{Inner, parts};
use sandbar_runtime::{Loaded, Program, load_program};

/// Maximum bytes of a component.
pub(super) const COMPONENT_BYTES_MAX: u64 = 256 << 20;
const TIME_MAX: Duration = Duration::from_secs(120);

/// Loads a component that this node or another has.
pub(super) async fn load_anywhere(inner: &Inner, component: ComponentId) -> Loaded {
    let nodes: Vec<NodeId> = inner.links().keys().copied().collect();
    let mut failed = fault("no node has its component");
    for node in [NodeId(inner.own.number.into())].into_iter().chain(nodes) {
        match load(inner, node, component, Limits::default()).await {
            Ok(program) => return Ok(program),
            Err(why) => failed = why,
        }
    }
    Err(failed)
}

/// Has some other nodes keep a component, as many as there are.
pub(super) async fn copy(inner: &Inner, component: ComponentId, count: usize) {
    let links: Vec<Connection> = inner.links().values().cloned().collect();
    let request = postcard::to_stdvec(&Ask::Copy(component)).unwrap_or_default();
    let copied = stream::iter(links).map(|link| {
        let request = &request;
        async move {
            let answer = link.request(request, TIME_MAX).await;
            answer.is_ok_and(|answer| postcard::from_bytes(&answer) == Ok(Ok::<(), String>(())))
        }
    });
    // Those that don't answer are not waited for, where others do.
    let done = copied.buffer_unordered(count.max(1) + 1).filter(|done| std::future::ready(*done));
    done.take(count).collect::<Vec<bool>>().await;
}

/// Keeps a component of another node, if there is none.
pub(super) async fn have(inner: &Inner, node: Option<NodeId>, component: ComponentId) -> Result<(), Fault> {
    let path = inner.component_path(component).ok_or_else(|| fault("this node runs no programs"))?;
    if path.is_file() {
        return Ok(());
    }
    let node = node.ok_or_else(|| fault("nobody has said whose component it is"))?;
    let fetched = tokio::time::timeout(TIME_MAX, fetch(inner, node, component)).await;
    let bytes = fetched.map_err(|_| fault("its component did not come in time"))??;
    write_atomically(&path, &bytes).map_err(|e| fault(&format!("its component can't be kept: {e}")))
}

/// Loads a component that a node has.
pub(super) async fn load(inner: &Inner, node: NodeId, component: ComponentId, limits: Limits) -> Loaded {
    let hub = inner.hub.get().ok_or_else(|| fault("this node runs no programs"))?;
    let limits = limits.within(&hub.services.limits);
    if let Some(program) = inner.ready().get(component, limits) {
        return Ok(program);
    }
    let path = hub.services.component_path(component);
    have(inner, Some(node), component).await?;
    let file = File::open(&path).map_err(|e| fault(&format!("{}: {e}", path.display())))?;
    let program = load_program(&hub.services.functions, file, &path, limits).await?;
    if program.compiled.id() != component {
        // What was kept is damaged. The next time it is fetched.
        let _ = std::fs::remove_file(&path);
        return Err(fault(&format!("{} is another component than {}", path.display(), component.short())));
    }
    Ok(inner.ready().put(component, limits, program))
}

/// Programs that were loaded last: jobs of the same share them.
#[derive(Default)]
pub(super) struct Ready(Vec<(ComponentId, Limits, Arc<Program>)>);

/// So many programs are kept.
const READY_MAX: usize = 64;

impl Ready {
    fn get(&mut self, component: ComponentId, limits: Limits) -> Option<Arc<Program>> {
        let at = self.0.iter().position(|(other, of, _)| *other == component && *of == limits)?;
        // What is used last is dropped last.
        let found = self.0.remove(at);
        let program = found.2.clone();
        self.0.push(found);
        Some(program)
    }

    /// Gives what is there from then on: others may have loaded it meanwhile.
    fn put(&mut self, component: ComponentId, limits: Limits, program: Arc<Program>) -> Arc<Program> {
        if let Some(before) = self.get(component, limits) {
            return before;
        }
        if self.0.len() >= READY_MAX {
            self.0.remove(0);
        }
        self.0.push((component, limits, program.clone()));
        program
    }
}

pub(super) fn fault(words: &str) -> Fault {
    Fault::new(Code::Host, words)
}

async fn fetch(inner: &Inner, node: NodeId, component: ComponentId) -> Result<Vec<u8>, Fault> {
    let failed = |words: &str| fault(&format!("component {} of node {node}: {words}", component.short()));
    let connection = inner.link(node).ok_or_else(|| failed("there is no connection"))?;
    let mut frames = connection.open(COMPONENTS).await.map_err(|e| failed(&e.to_string()))?;
    frames.send(component.to_string().as_bytes()).await.map_err(|e| failed(&e.to_string()))?;
    let bytes = parts::recv(&mut frames, COMPONENT_BYTES_MAX, TIME_MAX).await.map_err(|e| failed(&e))?;
    let digest: [u8; 32] = Sha256::digest(&bytes).into();
    let is_it = ComponentId::from_digest(digest) == component;
    is_it.then_some(bytes).ok_or_else(|| failed("what came is another one, or nothing"))
}

/// Gives a component to a node that asks for it.
pub(super) async fn give(inner: Arc<Inner>, mut frames: Frames) {
    let Ok(Some(asked)) = frames.recv().await else { return };
    let Some(component) = std::str::from_utf8(&asked).ok().and_then(|text| text.parse::<ComponentId>().ok()) else {
        return;
    };
    let own = inner.components.lock().unwrap_or_else(PoisonError::into_inner).get(&component).cloned();
    let kept = || File::open(inner.component_path(component)?).ok().map(Arc::new);
    let Some(file) = own.or_else(kept) else { return };
    let read = tokio::task::spawn_blocking(move || whole(&file));
    let Ok(Ok(bytes)) = read.await else { return };
    let _ = parts::send(&frames, &bytes, TIME_MAX).await;
    // Until it has been read.
    let _ = frames.recv().await;
}

/// All of a file, wherever others are in it.
fn whole(file: &File) -> std::io::Result<Vec<u8>> {
    let bytes = file.metadata()?.len().min(COMPONENT_BYTES_MAX);
    let mut all = vec![0; usize::try_from(bytes).map_err(std::io::Error::other)?];
    file.read_exact_at(&mut all, 0)?;
    Ok(all)
}
