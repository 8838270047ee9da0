//! Connections between the nodes of a cluster.
//!
//! Who has the higher number connects. On the channel of tasks each says first who it is and what it has, in JSON, and from
//! then on the hubs talk, in frames. Requests are for the store of what must survive, and for what an object is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::NodeId;
use sandbar_wire::{Channel, ConnectError, Connection, Endpoint, Expect, Frames, Role};

use super::members::Member;
use super::{Inner, objects, programs, store};
use crate::program::{NewPeer, PeerEnd, PeerLine};

/// Tasks, then components.
const TASKS: Channel = Channel::new(1);
pub(super) const COMPONENTS: Channel = Channel::new(8);
/// Who connects says who it is within this.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);

/// Connections that this node made: between two nodes there is one, whatever it is for.
pub(super) struct Dialer {
    endpoint: Endpoint,
    all: tokio::sync::Mutex<Vec<(SocketAddr, Connection)>>,
}

impl Dialer {
    pub(super) fn new(endpoint: Endpoint) -> Dialer {
        Dialer { endpoint, all: tokio::sync::Mutex::new(Vec::new()) }
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
}

/// Connects to a member, unless that is under way.
pub(super) fn dial(inner: Arc<Inner>, own: Member, member: Member) {
    let node = NodeId(member.number.into());
    if !inner.shared.begin_dialing(node) {
        return;
    }
    inner.handle.clone().spawn(async move {
        if let Ok(name) = member.name.parse()
            && let Ok(connection) = inner.dialer.connect(member.address, &Expect::Node(name)).await
            && let Ok(frames) = connection.open(TASKS).await
        {
            talk(inner.clone(), own, connection, frames).await;
        }
        inner.shared.end_dialing(node);
    });
}

/// Lets nodes in.
pub(super) async fn accept(inner: Arc<Inner>) {
    while let Some(connection) = inner.endpoint.accept(Role::Node).await {
        tokio::spawn(serve(inner.clone(), connection));
    }
}

/// Answers a node that connected: what it asks, and once it says who it is its hub.
async fn serve(inner: Arc<Inner>, connection: Connection) {
    let requests = answer(inner.clone(), connection.clone());
    let channels = async {
        while let Ok((channel, frames)) = connection.accept().await {
            if channel == TASKS {
                let Some(own) = inner.shared.own() else { continue };
                tokio::spawn(talk(inner.clone(), own, connection.clone(), frames));
            } else if channel == COMPONENTS {
                tokio::spawn(programs::give(inner.clone(), frames));
            }
        }
    };
    tokio::join!(requests, channels);
}

async fn answer(inner: Arc<Inner>, connection: Connection) {
    while let Ok(request) = connection.next_request().await {
        let inner = inner.clone();
        tokio::spawn(store::answer(inner, request));
    }
}

/// Has two hubs talk until the connection ends.
async fn talk(inner: Arc<Inner>, own: Member, connection: Connection, mut frames: Frames) {
    let hello = serde_json::to_vec(&own).unwrap_or_default();
    if frames.send(&hello).await.is_err() {
        return;
    }
    let Ok(Ok(Some(theirs))) = tokio::time::timeout(HELLO_TIME_MAX, frames.recv()).await else { return };
    let Ok(theirs) = serde_json::from_slice::<Member>(&theirs) else { return };
    // A node is who its certificate says, whatever it says.
    if theirs.name != connection.peer().name.as_str() {
        return;
    }
    let node = NodeId(theirs.number.into());
    let Some(hub) = inner.hub.get() else { return };
    let (line, end) = PeerLine::outside(hub.asker.bell());
    inner.links().insert(node, connection.clone());
    hub.asker.join(NewPeer { node, resources: theirs.resources.demand(), slots: theirs.slots, line });
    let transfers = connection.answer_transfers(&inner.transfers, node, Arc::new(objects::Served(inner.clone())));
    let is_dialed = own.number > theirs.number;
    let serving = async {
        if is_dialed {
            // Who was dialed may ask and open channels as well.
            serve_dialed(inner.clone(), connection.clone()).await;
        }
    };
    tokio::select! {
        () = pump(frames, end) => {}
        _ = connection.closed() => {}
        ((), ()) = async { tokio::join!(transfers, serving) } => {}
    }
    let mut links = inner.links();
    if links.get(&node).is_some_and(|link| link.address() == connection.address()) {
        links.remove(&node);
    }
}

async fn serve_dialed(inner: Arc<Inner>, connection: Connection) {
    let channels = async {
        while let Ok((channel, frames)) = connection.accept().await {
            if channel == COMPONENTS {
                tokio::spawn(programs::give(inner.clone(), frames));
            }
        }
    };
    tokio::join!(answer(inner.clone(), connection.clone()), channels);
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
