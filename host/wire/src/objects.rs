//! Transfers over connections: what the two halves of this room have to do with each other.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use sandbar_core::NodeId;
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::protocol::CloseCode;
use crate::transfer::{Holder, Link, Source, TRANSFER_STREAM, Transfers};

impl Connection {
    /// Answers what the peer, the node of this number, asks for of objects, until the connection is gone. To be called once.
    pub async fn answer_transfers(&self, transfers: &Transfers, peer: NodeId, source: Arc<dyn Source>) {
        let answers = Arc::new(transfers.answers(peer));
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                next = self.next_raw() => match next {
                    Ok(stream) if stream.head == TRANSFER_STREAM => {
                        let (answers, source) = (answers.clone(), source.clone());
                        running.spawn(async move { answers.answer(source, stream.send, stream.receive).await });
                    }
                    Ok(_) => return self.close(CloseCode::Malformed, "a stream of a kind that there is not"),
                    Err(_) => return,
                },
                Some(_) = running.join_next(), if !running.is_empty() => {}
            }
        }
    }

    /// The node of this number, which is at the other end, as one that has objects.
    pub fn holder(&self, node: NodeId) -> Holder {
        Holder { node, link: Arc::new(Over(self.quic().clone())) }
    }
}

/// A connection, and no other when it is lost: who has a newer one makes a holder of that.
struct Over(quinn::Connection);

impl Link for Over {
    fn connect(&self) -> BoxFuture<'static, Result<quinn::Connection, String>> {
        let result = match self.0.close_reason() {
            None => Ok(self.0.clone()),
            Some(reason) => Err(reason.to_string()),
        };
        std::future::ready(result).boxed()
    }
}
