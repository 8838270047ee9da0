//! Fetching an object.

use std::fmt;
use std::io;
use std::sync::Arc;

use sandbar_core::{NodeId, ObjectId};

use super::drive::Driver;
use super::engine::Begun;
use super::layout::Layout;
use super::progress::Progress;
use super::{AllGone, FetchError, FindHolders, Holder, Permit, Priority, Root, Target, Transfers};

/// What is to be fetched, and from whom.
#[derive(Clone)]
pub struct FetchSpec {
    /// Which object.
    pub object: ObjectId,
    /// Its length, as its owner says.
    pub bytes: u64,
    /// Its hash, as its owner says.
    pub root: Root,
    /// Who has it, best first.
    pub holders: Vec<Holder>,
    /// How much it is waited for.
    pub priority: Priority,
    /// Who knows more holders, once these are gone.
    pub finder: Option<Arc<dyn FindHolders>>,
}

impl fmt::Debug for FetchSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("FetchSpec");
        fields.field("object", &self.object).field("bytes", &self.bytes).field("root", &self.root);
        fields.field("holders", &self.holders).field("priority", &self.priority).finish_non_exhaustive()
    }
}

/// An object that was fetched.
#[derive(Debug)]
pub struct Fetched<T> {
    /// What it was fetched into: all of it is verified.
    pub target: T,
    /// The memory that was admitted, to be kept until it is accounted for elsewhere.
    pub permit: Permit,
    /// What came from whom.
    pub report: FetchReport,
    /// As long as this lives others are served of it as while it was fetched: until it is served as a whole.
    pub serving: Serving,
}

/// An object goes on to be [served in part](super::Held::Partial), though it was fetched.
pub struct Serving {
    _begun: Begun,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Serving")
    }
}

/// What came from whom.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FetchReport {
    /// Bytes that came from each holder over the link, hashes and what was of no use included.
    pub from: Vec<(NodeId, u64)>,
    /// Holders that were given up on the way, and why.
    pub gone: AllGone,
    /// Pieces that were taken over from a slow holder.
    pub stolen: u64,
}

impl Transfers {
    /// Fetches an object into memory that `reserve` gives, once there is room for it. Dropping the future ends all that
    /// was begun for it and gives the memory back.
    ///
    /// # Errors
    /// Why it was not fetched; the memory was given back.
    pub async fn fetch<T: Target, F: Future<Output = io::Result<T>>>(
        &self,
        spec: FetchSpec,
        reserve: impl FnOnce(u64) -> F,
    ) -> Result<Fetched<T>, FetchError> {
        let (object, bytes) = (spec.object, spec.bytes);
        let max = self.0.limits.object_bytes_max;
        let layout = Layout::of(bytes).filter(|_| bytes <= max).ok_or(FetchError::TooLarge { object, bytes, max })?;
        let permit = self.admit(object, bytes, spec.priority).await?;
        let no_memory = |error| FetchError::Memory { object, bytes, error };
        let target = Arc::new(reserve(bytes).await.map_err(no_memory)?);
        if target.bytes() != bytes {
            return Err(no_memory(io::Error::other(format!("{} bytes were reserved", target.bytes()))));
        }
        if bytes == 0 && spec.root != Root::of(&[]) {
            return Err(FetchError::BadRoot { object, root: spec.root });
        }
        let progress = Arc::new(Progress::new(layout, spec.root, target.view()));
        let begun = self.0.begin(object, spec.priority, &progress);
        let report = {
            let mut driver = Driver::new(self.0.clone(), spec, progress.clone(), target.clone());
            tokio::select! {
                biased;
                report = driver.run() => report?,
                () = permit.is_asked_back() => return Err(FetchError::Yielded { object }),
            }
        };
        if let Some(tree) = progress.nodes().tree() {
            self.0.trees.put(object, tree);
        }
        // The driver had the only others.
        let target = Arc::into_inner(target).ok_or_else(|| no_memory(io::Error::other("it is still in use")))?;
        Ok(Fetched { target, permit, report, serving: Serving { _begun: begun } })
    }
}
