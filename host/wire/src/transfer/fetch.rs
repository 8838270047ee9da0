//! Fetching of one object.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::driver::FetchDriver;
use super::engine::ActiveFetch;
use super::layout::Layout;
use super::progress::FetchProgress;
use super::{FetchError, FetchReport, FetchSpec, FetchTarget, MemoryPermit, RootHash, Transfers};

/// A fetched object.
#[derive(Debug)]
pub struct FetchedObject<T> {
    /// The target, with all groups verified.
    pub target: T,
    /// The admitted memory. Keep it until the object's memory is accounted for elsewhere.
    pub permit: MemoryPermit,
    /// Statistics of the fetch.
    pub report: FetchReport,
    /// Keeps the object served in part. Drop it once the object is served as a whole.
    pub serving: ServingGuard,
}

/// Keeps a fetched object available as a [partial object](super::HeldObject::Partial).
pub struct ServingGuard {
    _active: ActiveFetch,
}

impl fmt::Debug for ServingGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServingGuard")
    }
}

impl Transfers {
    /// Fetches an object into memory that `reserve` returns, once that memory is admitted. Dropping the future cancels
    /// the fetch and releases the memory.
    ///
    /// # Errors
    /// Returns why the fetch failed; the memory is released.
    pub async fn fetch<T: FetchTarget, F: Future<Output = io::Result<T>>>(
        &self,
        spec: FetchSpec,
        reserve: impl FnOnce(u64) -> F,
    ) -> Result<FetchedObject<T>, FetchError> {
        let (object, bytes) = (spec.object, spec.bytes);
        let max = self.0.limits.object_bytes_max;
        let layout =
            Layout::for_bytes(bytes).filter(|_| bytes <= max).ok_or(FetchError::TooLarge { object, bytes, max })?;
        let permit = self.admit(object, bytes, spec.priority).await?;
        let no_memory = |error| FetchError::Memory { object, bytes, error };
        let target = Arc::new(reserve(bytes).await.map_err(no_memory)?);
        if target.bytes() != bytes {
            return Err(no_memory(io::Error::other(format!("{} bytes were reserved", target.bytes()))));
        }
        if bytes == 0 && spec.root != RootHash::hash(&[]) {
            return Err(FetchError::WrongEmptyHash { object, root: spec.root });
        }
        let progress = Arc::new(FetchProgress::new(layout, spec.root, target.view()));
        let active = self.0.register(object, spec.priority, &progress);
        let report = {
            let mut driver = FetchDriver::new(self.0.clone(), spec, progress.clone(), target.clone());
            tokio::select! {
                biased;
                report = driver.run() => report?,
                () = permit.reclaim_requested() => return Err(FetchError::Yielded { object }),
            }
        };
        if let Some(tree) = progress.hashes().tree() {
            self.0.trees.put(object, tree);
        }
        // The driver held the only other references.
        let target = Arc::into_inner(target).ok_or_else(|| no_memory(io::Error::other("it is still in use")))?;
        Ok(FetchedObject { target, permit, report, serving: ServingGuard { _active: active } })
    }
}
