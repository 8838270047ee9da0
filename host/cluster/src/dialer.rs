//! Outgoing connections. Two nodes have one connection, whatever they use it for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_core::NodeId;
use sandbar_wire::{ConnectError, Connection, Endpoint, ExpectedPeer};

/// Connects to nodes, and reuses the connections.
pub(crate) struct Dialer {
    endpoint: Endpoint,
    open: Mutex<Vec<(SocketAddr, Connection)>>,
    /// Serialises connects to each address, and to no other: one to a node that is cut off fails only after seconds.
    connecting: Mutex<BTreeMap<SocketAddr, Arc<tokio::sync::Mutex<()>>>>,
    /// Nodes to whose runtimes this node's is connected or connecting.
    peers: Mutex<BTreeSet<NodeId>>,
}

impl Dialer {
    pub(crate) fn new(endpoint: Endpoint) -> Dialer {
        Dialer { endpoint, open: Mutex::default(), connecting: Mutex::default(), peers: Mutex::default() }
    }

    /// Returns the open connection to the peer, or a new one.
    pub(crate) async fn connect(&self, address: SocketAddr, expect: &ExpectedPeer) -> Result<Connection, ConnectError> {
        let lock = self.connect_lock(address);
        let _locked = lock.lock().await;
        if let Some(connection) = self.find_open(address, expect) {
            return Ok(connection);
        }
        let connection = self.endpoint.connect(address, expect).await?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push((address, connection.clone()));
        Ok(connection)
    }

    fn connect_lock(&self, address: SocketAddr) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.connecting.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(address).or_default().clone()
    }

    fn find_open(&self, address: SocketAddr, expect: &ExpectedPeer) -> Option<Connection> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, connection)| !connection.is_closed());
        let is_expected = |(to, connection): &&(SocketAddr, Connection)| match expect {
            ExpectedPeer::Node(name) => connection.peer().name == *name,
            ExpectedPeer::AnyNode => *to == address,
        };
        open.iter().find(is_expected).map(|(_, connection)| connection.clone())
    }

    /// Nodes to whose runtimes this node's is connected or connecting.
    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeSet<NodeId>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Duration;

    use sandbar_wire::{Authority, Clock, Identity, NodeFolder, Principal, Role, SystemClock, WireLimits};

    use super::*;

    fn endpoint(authority: &Authority, folder: &std::path::Path, name: &str) -> Endpoint {
        let (folder, now) = (NodeFolder::lock(&folder.join(name)).unwrap(), SystemClock.now());
        let (key, lifetime) = (folder.key().unwrap(), Duration::from_secs(3600));
        let request = key.request().unwrap();
        let certificate = authority.certify(&request, &Principal::Node(name.parse().unwrap()), lifetime, now).unwrap();
        let identity = Identity::new(key, certificate, authority.trust().certificate().to_vec(), now).unwrap();
        Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), &identity, WireLimits::default()).unwrap()
    }

    #[tokio::test]
    async fn a_silent_node_delays_no_other_connection() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create(&folder.path().join("authority"), SystemClock.now()).unwrap();
        let [own, other] = ["own", "other"].map(|name| endpoint(&authority, folder.path(), name));
        let address = other.address().unwrap();
        let accepts = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some(connection) = other.accept(Role::Node).await {
                all.push(connection);
            }
        });
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let dialer = Dialer::new(own);
        let to_silent = dialer.connect(silent.local_addr().unwrap(), &ExpectedPeer::AnyNode);
        let to_other = async {
            // The connect to the silent node has started.
            while silent.recv_from(&mut [0; 2000]).is_err() {
                tokio::task::yield_now().await;
            }
            dialer.connect(address, &ExpectedPeer::AnyNode).await
        };
        silent.set_nonblocking(true).unwrap();
        tokio::select! {
            biased;
            result = to_silent => panic!("the silent node was waited for: {result:?}"),
            result = to_other => assert!(result.is_ok(), "{result:?}"),
        }
        // The same node by its name has the same connection.
        let one = dialer.connect(address, &ExpectedPeer::AnyNode).await.unwrap();
        let same =
            dialer.connect(([127, 0, 0, 1], 1).into(), &ExpectedPeer::Node("other".parse().unwrap())).await.unwrap();
        assert!(one.is_same(&same) && !one.is_closed());
        accepts.abort();
    }
}
