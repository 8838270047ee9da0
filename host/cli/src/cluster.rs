//! `host serve`, `host cluster`, `host nodes`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use sandbar_node::{Cluster, ClusterOptions, Limits, Member, NodeResources, create_cluster, create_token, paths};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::cluster_args::{ClusterCommand, Nodes, Place, Serve};
use crate::table::Columns;
use crate::{CliError, Memory, output, signals, start_node};

/// Where a node answers what is asked of it on its machine, in its folder.
const SOCKET: &str = "identity/socket";
/// An answer is no longer than this, in bytes, and comes within this.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15);

fn failed(e: impl std::fmt::Display) -> CliError {
    CliError::Failed(e.to_string())
}

fn folder(data: Option<PathBuf>) -> Result<PathBuf, CliError> {
    match data {
        Some(data) => Ok(data),
        None => Ok(paths::state_folder().map_err(CliError::Failed)?.join("node")),
    }
}

/// Enters a cluster.
pub(crate) async fn enter(place: Place, listen: std::net::SocketAddr) -> Result<(Cluster, PathBuf), CliError> {
    let data = folder(place.data)?;
    let token = place.token.or_else(|| std::env::var("SANDBAR_TOKEN").ok());
    let join = place.join.map(|address| (address, token));
    let options = ClusterOptions { data: data.clone(), listen, join, name: place.name };
    Ok((Cluster::enter(&options).await.map_err(failed)?, data))
}

/// Runs a node until a signal ends it.
pub(crate) async fn serve(serve: Serve) -> Result<ExitCode, CliError> {
    let signal = signals::listen().map_err(failed)?;
    let (cluster, data) = enter(serve.place, serve.listen).await?;
    let memory = Memory { rows: serve.memory, objects: serve.object_memory, disk_reserve: serve.disk_reserve };
    let resources = NodeResources { cpus: serve.cpus, gpus: serve.gpus, custom: serve.resources };
    let node = start_node(serve.workers, memory, resources, Limits::default(), Some(cluster.clone()))?;
    node.begin_programs().map_err(failed)?;
    let own = cluster.own();
    output::talk(&format!(
        "node {} (number {}) of cluster {} listens on {}",
        own.name,
        own.number,
        cluster.name(),
        own.address
    ));
    let answers = tokio::spawn(answer(data.join(SOCKET), cluster.clone()));
    // The sender lives as long as the process.
    let _ = signal.await;
    output::talk("it leaves its cluster");
    answers.abort();
    let _ = std::fs::remove_file(data.join(SOCKET));
    cluster.leave().await;
    Ok(ExitCode::SUCCESS)
}

/// What a node says of itself and its cluster.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    cluster: String,
    node: Member,
    nodes: Vec<Member>,
}

/// Answers whoever connects, on this machine.
async fn answer(socket: PathBuf, cluster: Cluster) {
    // A node before this one left it: its folder is this process's alone.
    let _ = std::fs::remove_file(&socket);
    let Ok(listener) = UnixListener::bind(&socket) else { return };
    while let Ok((mut stream, _)) = listener.accept().await {
        let cluster = cluster.clone();
        tokio::spawn(async move {
            let said = match cluster.members().await {
                Ok(nodes) => Ok(Said { cluster: cluster.name(), node: cluster.own(), nodes }),
                Err(e) => Err(e.to_string()),
            };
            if let Ok(text) = serde_json::to_vec(&said) {
                // Who asked may be gone.
                let _ = tokio::time::timeout(ANSWER_TIME_MAX, stream.write_all(&text)).await;
            }
        });
    }
}

async fn ask(data: &Path) -> Result<Said, CliError> {
    let socket = data.join(SOCKET);
    let none =
        |e| failed(format!("no node runs with the folder {} ({e}); start one with `host serve`", data.display()));
    let stream = UnixStream::connect(&socket).await.map_err(none)?;
    let mut text = Vec::new();
    let mut stream = stream.take(ANSWER_BYTES_MAX);
    let read = tokio::time::timeout(ANSWER_TIME_MAX, stream.read_to_end(&mut text)).await;
    read.map_err(|_| failed("the node does not answer"))?.map_err(failed)?;
    let said: Result<Said, String> = serde_json::from_slice(&text).map_err(failed)?;
    said.map_err(CliError::Failed)
}

pub(crate) async fn cluster(command: ClusterCommand) -> Result<ExitCode, CliError> {
    match command {
        ClusterCommand::Init { data } => {
            let data = folder(data)?;
            let name = create_cluster(&data).map_err(failed)?;
            output::talk(&format!("cluster {name} begins in {}", data.display()));
            output::talk("next: `host serve` here, `host cluster token` for a token, and on other machines");
            output::talk("      `host serve --join THIS-MACHINE:7410 --token TOKEN`");
        }
        ClusterCommand::Token { data, lifetime } => {
            output::line(&create_token(&folder(data)?, lifetime).map_err(failed)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn nodes(nodes: Nodes) -> Result<ExitCode, CliError> {
    let Nodes::List { data, json } = nodes;
    let said = ask(&folder(data)?).await?;
    if json {
        output::json(&said)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Columns::new(&["NODE", "NUMBER", "ADDRESS", "SLOTS", "CPUS", "GPUS", "VERSION"]);
    let amount = |of: u64| format!("{}", of as f64 / 10_000.0);
    for node in said.nodes {
        let here = if node.number == said.node.number { " (this one)" } else { "" };
        table.row([
            format!("{}{here}", node.name),
            node.number.to_string(),
            node.address.to_string(),
            node.slots.to_string(),
            amount(node.resources.cpus),
            amount(node.resources.gpus),
            node.version,
        ]);
    }
    output::print(&table.text())?;
    Ok(ExitCode::SUCCESS)
}
