//! Components that tasks of other nodes are of: fetched, compiled, kept.

use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sandbar_core::{Code, ComponentId, Fault, Limits, NodeId};
use sandbar_wire::Frames;
use sha2::{Digest, Sha256};

use super::Inner;
use super::links::COMPONENTS;
use crate::program::Loaded;

pub(crate) type Loading = Pin<Box<dyn Future<Output = Loaded> + Send>>;

/// Compiles a component, and asks it for its tasks.
pub(crate) struct Loader {
    /// Where components are kept, by their hashes.
    pub(crate) folder: PathBuf,
    pub(crate) load: Box<dyn Fn(File, PathBuf, Limits) -> Loading + Send + Sync>,
}

/// A component is no longer than this.
const COMPONENT_BYTES_MAX: u64 = 256 << 20;
/// It goes in frames of so many bytes.
const PART_BYTES: usize = 256 << 10;
const TIME_MAX: Duration = Duration::from_secs(120);

/// Loads a component that a node has.
pub(super) async fn load(inner: &Inner, node: NodeId, component: ComponentId, limits: Limits) -> Loaded {
    let hub = inner.hub.get().ok_or_else(|| fault("this node runs no programs"))?;
    let path = hub.loader.folder.join(format!("{component}.wasm"));
    if !path.is_file() {
        let fetched = tokio::time::timeout(TIME_MAX, fetch(inner, node, component)).await;
        let bytes = fetched.map_err(|_| fault("its component did not come in time"))??;
        keep(&path, &bytes).map_err(|e| fault(&format!("its component can't be kept: {e}")))?;
    }
    let file = File::open(&path).map_err(|e| fault(&format!("{}: {e}", path.display())))?;
    let program = (hub.loader.load)(file, path.clone(), limits).await?;
    if program.compiled.id() != component {
        // What was kept is damaged. The next time it is fetched.
        let _ = std::fs::remove_file(&path);
        return Err(fault(&format!("{} is another component than {}", path.display(), component.short())));
    }
    Ok(program)
}

fn fault(words: &str) -> Fault {
    Fault::new(Code::Host, words)
}

async fn fetch(inner: &Inner, node: NodeId, component: ComponentId) -> Result<Vec<u8>, Fault> {
    let failed = |words: &str| fault(&format!("component {} of node {node}: {words}", component.short()));
    let connection = inner.link(node).ok_or_else(|| failed("there is no connection"))?;
    let mut frames = connection.open(COMPONENTS).await.map_err(|e| failed(&e.to_string()))?;
    frames.send(component.to_string().as_bytes()).await.map_err(|e| failed(&e.to_string()))?;
    let mut bytes = Vec::new();
    while let Some(part) = frames.recv().await.map_err(|e| failed(&e.to_string()))? {
        if part.is_empty() {
            let digest: [u8; 32] = Sha256::digest(&bytes).into();
            let is_it = ComponentId::from_digest(digest) == component;
            return is_it.then_some(bytes).ok_or_else(|| failed("what came is another one"));
        }
        if (bytes.len() + part.len()) as u64 > COMPONENT_BYTES_MAX {
            return Err(failed("it is longer than a component may be"));
        }
        bytes.extend_from_slice(&part);
    }
    Err(failed("it is not there"))
}

fn keep(path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(std::path::Path::new("."));
    std::fs::create_dir_all(folder)?;
    let part =
        folder.join(format!(".{}.{}", std::process::id(), path.file_name().unwrap_or_default().to_string_lossy()));
    let mut file = File::create(&part)?;
    file.write_all(bytes)?;
    std::fs::rename(&part, path)
}

/// Gives a component to a node that asks for it.
pub(super) async fn give(inner: Arc<Inner>, mut frames: Frames) {
    let Ok(Some(asked)) = frames.recv().await else { return };
    let Some(component) = std::str::from_utf8(&asked).ok().and_then(|text| text.parse::<ComponentId>().ok()) else {
        return;
    };
    let file = inner.components.lock().unwrap_or_else(PoisonError::into_inner).get(&component).cloned();
    let Some(file) = file else { return };
    let read = tokio::task::spawn_blocking(move || whole(&file));
    let Ok(Ok(bytes)) = read.await else { return };
    for part in bytes.chunks(PART_BYTES) {
        if frames.send(part).await.is_err() {
            return;
        }
    }
    let _ = frames.send(&[]).await;
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
