//! Object transfers over [`Connection`]s: joins the connection half and the transfer half of this crate.

use std::sync::Arc;

use sandbar_core::NodeId;
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::protocol::CloseCode;
use crate::transfer::{Holder, ObjectSource, TRANSFER_STREAM, Transfers};

impl Connection {
    /// Serves the object requests of the peer, which is node `peer`, until the connection closes. Call it once for each
    /// connection.
    pub async fn serve_transfers(&self, transfers: &Transfers, peer: NodeId, source: Arc<dyn ObjectSource>) {
        let server = Arc::new(transfers.server_for(peer));
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                next = self.next_raw() => match next {
                    Ok(stream) if stream.head == TRANSFER_STREAM => {
                        let (server, source) = (server.clone(), source.clone());
                        running.spawn(async move { server.serve_stream(source, stream.send, stream.receive).await });
                    }
                    Ok(_) => return self.close(CloseCode::Malformed, "unknown stream kind"),
                    Err(_) => return,
                },
                Some(_) = running.join_next(), if !running.is_empty() => {}
            }
        }
    }

    /// Returns the peer, which is node `node`, as a holder of objects.
    pub fn holder(&self, node: NodeId) -> Holder {
        Holder::connected(node, self.quic().clone())
    }
}
