//! Connections between the nodes of a cluster.
//!
//! Who has the higher number connects. On the channel of tasks each says first who it is and what it has, in JSON, and from
//! then on the hubs talk, in frames. Requests are for the store of what must survive, and for what an object is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbar_core::NodeId;
use sandbar_wire::{
    Channel, CloseCode, ConnectError, Connection, DisconnectReason, Endpoint, ExpectedPeer, Frames, Role,
};

use super::fits::{self, FITS};
use super::members::Member;
use super::{ClusterError, Inner, asks, objects, programs};
use sandbar_runtime::{NewPeer, PeerEnd, PeerLine};

/// Tasks, then components.
pub(super) const TASKS: Channel = Channel::new(1);
pub(super) const COMPONENTS: Channel = Channel::new(8);
/// Who connects says who it is within this.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);
/// Tasks that a node is given at once, whatever it says.
pub(super) const SLOTS_MAX: u32 = 1024;

/// Connections that this node made: between two nodes there is one, whatever it is for.
pub(super) struct Dialer {
    endpoint: Endpoint,
    all: Mutex<Vec<(SocketAddr, Connection)>>,
    /// Who connects somewhere has the turn there. Nobody waits for a node but those that want it: one that is cut off
    /// takes seconds to be given up.
    turns: Mutex<BTreeMap<SocketAddr, Arc<tokio::sync::Mutex<()>>>>,
    /// Nodes whose hubs this one's talks to, or tries to.
    talking: Mutex<BTreeSet<NodeId>>,
}

impl Dialer {
    pub(super) fn new(endpoint: Endpoint) -> Dialer {
        Dialer { endpoint, all: Mutex::default(), turns: Mutex::default(), talking: Mutex::default() }
    }

    /// The connection that there is, or a new one.
    pub(super) async fn connect(&self, address: SocketAddr, expect: &ExpectedPeer) -> Result<Connection, ConnectError> {
        let turn = self.turn(address);
        let _turn = turn.lock().await;
        if let Some(connection) = self.made(address, expect) {
            return Ok(connection);
        }
        let connection = self.endpoint.connect(address, expect).await?;
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push((address, connection.clone()));
        Ok(connection)
    }

    fn turn(&self, address: SocketAddr) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(address).or_default().clone()
    }

    fn made(&self, address: SocketAddr, expect: &ExpectedPeer) -> Option<Connection> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, connection)| !connection.is_closed());
        let is_it = |(to, connection): &&(SocketAddr, Connection)| match expect {
            ExpectedPeer::Node(name) => connection.peer().name == *name,
            ExpectedPeer::AnyNode => *to == address,
        };
        all.iter().find(is_it).map(|(_, connection)| connection.clone())
    }

    fn talking(&self) -> MutexGuard<'_, BTreeSet<NodeId>> {
        self.talking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects to a member and has the hubs talk, unless that is under way.
pub(super) fn dial(inner: &Arc<Inner>, member: Member) {
    let node = NodeId(member.number.into());
    if !inner.dialer.talking().insert(node) {
        return;
    }
    let inner = inner.clone();
    inner.handle.clone().spawn(async move {
        let connected = async {
            let name = member.name.parse().map_err(|e| ClusterError::Name(member.name.clone(), e))?;
            let connection = inner.dialer.connect(member.address, &ExpectedPeer::Node(name)).await?;
            let frames = connection.open(TASKS).await?;
            Ok::<_, ClusterError>((connection, frames))
        };
        let connected = connected.await.inspect_err(|error| {
            log::warn!("no connection to node `{}` (number {node}): {error}; it is tried again", member.name);
        });
        if let Ok((connection, frames)) = connected {
            tokio::select! {
                () = talk(inner.clone(), connection.clone(), frames) => {}
                // Who was dialed asks as well.
                () = attend(inner.clone(), connection) => {}
            }
        }
        inner.dialer.talking().remove(&node);
    });
}

/// Lets nodes in.
pub(super) async fn accept(inner: Arc<Inner>) {
    while let Some(connection) = inner.endpoint.accept(Role::Node).await {
        tokio::spawn(attend(inner.clone(), connection));
    }
}

/// Answers what a node asks, until the connection ends.
async fn attend(inner: Arc<Inner>, connection: Connection) {
    let requests = async {
        while let Ok(request) = connection.next_request().await {
            tokio::spawn(asks::answer(inner.clone(), number_of(&inner, &connection), request));
        }
    };
    let channels = async {
        while let Ok((channel, frames)) = connection.accept().await {
            match channel {
                TASKS => drop(tokio::spawn(talk(inner.clone(), connection.clone(), frames))),
                COMPONENTS => drop(tokio::spawn(programs::give(inner.clone(), frames))),
                FITS => drop(tokio::spawn(fits::serve(inner.clone(), number_of(&inner, &connection), frames))),
                // Of a version that has more of them: it is told that nobody listens.
                _ => drop(frames),
            }
        }
    };
    tokio::join!(requests, channels);
}

