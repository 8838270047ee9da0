//! The control socket of a node: requests of its own machine, by whoever may open the node's folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandbar_node::machine::Walls;
use sandbar_node::{
    Cluster, ClusterError, Member, Name, Tenant, TenantRole, TenantSettings, TenantToken, UsageQuery, UsageReport,
    machine,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::error::CliError;

/// Socket, in the node's folder, for requests of this machine.
const SOCKET: &str = "identity/socket";
/// Maximum size of a request and of a response, in bytes, and maximum time of one exchange.
const REQUEST_BYTES_MAX: u64 = 4096;
const RESPONSE_BYTES_MAX: u64 = 16 << 20;
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(15);

/// Returns the folder of a node.
pub(crate) fn folder(data: Option<PathBuf>) -> Result<PathBuf, CliError> {
    match data {
        Some(data) => Ok(data),
        None => Ok(machine::state_folder()?.join("node")),
    }
}

/// A new token, as `--json` prints it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PrintedToken {
    pub(crate) tenant: Name,
    #[serde(flatten)]
    pub(crate) token: TenantToken,
    /// The secret.
    pub(crate) text: String,
}

/// A request to a node of this machine: a line of JSON. Only the node's own user can send it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SocketRequest {
    /// Requests the state of the node and its cluster.
    List,
    /// Drains a node.
    Drain(String),
    /// Removes a node.
    Remove(String),
    /// Revokes a token of nodes.
    RevokeNodeToken(String),
    /// Adds a tenant.
    AddTenant { name: Name, settings: TenantSettings },
    /// Replaces the settings of a tenant.
    SetTenant { name: Name, settings: TenantSettings },
    /// Removes a tenant.
    RemoveTenant { name: Name },
    /// Requests all tenants, or one.
    Tenants { only: Option<Name> },
    /// Creates a token of a tenant.
    CreateToken { name: Name, role: TenantRole, use_once: bool, lifetime_s: u64 },
    /// Revokes a token of a tenant.
    RevokeToken { name: Name, token: String },
    /// Requests what was used.
    Usage(UsageQuery),
}

/// The response to a [`SocketRequest`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NodeResponse {
    Status(Box<NodeStatus>),
    Done,
    Tenants(Vec<Tenant>),
    Token(Box<PrintedToken>),
    Usage(UsageReport),
}

/// State of a node and its cluster.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) cluster: String,
    pub(crate) node: Member,
    pub(crate) nodes: Vec<Member>,
    /// Walls around the processes of this machine's node.
    pub(crate) walls: Vec<Walls>,
}

impl NodeResponse {
    fn unexpected<T>(&self) -> Result<T, CliError> {
        Err(CliError::Failed(
            "the node's response does not belong to the request: is it of another version?".to_owned(),
        ))
    }

    pub(crate) fn status(self) -> Result<NodeStatus, CliError> {
        match self {
            NodeResponse::Status(status) => Ok(*status),
            other => other.unexpected(),
        }
    }

    pub(crate) fn done(self) -> Result<(), CliError> {
        match self {
            NodeResponse::Done => Ok(()),
            other => other.unexpected(),
        }
    }

    pub(crate) fn tenants(self) -> Result<Vec<Tenant>, CliError> {
        match self {
            NodeResponse::Tenants(tenants) => Ok(tenants),
            other => other.unexpected(),
        }
    }

    pub(crate) fn usage(self) -> Result<UsageReport, CliError> {
        match self {
            NodeResponse::Usage(report) => Ok(report),
            other => other.unexpected(),
        }
    }

    pub(crate) fn token(self) -> Result<PrintedToken, CliError> {
        match self {
            NodeResponse::Token(token) => Ok(*token),
            other => other.unexpected(),
        }
    }
}

