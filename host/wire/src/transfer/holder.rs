//! Holders of an object, and how to connect to them.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use quinn::Connection;
use sandbar_core::{NodeId, ObjectId};

use super::FailedHolder;

/// A node that has an object or is fetching it.
#[derive(Clone)]
pub struct Holder {
    /// The node.
    pub node: NodeId,
    /// Connects to the holder.
    pub link: Arc<dyn HolderLink>,
}

/// Connects to a node.
pub trait HolderLink: Send + Sync {
    /// Returns the existing connection, or a new one if it was lost. The error is the reason, as text.
    fn connect(&self) -> BoxFuture<'static, Result<Connection, String>>;
}

/// Finds other holders of an object.
pub trait HolderFinder: Send + Sync {
    /// Called when all known holders have failed. Returns an empty list if there are no others.
    fn find_more(&self, object: ObjectId, failed: &[FailedHolder]) -> BoxFuture<'static, Vec<Holder>>;
}

impl Holder {
    /// Creates a holder with a fixed connection, which is not re-established when lost.
    pub fn connected(node: NodeId, connection: Connection) -> Holder {
        Holder { node, link: Arc::new(FixedLink(connection)) }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({})", self.node)
    }
}

struct FixedLink(Connection);

impl HolderLink for FixedLink {
    fn connect(&self) -> BoxFuture<'static, Result<Connection, String>> {
        let connection = self.0.clone();
        let result = match connection.close_reason() {
            None => Ok(connection),
            Some(reason) => Err(reason.to_string()),
        };
        std::future::ready(result).boxed()
    }
}
