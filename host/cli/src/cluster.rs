//! `host serve`, `host cluster`, `host nodes`, `host status`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use sandbar_node::{
    Cluster, ClusterOptions, Limits, ListenOn, Member, MemberState, NewToken, create_cluster, create_node_token,
};

use crate::cluster_args::{ClusterCommand, MemberArgs, NodeSelector, Nodes, Serve};
use crate::control_socket::{NodeStatus, SocketRequest, folder, send_request};
use crate::error::CliError;
use crate::local_node::start_node;
use crate::table::Columns;
use crate::walls::line;
use crate::{control_socket, output, signals};

fn failed(e: impl std::fmt::Display) -> CliError {
    CliError::Failed(e.to_string())
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
    let walls = serve.walls.check().await?;
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
    let requests = tokio::spawn(control_socket::serve(data.clone(), cluster.clone(), walls));
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
    control_socket::remove(&data);
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
    let walls = status.walls.iter().map(|walls| format!("{:<10} {}: {}\n", "walls", walls.process.name(), line(walls)));
    let lines = lines.map(|(name, text)| format!("{name:<10} {text}\n"));
    output::print(&lines.into_iter().chain(walls).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}
