//! Typed keys of slab records. A key is reused after its record was removed.

use std::num::NonZeroU32;

/// A key of a [`crate::records::slab::Slab`].
pub(crate) trait SlabKey: Copy {
    /// Returns the key with this index.
    fn from_index(index: u32) -> Self;
    /// Returns the index of the key.
    fn index(self) -> usize;
}

macro_rules! slab_keys {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub(crate) struct $name(NonZeroU32);

            impl SlabKey for $name {
                #[inline]
                fn from_index(index: u32) -> Self {
                    $name(NonZeroU32::MIN.saturating_add(index))
                }

                #[inline]
                fn index(self) -> usize {
                    self.0.get() as usize - 1
                }
            }
        )*
    };
}

slab_keys! {
    /// Key of a task.
    TaskKey;
    /// Key of an object.
    ObjectKey;
    /// Key of an actor.
    ActorKey;
    /// Key of a tenant.
    TenantKey;
    /// Key of a job.
    JobKey;
    /// Key of a task class.
    ClassKey;
    /// Key of a shape: a resource request with its queue.
    ShapeKey;
    /// Key of a worker.
    WorkerKey;
    /// Key of a node.
    NodeKey;
    /// Key of a placed bundle of a placement group.
    BundleKey;
}

/// A task by its key and submission number. The task is gone if the key now refers to a task with another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NumberedTask {
    pub(crate) task: TaskKey,
    pub(crate) number: u64,
}
