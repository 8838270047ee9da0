//! Placement groups: room that is set aside for tasks and actors together.

use sandbar_core::{GroupId, GroupRequest, GroupStrategy, Strategy, TaskError};
use serde::{Deserialize, Serialize};

use super::object::ObjectRef;
use crate::host;

/// What is set aside on one node: a part of a [`PlacementGroup`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bundle(sandbar_core::Bundle);

impl Bundle {
    /// Of so many processors, to ten thousandths. `Bundle::default()` has nothing yet.
    pub fn cpus(cpus: f64) -> Bundle {
        Bundle(sandbar_core::Bundle { cpus, ..Default::default() })
    }

    /// And of so many devices, to ten thousandths.
    #[must_use]
    pub fn gpus(mut self, gpus: f64) -> Bundle {
        self.0.gpus = gpus;
        self
    }

    /// And of so many bytes of memory.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Bundle {
        self.0.memory = bytes;
        self
    }

    /// And of so much of something else that a node was said to have.
    #[must_use]
    pub fn resource(mut self, name: impl Into<String>, amount: f64) -> Bundle {
        self.0.resources.push((name.into(), amount));
        self
    }
}

/// Room that is set aside on one node or several, all of it at once, for the tasks and actors that are [placed] in it.
///
/// It is a value like any other: clone it, pass it to tasks and actors. It lives until it is removed, or its job has ended.
///
/// [placed]: crate::Submission::placement
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlacementGroup {
    ready: ObjectRef<()>,
}

impl PlacementGroup {
    /// Asks for room: from 1 to 100 bundles.
    pub fn new(bundles: impl IntoIterator<Item = Bundle>, strategy: GroupStrategy) -> PlacementGroup {
        PlacementGroup::request(None, bundles, strategy)
    }

    /// As [`PlacementGroup::new`], with what people call it.
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
        // Numbers and texts can be written.
        PlacementGroup { ready: ObjectRef::held(host::group(&request.unwrap_or_default())) }
    }

    /// Waits until all of it is set aside. Tasks and actors can be placed in it before: they wait as well.
    ///
    /// # Errors
    /// Why it never will be: [`Code::Infeasible`](crate::Code::Infeasible) when no nodes have what it asks for,
    /// [`Code::GroupRemoved`](crate::Code::GroupRemoved) when it was removed before.
    pub fn ready(&self) -> Result<(), TaskError> {
        self.ready.get()
    }

    /// What is there once all of it is set aside: to [`wait`](crate::wait) for, with a timeout or beside others.
    pub fn object(&self) -> &ObjectRef<()> {
        &self.ready
    }

    /// Gives the room back. What runs in it ends, and fails like what waits for it, with
    /// [`Code::GroupRemoved`](crate::Code::GroupRemoved). Nothing is begun again for that.
    pub fn remove(&self) {
        host::remove_group(self.ready.number());
    }

    /// Where what is placed in it runs.
    pub(crate) fn strategy(&self, bundle: Option<u32>) -> Strategy {
        Strategy::Group { group: GroupId(self.ready.number()), bundle }
    }
}
