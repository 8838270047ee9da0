//! Who has an object, and how they are reached.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use quinn::Connection;
use sandbar_core::{NodeId, ObjectId};

use super::Gone;

/// A node that has an object, or is fetching it.
#[derive(Clone)]
pub struct Holder {
    /// Which node.
    pub node: NodeId,
    /// How it is reached.
    pub link: Arc<dyn Link>,
}

/// How a node is reached.
pub trait Link: Send + Sync {
    /// A connection to it: the one that there is, or a new one when there is none or it was lost. Says why there can be
    /// none.
    fn connect(&self) -> BoxFuture<'static, Result<Connection, String>>;
}

/// Who else has an object.
pub trait FindHolders: Send + Sync {
    /// Asked when none of those that were known is left. Gives none when there are none.
    fn more(&self, object: ObjectId, gone: &[Gone]) -> BoxFuture<'static, Vec<Holder>>;
}

impl Holder {
    /// One that is reached by one connection, and not at all when that is lost.
    pub fn connected(node: NodeId, connection: Connection) -> Holder {
        Holder { node, link: Arc::new(Connected(connection)) }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({})", self.node)
    }
}

struct Connected(Connection);

impl Link for Connected {
    fn connect(&self) -> BoxFuture<'static, Result<Connection, String>> {
        let connection = self.0.clone();
        let result = match connection.close_reason() {
            None => Ok(connection),
            Some(reason) => Err(reason.to_string()),
        };
        std::future::ready(result).boxed()
    }
}
