//! A client of the tenant API that sends any messages, and the answers of the node.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use sandbar_wire::{
    Channel, ChannelError, Clock as _, ConnectError, Connection, Endpoint, ExpectedPeer, Frames, Identity, StopReason,
    SystemClock, WireLimits,
};
use serde_json::{Value, json};

use crate::cluster::Nodes;
use crate::takeover::Tenant;

/// Channel of the tenant API.
const TENANT_API: Channel = Channel::new(9);
const TIME_MAX: Duration = Duration::from_secs(60);

/// A connection of a tenant to a node.
pub struct Client {
    pub connection: Connection,
    _endpoint: Endpoint,
}

impl Client {
    /// Connects with the certificate of a tenant, which connects by a command first.
    pub async fn connect(nodes: &Nodes, tenant: &Tenant<'_>, node: &str) -> Client {
        let address = nodes.address(node);
        tenant.host(&address, &["jobs", "list"]).expect_code(0);
        let identity = nodes.lab.path(tenant.folder()).join("identity");
        Client::connect_with(&identity, address.parse().unwrap()).await.unwrap()
    }

    /// Connects to a node with the certificate in a folder.
    pub async fn connect_with(identity: &Path, address: SocketAddr) -> Result<Client, ConnectError> {
        let identity = Identity::load(identity, SystemClock.now()).expect("the tenant has a certificate");
        let endpoint = Endpoint::bind(([127, 0, 0, 1], 0).into(), &identity, WireLimits::default()).unwrap();
        let connection = endpoint.connect(address, &ExpectedPeer::AnyNode).await?;
        Ok(Client { connection, _endpoint: endpoint })
    }

    /// Sends the bytes of a request.
    pub async fn send(&self, request: &[u8]) -> Frames {
        let frames = self.connection.open(TENANT_API).await.unwrap();
        frames.send(request).await.unwrap();
        frames
    }

    /// Sends a request, and returns the first response that is not a sign of life; the text `busy` if the node refuses the
    /// channel, of which a connection has few at once.
    pub async fn ask_if_free(&self, request: &Value) -> Value {
        let Ok(mut frames) = self.connection.open(TENANT_API).await else { return json!("busy") };
        match frames.send(request.to_string().as_bytes()).await {
            Ok(()) => next(&mut frames).await,
            Err(ChannelError::Stopped(StopReason::Busy)) => json!("busy"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a request, and returns the first response that is not a sign of life.
    pub async fn ask(&self, request: &Value) -> Value {
        let mut frames = self.send(request.to_string().as_bytes()).await;
        next(&mut frames).await
    }
}

/// Returns the next response that is not a sign of life; null if the channel is closed.
pub async fn next(frames: &mut Frames) -> Value {
    loop {
        let frame = tokio::time::timeout(TIME_MAX, frames.recv()).await.expect("a response");
        let Ok(Some(frame)) = frame else { return Value::Null };
        let response: Value = serde_json::from_slice(&frame).unwrap();
        if response != json!("working") {
            return response;
        }
    }
}

/// Returns a request to submit a component with this hash and length.
pub fn submission(component: &str, bytes: usize, task: &str) -> Value {
    static KEYS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let key = format!("k{}", KEYS.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    json!({ "submit": {
        "key": key, "program": "p", "component": component, "component_bytes": bytes, "task": task, "arguments": [],
    }})
}
