//! `host serve`, `host cluster`, `host nodes`, `host status`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use sandbar_node::{
    Cluster, ClusterError, ClusterOptions, Limits, ListenOn, Member, MemberState, Name, NewToken, Tenant, TenantRole,
    TenantSettings, create_cluster, create_node_token, machine,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::cluster_args::{ClusterCommand, MemberArgs, NodeSelector, Nodes, Serve};
use crate::error::CliError;
use crate::local_node::start_node;
use crate::table::Columns;
use crate::tenants::PrintedToken;
use crate::{output, signals};

/// Socket, in the node's folder, for requests of this machine.
const SOCKET: &str = "identity/socket";
/// Maximum size of a request and of a response, in bytes, and maximum time of one exchange.
const REQUEST_BYTES_MAX: u64 = 4096;
const RESPONSE_BYTES_MAX: u64 = 16 << 20;
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(15);

fn failed(e: impl std::fmt::Display) -> CliError {
    CliError::Failed(e.to_string())
}

/// Returns the folder of a node.
pub(crate) fn folder(data: Option<PathBuf>) -> Result<PathBuf, CliError> {
    match data {
        Some(data) => Ok(data),
        None => Ok(machine::state_folder()?.join("node")),
    }
}

/// Joins a cluster.
pub(crate) async fn enter(member: MemberArgs, listen: ListenOn) -> Result<(Cluster, PathBuf), CliError> {
    let data = folder(member.data)?;
    let token = member.token.or_else(|| std::env::var("SANDBAR_TOKEN").ok());
    let join = member.join.map(|address| (address, token));
    let join_time_max = member.join_timeout;
    let options =
        ClusterOptions { data: data.clone(), listen, join, join_time_max, name: member.name, meta: member.meta };
    Ok((Cluster::enter(&options).await.map_err(failed)?, data))
}

/// Runs a node until it is stopped.
pub(crate) async fn serve(mut serve: Serve) -> Result<ExitCode, CliError> {
    serve.shares.count_gpus().await?;
    let signal = signals::handle(signals::Interruption::default()).map_err(failed)?;
    log::info!("host {} starts, as process {}", env!("CARGO_PKG_VERSION"), std::process::id());
    let listen_on = serve.listen_on();
    let (cluster, data) = enter(serve.member, listen_on).await?;
    let node = start_node(&serve.shares, Limits::default(), Some(cluster.clone()))?;
    node.programs().start().map_err(failed)?;
    let own = cluster.own_member();
    let listen_on = cluster.local_address().map_err(failed)?;
    log::info!(
        "node {} (number {}) of cluster {} listens on {listen_on}; others reach it at {}",
        own.name,
        own.number,
        cluster.name(),
        own.address
    );
    let requests = tokio::spawn(serve_requests(data.join(SOCKET), cluster.clone()));
    let why = tokio::select! {
        // The sender lives as long as the process.
        signal = signal => match signal {
            Ok(signals::INTERRUPT) => StopReason::Now,
            _ => StopReason::Drained("SIGTERM or a closed terminal"),
        },
        () = cluster.drain_requested() => StopReason::Drained("`host nodes drain`"),
        why = cluster.fenced() => StopReason::Fenced(why),
    };
    let code = stop(&cluster, why, serve.grace).await;
    requests.abort();
    // The next node of this folder creates its own socket.
    let _ = std::fs::remove_file(data.join(SOCKET));
    cluster.leave().await;
    Ok(code)
}

/// Why a node stops.
enum StopReason {
    Now,
    Drained(&'static str),
    Fenced(String),
}

/// Drains a node.
async fn stop(cluster: &Cluster, why: StopReason, grace: Duration) -> ExitCode {
    let code = match why {
        StopReason::Now => ExitCode::SUCCESS,
        StopReason::Drained(by) => {
            log::info!(
                "draining ({by}): this node takes no new tasks, and ends once other nodes have its objects, after {grace:?} at \
                 the latest"
            );
            if cluster.drain(grace).await {
                log::info!("drained: no other node needs this one");
                ExitCode::SUCCESS
            } else {
                log::warn!("the drain exceeded --grace: tasks of other nodes that run here restart elsewhere");
                ExitCode::FAILURE
            }
        }
        StopReason::Fenced(why) => {
            log::error!("this node ends: {why}; other nodes have taken over its jobs");
            ExitCode::FAILURE
        }
    };
    log::info!("this node leaves its cluster");
    code
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
}

/// The response to a [`SocketRequest`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NodeResponse {
    Status(Box<NodeStatus>),
    Done,
    Tenants(Vec<Tenant>),
    Token(Box<PrintedToken>),
}

/// State of a node and its cluster.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    cluster: String,
    node: Member,
    nodes: Vec<Member>,
}

impl NodeResponse {
    fn unexpected<T>(&self) -> Result<T, CliError> {
        Err(CliError::Failed(
            "the node's response does not belong to the request: is it of another version?".to_owned(),
        ))
    }

    fn status(self) -> Result<NodeStatus, CliError> {
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

    pub(crate) fn token(self) -> Result<PrintedToken, CliError> {
        match self {
            NodeResponse::Token(token) => Ok(*token),
            other => other.unexpected(),
        }
    }
}

/// Serves requests of this machine.
async fn serve_requests(socket: PathBuf, cluster: Cluster) {
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
        tokio::spawn(tokio::time::timeout(RESPONSE_TIME_MAX, serve_request(stream, cluster.clone())));
    }
}

