//! Where things lie: numbers that are given again once what lay there is gone.

use std::num::NonZeroU32;

/// A place in a [`crate::slab::Slab`].
pub(crate) trait Place: Copy {
    /// The place with this index.
    fn of(index: u32) -> Self;
    /// Its index.
    fn index(self) -> usize;
}

macro_rules! places {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub(crate) struct $name(NonZeroU32);

            impl Place for $name {
                #[inline]
                fn of(index: u32) -> Self {
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

places! {
    /// Of a task.
    TaskAt;
    /// Of an object.
    ObjectAt;
    /// Of an actor.
    ActorAt;
    /// Of a job.
    JobAt;
    /// Of a class of tasks.
    ClassAt;
    /// Of a shape: what tasks take of a node, and those that wait for it.
    ShapeAt;
    /// Of a worker.
    WorkerAt;
    /// Of a node.
    NodeAt;
    /// Of a bundle of a placement group, where it is placed.
    BundleAt;
}
