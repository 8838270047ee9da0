//! Placement groups: resources reserved for several tasks and actors.

use sandbar_core::{GroupId, GroupRequest, GroupStrategy, Strategy, TaskError};
use serde::{Deserialize, Serialize};

use super::object::ObjectRef;
use crate::host;

/// Resources reserved on one node: a part of a [`PlacementGroup`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bundle(sandbar_core::Bundle);

impl Bundle {
    /// Creates a bundle with this number of processors, with a precision of 1/10,000. `Bundle::default()` has no
    /// resources.
    pub fn cpus(cpus: f64) -> Bundle {
        Bundle(sandbar_core::Bundle { cpus, ..Default::default() })
    }

    /// Adds GPUs, with a precision of 1/10,000.
    #[must_use]
    pub fn gpus(mut self, gpus: f64) -> Bundle {
        self.0.gpus = gpus;
        self
    }

    /// Adds memory, in bytes.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Bundle {
        self.0.memory = bytes;
        self
    }

    /// Adds an amount of a custom resource of a node.
    #[must_use]
    pub fn resource(mut self, name: impl Into<String>, amount: f64) -> Bundle {
        self.0.resources.push((name.into(), amount));
        self
    }
}

/// Resources reserved at once, on one node or several, for the tasks and actors that are [placed] in the group.
///
/// It is a value like any other: it can be cloned and passed to tasks and actors. It lives until it is removed, or
/// until its job ends.
///
/// [placed]: crate::Submission::placement
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlacementGroup {
    ready: ObjectRef<()>,
}

impl PlacementGroup {
    /// Requests resources for 1 to 100 bundles.
    pub fn new(bundles: impl IntoIterator<Item = Bundle>, strategy: GroupStrategy) -> PlacementGroup {
        PlacementGroup::request(None, bundles, strategy)
    }

    /// Like [`PlacementGroup::new`], with a display name.
    pub fn named(
        name: impl Into<String>,
        bundles: impl IntoIterator<Item = Bundle>,
        strategy: GroupStrategy,
    ) -> PlacementGroup {
        PlacementGroup::request(Some(name.into()), bundles, strategy)
    }

    fn request(
        name: Option<String>,
        bundles: impl IntoIterator<Item = Bundle>,
        strategy: GroupStrategy,
    ) -> PlacementGroup {
        let bundles = bundles.into_iter().map(|bundle| bundle.0).collect();
        let request = postcard::to_stdvec(&GroupRequest { name, strategy, bundles });
        // Encoding numbers and strings does not fail.
        PlacementGroup { ready: ObjectRef::from_number(host::group(&request.unwrap_or_default())) }
    }

    /// Waits until all resources are reserved. Tasks and actors can be placed in the group earlier: they wait as well.
    ///
    /// # Errors
    /// [`Code::Infeasible`](crate::Code::Infeasible) when no nodes have the requested resources;
    /// [`Code::GroupRemoved`](crate::Code::GroupRemoved) when the group was removed before.
    pub fn ready(&self) -> Result<(), TaskError> {
        self.ready.get()
    }

    /// An object that is ready once all resources are reserved: for [`wait`](crate::wait), with a timeout or together
    /// with other objects.
    pub fn object(&self) -> &ObjectRef<()> {
        &self.ready
    }

    /// Frees the resources. Tasks and actors in the group, and those that wait for it, fail with
    /// [`Code::GroupRemoved`](crate::Code::GroupRemoved). They are not retried.
    pub fn remove(&self) {
        host::remove_group(self.ready.number());
    }

    /// The placement strategy for this group.
    pub(crate) fn strategy(&self, bundle: Option<u32>) -> Strategy {
        Strategy::Group { group: GroupId(self.ready.number()), bundle }
    }
}

/// Setters of the placement of a task or an actor, for a builder as in [`sandbar_core::resource_setters`].
macro_rules! placement_setters {
    ($kind:literal) => {
        #[doc = concat!("Places the ", $kind, " in this bundle of a placement group, whose resources it uses.")]
        /// For any bundle: [`Self::placement_any`].
        pub fn placement(self, group: &$crate::PlacementGroup, bundle: u32) -> Self {
            self.with(|options| options.strategy = group.strategy(Some(bundle)))
        }

        #[doc = concat!("Places the ", $kind, " in any bundle of a placement group that has room.")]
        pub fn placement_any(self, group: &$crate::PlacementGroup) -> Self {
            self.with(|options| options.strategy = group.strategy(None))
        }

        #[doc = concat!("Sets the placement of the ", $kind, " outside placement groups. Default: any node with room.")]
        pub fn strategy(self, strategy: $crate::Strategy) -> Self {
            self.with(|options| options.strategy = strategy)
        }
    };
}

pub(crate) use placement_setters;
