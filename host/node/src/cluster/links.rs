//! Connections between the nodes of a cluster.
//!
//! Who has the higher number connects. On the channel of tasks each says first who it is and what it has, in JSON, and from
//! then on the hubs talk, in frames. Requests are for the store of what must survive, and for what an object is.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbar_core::NodeId;
use sandbar_wire::{Channel, CloseCode, ConnectError, Connection, Endpoint, Expect, Frames, Role};

use super::members::Member;
use super::{Inner, asks, objects, programs};
use crate::program::{NewPeer, PeerEnd, PeerLine};

/// Tasks, then components.
const TASKS: Channel = Channel::new(1);
pub(super) const COMPONENTS: Channel = Channel::new(8);
/// Who connects says who it is within this.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);
/// Tasks that a node is given at once, whatever it says.
const SLOTS_MAX: u32 = 1024;

/// Connections that this node made: between two nodes there is one, whatever it is for.
pub(super) struct Dialer {
    endpoint: Endpoint,
    all: tokio::sync::Mutex<Vec<(SocketAddr, Connection)>>,
    /// Nodes whose hubs this one's talks to, or tries to.
    talking: Mutex<BTreeSet<NodeId>>,
}

impl Dialer {
    pub(super) fn new(endpoint: Endpoint) -> Dialer {
        Dialer { endpoint, all: tokio::sync::Mutex::new(Vec::new()), talking: Mutex::default() }
    }

    /// The connection that there is, or a new one.
    pub(super) async fn connect(&self, address: SocketAddr, expect: &Expect) -> Result<Connection, ConnectError> {
        let mut all = self.all.lock().await;
        all.retain(|(_, connection)| !connection.is_closed());
        let is_it = |(to, connection): &&(SocketAddr, Connection)| match expect {
            Expect::Node(name) => connection.peer().name == *name,
            Expect::AnyNode => *to == address,
        };
        if let Some((_, connection)) = all.iter().find(is_it) {
            return Ok(connection.clone());
        }
        let connection = self.endpoint.connect(address, expect).await?;
        all.push((address, connection.clone()));
        Ok(connection)
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
        if let Ok(name) = member.name.parse()
            && let Ok(connection) = inner.dialer.connect(member.address, &Expect::Node(name)).await
            && let Ok(frames) = connection.open(TASKS).await
        {
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
            tokio::spawn(asks::answer(inner.clone(), request));
        }
    };
    let channels = async {
        while let Ok((channel, frames)) = connection.accept().await {
            match channel {
                TASKS => drop(tokio::spawn(talk(inner.clone(), connection.clone(), frames))),
                COMPONENTS => drop(tokio::spawn(programs::give(inner.clone(), frames))),
                // Of a version that has more of them: it is told that nobody listens.
                _ => drop(frames),
            }
        }
    };
    tokio::join!(requests, channels);
}

/// Has two hubs talk until the connection ends.
async fn talk(inner: Arc<Inner>, connection: Connection, mut frames: Frames) {
    let Some(hub) = inner.hub.get() else { return };
    let hello = serde_json::to_vec(&hub.member).unwrap_or_default();
    if frames.send(&hello).await.is_err() {
        return;
    }
    let Ok(Ok(Some(theirs))) = tokio::time::timeout(HELLO_TIME_MAX, frames.recv()).await else { return };
    let Ok(theirs) = serde_json::from_slice::<Member>(&theirs) else { return };
    // A node is who its certificate says, whatever it says.
    if theirs.name != connection.peer().name.as_str() {
        return connection.close(CloseCode::Malformed, "it says that it is another node");
    }
    let node = NodeId(theirs.number.into());
    let (line, end) = PeerLine::outside(hub.asker.bell());
    let before = inner.links().insert(node, connection.clone());
    hub.asker.join(NewPeer { node, resources: theirs.resources.demand(), slots: theirs.slots.min(SLOTS_MAX), line });
    drop(before);
    let transfers = connection.answer_transfers(&inner.transfers, node, Arc::new(objects::Served(inner.clone())));
    tokio::select! {
        () = pump(frames, end) => {}
        () = transfers => {}
    }
    // Not one that took its place, from the same address.
    let mut links = inner.links();
    if links.get(&node).is_some_and(|link| link.is_same(&connection)) {
        links.remove(&node);
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