async fn serve_request(stream: UnixStream, cluster: Cluster) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(REQUEST_BYTES_MAX)).read_line(&mut line).await?;
    let response: Result<NodeResponse, String> =
        handle_request(serde_json::from_str(&line)?, &cluster).await.map_err(|e| e.to_string());
    write.write_all(&serde_json::to_vec(&response)?).await
}

async fn handle_request(request: SocketRequest, cluster: &Cluster) -> Result<NodeResponse, ClusterError> {
    let token_id = |text: String| text.parse().map_err(ClusterError::Refused);
    match request {
        SocketRequest::List => {
            let nodes = cluster.members().await?;
            let status = NodeStatus { cluster: cluster.name(), node: cluster.own_member(), nodes };
            return Ok(NodeResponse::Status(Box::new(status)));
        }
        SocketRequest::Tenants { only } => return cluster.tenants(only.as_ref()).await.map(NodeResponse::Tenants),
        SocketRequest::CreateToken { name, role, use_once, lifetime_s } => {
            let lifetime = Duration::from_secs(lifetime_s);
            let (token, text) = cluster.create_tenant_token(&name, role, use_once, lifetime).await?;
            return Ok(NodeResponse::Token(Box::new(PrintedToken { tenant: name, token, text })));
        }
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

pub(crate) async fn cluster(command: ClusterCommand) -> Result<ExitCode, CliError> {
    match command {
        ClusterCommand::Init { data } => {
            let data = folder(data)?;
            let name = create_cluster(&data).map_err(failed)?;
            output::message(&format!("created cluster {name} in {}", data.display()));
            output::message("next: `host serve` here, `host cluster token` for a token, and on other machines");
            output::message("      `host serve --join THIS-MACHINE:7410 --token TOKEN`");
        }
        ClusterCommand::Token { data, once, lifetime } => {
            let NewToken { id, text } = create_node_token(&folder(data)?, once, lifetime).map_err(failed)?;
            output::message(&format!("token {id} of nodes; `host cluster revoke {id}` revokes it"));
            output::line(&text)?;
        }
        ClusterCommand::Revoke { token, data } => {
            send_request(data, &SocketRequest::RevokeNodeToken(token.to_string())).await?.done()?;
            output::message(&format!(
                "revoked token {token}: no node can join with it; `host nodes remove` removes nodes that have"
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn nodes(nodes: Nodes) -> Result<ExitCode, CliError> {
    match nodes {
        Nodes::List(NodeSelector { data, json }) => {
            let status = send_request(data, &SocketRequest::List).await?.status()?;
            if json { output::json(&status)? } else { output::print(&table(&status))? }
        }
        Nodes::Drain { name, data } => {
            send_request(data, &SocketRequest::Drain(name.clone())).await?.done()?;
            output::message(&format!(
                "node {name} is draining: it takes no new tasks, and ends once other nodes have its objects"
            ));
        }
        Nodes::Remove { name, data } => {
            send_request(data, &SocketRequest::Remove(name.clone())).await?.done()?;
            output::message(&format!("removed node {name} from the cluster and revoked its certificate"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(status: &NodeStatus) -> String {
    let mut table = Columns::new(&["NODE", "NUMBER", "STATE", "ADDRESS", "SLOTS", "CPUS", "GPUS", "VERSION"]);
    for node in &status.nodes {
        let here = if node.number == status.node.number { " (this one)" } else { "" };
        table.row([
            format!("{}{here}", node.name),
            node.number.to_string(),
            node.state.to_string(),
            node.address.to_string(),
            node.slots.to_string(),
            amount(node.resources.cpus),
            amount(node.resources.gpus),
            node.version.clone(),
        ]);
    }
    table.text()
}

/// Formats an amount in units of 1/10,000.
fn amount(units: u64) -> String {
    format!("{}", units as f64 / 10_000.0)
}

pub(crate) async fn status(selector: NodeSelector) -> Result<ExitCode, CliError> {
    let status = send_request(selector.data, &SocketRequest::List).await?.status()?;
    if selector.json {
        output::json(&status)?;
        return Ok(ExitCode::SUCCESS);
    }
    let sum = |field: fn(&Member) -> u64| status.nodes.iter().map(field).fold(0, u64::saturating_add);
    let draining = status.nodes.iter().filter(|node| node.state == MemberState::Draining).count();
    let lines = [
        ("node", format!("{} (number {})", status.node.name, status.node.number)),
        ("state", status.node.state.to_string()),
        ("address", status.node.address.to_string()),
        ("version", status.node.version.clone()),
        ("cluster", status.cluster.clone()),
        ("nodes", format!("{} ({draining} draining)", status.nodes.len())),
        ("cpus", amount(sum(|node| node.resources.cpus))),
        ("gpus", amount(sum(|node| node.resources.gpus))),
        ("memory", format!("{} MiB", sum(|node| node.resources.memory) >> 20)),
    ];
    output::print(&lines.map(|(name, text)| format!("{name:<10} {text}\n")).concat())?;
    Ok(ExitCode::SUCCESS)
}
