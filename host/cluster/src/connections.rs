//! Connections between the nodes of a cluster, and the dispatch of their channels and requests.
//!
//! The node with the higher number connects. On the channel of tasks, each node first sends its member record in JSON; then
//! the runtimes exchange frames. Requests, components, training and transfers of objects use the same connection.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::NodeId;
use sandbar_runtime::{NewPeer, PeerEnd, PeerLine};
use sandbar_wire::{Channel, CloseCode, Connection, DisconnectReason, ExpectedPeer, Frames, Role};

use crate::components::{self, COMPONENTS};
use crate::encoding;
use crate::error::ClusterError;
use crate::files::{self, FILES};
use crate::member::{Member, SLOTS_MAX};
use crate::objects::SharedObjectSource;
use crate::request_handlers;
use crate::state::ClusterState;
use crate::training::{self, TRAINING};

/// Channel of the runtimes.
pub(crate) const TASKS: Channel = Channel::new(1);
/// Maximum time until a node sends its member record.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);

/// Connects to a member and its runtime, unless a connection exists or is being established.
pub(crate) fn connect_peer(cluster: &Arc<ClusterState>, member: Member) {
    let node = NodeId(member.number.into());
    if !cluster.network.dialer.peers().insert(node) {
        return;
    }
    let cluster = cluster.clone();
    cluster.handle.clone().spawn(async move {
        let connected = async {
            let name = member.name.parse().map_err(|e| ClusterError::InvalidName(member.name.clone(), e))?;
            let connection = cluster.network.dialer.connect(member.address, &ExpectedPeer::Node(name)).await?;
            let frames = connection.open(TASKS).await?;
            Ok::<_, ClusterError>((connection, frames))
        };
        let connected = connected.await.inspect_err(|error| {
            log::warn!("can't connect to node `{}` (number {node}), retrying: {error}", member.name);
        });
        if let Ok((connection, frames)) = connected {
            tokio::select! {
                () = connect_runtimes(cluster.clone(), connection.clone(), frames) => {}
                // The other node sends requests as well.
                () = serve(cluster.clone(), connection) => {}
            }
        }
        cluster.network.dialer.peers().remove(&node);
    });
}

/// Accepts connections of other nodes.
pub(crate) async fn accept_nodes(cluster: Arc<ClusterState>) {
    while let Some(connection) = cluster.network.endpoint.accept(Role::Node).await {
        tokio::spawn(serve(cluster.clone(), connection));
    }
}

/// Serves the requests and channels of a node, until the connection ends.
async fn serve(cluster: Arc<ClusterState>, connection: Connection) {
    let requests = async {
        while let Ok(request) = connection.next_request().await {
            tokio::spawn(request_handlers::handle(cluster.clone(), peer_id(&cluster, &connection), request));
        }
    };
    let channels = async {
        while let Ok((channel, frames)) = connection.accept().await {
            match channel {
                TASKS => drop(tokio::spawn(connect_runtimes(cluster.clone(), connection.clone(), frames))),
                COMPONENTS => drop(tokio::spawn(components::serve(cluster.clone(), frames))),
                FILES => drop(tokio::spawn(files::serve(cluster.clone(), frames))),
                TRAINING => {
                    drop(tokio::spawn(training::serve(cluster.clone(), peer_id(&cluster, &connection), frames)));
                }
                // A later version has more channels. Dropping the frames rejects the channel.
                _ => drop(frames),
            }
        }
    };
    tokio::join!(requests, channels);
}

/// Returns the number of the node at the other end, if the runtimes are connected.
fn peer_id(cluster: &ClusterState, connection: &Connection) -> Option<NodeId> {
    let connections = cluster.network.connections();
    connections.iter().find(|(_, other)| other.peer().name == connection.peer().name).map(|(node, _)| *node)
}

/// Connects two runtimes until the connection ends.
async fn connect_runtimes(cluster: Arc<ClusterState>, connection: Connection, mut frames: Frames) {
    let Some(runtime) = cluster.runtime.get() else { return };
    let hello = match encoding::json("the record of this node", &runtime.member) {
        Ok(hello) => hello,
        Err(error) => return log::error!("the runtimes can't be connected: {error}"),
    };
    if frames.send(&hello).await.is_err() {
        return;
    }
    let Ok(Ok(Some(hello))) = tokio::time::timeout(HELLO_TIME_MAX, frames.recv()).await else { return };
    let member = match serde_json::from_slice::<Member>(&hello) {
        Ok(member) => member,
        Err(e) => {
            log::warn!("{} sent an invalid member record: {e}", connection.peer());
            return connection.close(CloseCode::Malformed, "the member record is invalid");
        }
    };
    // The certificate proves the name.
    if member.name != connection.peer().name.as_str() {
        return connection.close(CloseCode::Malformed, "the member record has another name than the certificate");
    }
    if member.number == cluster.own.number {
        return connection.close(CloseCode::Malformed, "the member record has the number of the receiving node");
    }
    let node = NodeId(member.number.into());
    let peer = format!("node `{}` (number {node}, {})", member.name, connection.address());
    log::info!("connected to {peer}");
    let (line, end) = PeerLine::with_connection(runtime.handle.doorbell());
    let previous = cluster.network.connections().insert(node, connection.clone());
    let (resources, slots) = (member.resources.resources(), member.slots.min(SLOTS_MAX));
    runtime.handle.connect(NewPeer { node, resources, slots, line });
    drop(previous);
    let source = Arc::new(SharedObjectSource(cluster.clone()));
    let transfers = connection.serve_transfers(&cluster.objects.engine, node, source);
    tokio::select! {
        () = forward_frames(frames, end) => {}
        () = transfers => {}
    }
    match connection.disconnect_reason() {
        Some(DisconnectReason::Closed { code: CloseCode::Done | CloseCode::Stopping, reason }) => {
            log::info!("{peer} closed the connection: {reason}");
        }
        Some(DisconnectReason::Local) => log::info!("this node closed the connection to {peer}"),
        Some(reason) => log::warn!("lost {peer}: {reason}; the tasks that it ran for this node run again elsewhere"),
        None => log::info!("{peer} and this node have no more tasks for each other"),
    }
    // Fetches that still run must see that the connection has ended, and not that the objects are incomplete.
    connection.close(CloseCode::Done, "the tasks have ended");
    // Another connection may have replaced this one.
    let mut connections = cluster.network.connections();
    if connections.get(&node).is_some_and(|other| other.is_same(&connection)) {
        connections.remove(&node);
        cluster.objects.shared.remove_node(node);
    }
}

/// Forwards frames in both directions, until one end closes.
async fn forward_frames(frames: Frames, end: PeerEnd) {
    let (sender, mut receiver) = frames.split();
    let outgoing = async {
        while let Some(frame) = end.next_outgoing().await {
            if sender.send(&frame).await.is_err() {
                return;
            }
        }
    };
    let incoming = async {
        while let Ok(Some(frame)) = receiver.recv().await {
            end.deliver(frame.to_vec()).await;
        }
    };
    tokio::select! {
        () = outgoing => {}
        () = incoming => {}
    }
}