/// Serves requests of this machine.
pub(crate) async fn serve(data: PathBuf, cluster: Cluster, walls: Vec<Walls>) {
    let walls: Arc<[Walls]> = walls.into();
    let socket = data.join(SOCKET);
    // A stale socket of an earlier node; this process has the folder to itself.
    let _ = std::fs::remove_file(&socket);
    let listener = match UnixListener::bind(&socket) {
        Ok(listener) => listener,
        Err(e) => {
            return log::warn!("this node can't serve commands of this machine: {}: {e}", socket.display());
        }
    };
    while let Ok((stream, _)) = listener.accept().await {
        // The client may have disconnected.
        tokio::spawn(tokio::time::timeout(RESPONSE_TIME_MAX, serve_request(stream, cluster.clone(), walls.clone())));
    }
}

async fn serve_request(stream: UnixStream, cluster: Cluster, walls: Arc<[Walls]>) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(REQUEST_BYTES_MAX)).read_line(&mut line).await?;
    let response: Result<NodeResponse, String> =
        handle_request(serde_json::from_str(&line)?, &cluster, &walls).await.map_err(|e| e.to_string());
    write.write_all(&serde_json::to_vec(&response)?).await
}

async fn handle_request(
    request: SocketRequest,
    cluster: &Cluster,
    walls: &[Walls],
) -> Result<NodeResponse, ClusterError> {
    let token_id = |text: String| text.parse().map_err(ClusterError::Refused);
    match request {
        SocketRequest::List => {
            let nodes = cluster.members().await?;
            let walls = walls.to_vec();
            let status = NodeStatus { cluster: cluster.name(), node: cluster.own_member(), nodes, walls };
            return Ok(NodeResponse::Status(Box::new(status)));
        }
        SocketRequest::Tenants { only } => return cluster.tenants(only.as_ref()).await.map(NodeResponse::Tenants),
        SocketRequest::CreateToken { name, role, use_once, lifetime_s } => {
            let lifetime = Duration::from_secs(lifetime_s);
            let (token, text) = cluster.create_tenant_token(&name, role, use_once, lifetime).await?;
            return Ok(NodeResponse::Token(Box::new(PrintedToken { tenant: name, token, text })));
        }
        SocketRequest::Usage(query) => return cluster.usage(&query).await.map(NodeResponse::Usage),
        SocketRequest::Drain(name) => cluster.request_drain(&name).await?,
        SocketRequest::Remove(name) => cluster.remove(&name).await?,
        SocketRequest::RevokeNodeToken(token) => cluster.revoke_node_token(token_id(token)?).await?,
        SocketRequest::AddTenant { name, settings } => cluster.add_tenant(&name, settings).await?,
        SocketRequest::SetTenant { name, settings } => drop(cluster.set_tenant(&name, &|_| settings).await?),
        SocketRequest::RemoveTenant { name } => cluster.remove_tenant(&name).await?,
        SocketRequest::RevokeToken { name, token } => cluster.revoke_tenant_token(&name, token_id(token)?).await?,
    }
    Ok(NodeResponse::Done)
}

pub(crate) async fn send_request(data: Option<PathBuf>, request: &SocketRequest) -> Result<NodeResponse, CliError> {
    let data = folder(data)?;
    let none =
        |e| failed(format!("no node runs with the folder {} ({e}); start one with `host serve`", data.display()));
    let mut stream = UnixStream::connect(data.join(SOCKET)).await.map_err(none)?;
    let exchange = async {
        let line = serde_json::to_string(request)? + "\n";
        stream.write_all(line.as_bytes()).await?;
        let mut text = Vec::new();
        stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut text).await?;
        std::io::Result::Ok(text)
    };
    let text = tokio::time::timeout(RESPONSE_TIME_MAX, exchange).await;
    let text = text.map_err(|_| failed("the node does not respond"))?.map_err(failed)?;
    let response: Result<NodeResponse, String> = serde_json::from_slice(&text).map_err(failed)?;
    response.map_err(CliError::Failed)
}

/// Removes the socket of a node that ends. The next node of its folder creates its own.
pub(crate) fn remove(data: &Path) {
    let _ = std::fs::remove_file(data.join(SOCKET));
}

fn failed(e: impl std::fmt::Display) -> CliError {
    CliError::Failed(e.to_string())
}