/// The number of the node at the other end, if its hub talks to this one's.
fn number_of(inner: &Inner, connection: &Connection) -> Option<NodeId> {
    let links = inner.links();
    links.iter().find(|(_, link)| link.peer().name == connection.peer().name).map(|(node, _)| *node)
}

/// Has two hubs talk until the connection ends.
async fn talk(inner: Arc<Inner>, connection: Connection, mut frames: Frames) {
    let Some(hub) = inner.hub.get() else { return };
    let hello = serde_json::to_vec(&hub.member).unwrap_or_default();
    if frames.send(&hello).await.is_err() {
        return;
    }
    let Ok(Ok(Some(theirs))) = tokio::time::timeout(HELLO_TIME_MAX, frames.recv()).await else { return };
    let theirs = match serde_json::from_slice::<Member>(&theirs) {
        Ok(theirs) => theirs,
        Err(e) => {
            log::warn!("what {} says of itself makes no sense: {e}", connection.peer());
            return connection.close(CloseCode::Malformed, "what it says of itself makes no sense");
        }
    };
    // A node is who its certificate says, whatever it says.
    if theirs.name != connection.peer().name.as_str() {
        return connection.close(CloseCode::Malformed, "it says that it is another node");
    }
    if theirs.number == inner.own.number {
        return connection.close(CloseCode::Malformed, "it says that it is this node");
    }
    let node = NodeId(theirs.number.into());
    let peer = format!("node `{}` (number {node}, {})", theirs.name, connection.address());
    log::info!("connected to {peer}");
    let (line, end) = PeerLine::outside(hub.asker.doorbell());
    let before = inner.links().insert(node, connection.clone());
    hub.asker.join(NewPeer { node, resources: theirs.resources.demand(), slots: theirs.slots.min(SLOTS_MAX), line });
    drop(before);
    let transfers = connection.serve_transfers(&inner.transfers, node, Arc::new(objects::Served(inner.clone())));
    tokio::select! {
        () = pump(frames, end) => {}
        () = transfers => {}
    }
    match connection.disconnect_reason() {
        Some(DisconnectReason::Closed { code: CloseCode::Done | CloseCode::Stopping, reason }) => {
            log::info!("{peer} closed the connection: {reason}");
        }
        Some(DisconnectReason::Local) => log::info!("this node closed the connection to {peer}"),
        Some(lost) => log::warn!("lost {peer}: {lost}; what it ran for this node runs again elsewhere"),
        None => log::info!("the tasks of {peer} and this node have ended"),
    }
    // Who still asked for objects is to see that they end, not that they end early.
    connection.close(CloseCode::Done, "its tasks have ended");
    // Not one that took its place, from the same address.
    let mut links = inner.links();
    if links.get(&node).is_some_and(|link| link.is_same(&connection)) {
        links.remove(&node);
        inner.shared.lose(node);
    }
}

/// Carries frames both ways until one of them ends.
async fn pump(frames: Frames, end: PeerEnd) {
    let (sender, mut receiver) = frames.split();
    let out = async {
        while let Some(frame) = end.next().await {
            if sender.send(&frame).await.is_err() {
                return;
            }
        }
    };
    let into = async {
        while let Ok(Some(frame)) = receiver.recv().await {
            end.came(frame.to_vec()).await;
        }
    };
    tokio::select! {
        () = out => {}
        () = into => {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use sandbar_wire::{Authority, Clock, Identity, NodeFolder, SystemClock, WireLimits};

    use super::*;

    fn endpoint(authority: &Authority, folder: &std::path::Path, name: &str) -> Endpoint {
        let (folder, now) = (NodeFolder::lock(&folder.join(name)).unwrap(), SystemClock.now());
        let (key, lifetime) = (folder.key().unwrap(), Duration::from_secs(3600));
        let request = key.request().unwrap();
        let certificate = authority.certify(&request, Role::Node, &name.parse().unwrap(), lifetime, now).unwrap();
        let identity = Identity::new(key, certificate, authority.trust().certificate().to_vec(), now).unwrap();
        Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), &identity, WireLimits::default()).unwrap()
    }

    #[tokio::test]
    async fn who_does_not_answer_holds_up_nobody_else() {
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
        let nobody = dialer.connect(silent.local_addr().unwrap(), &ExpectedPeer::AnyNode);
        let somebody = async {
            // The other one is dialed by now.
            while silent.recv_from(&mut [0; 2000]).is_err() {
                tokio::task::yield_now().await;
            }
            dialer.connect(address, &ExpectedPeer::AnyNode).await
        };
        silent.set_nonblocking(true).unwrap();
        tokio::select! {
            biased;
            said = nobody => panic!("it was waited for: {said:?}"),
            said = somebody => assert!(said.is_ok(), "{said:?}"),
        }
        // By its name it is the same.
        let one = dialer.connect(address, &ExpectedPeer::AnyNode).await.unwrap();
        let same =
            dialer.connect(([127, 0, 0, 1], 1).into(), &ExpectedPeer::Node("other".parse().unwrap())).await.unwrap();
        assert!(one.is_same(&same) && !one.is_closed());
        accepts.abort();
    }
}
