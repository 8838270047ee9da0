//! `host actors`: actors of a tenant that outlive the jobs that created them.

use std::process::ExitCode;

use sandbar_node::ActorRow;
use serde::Serialize;

use crate::cluster_args::Remote;
use crate::error::CliError;
use crate::output;
use crate::remote_client::connect;
use crate::table::Columns;
use crate::view_args::Actors;

pub(crate) async fn run(actors: Actors) -> Result<ExitCode, CliError> {
    match actors {
        Actors::List { json, remote } => list(json, remote).await?,
        Actors::Stop { actors, remote } => stop(actors, remote).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn no_node() -> CliError {
    CliError::Usage("actors outlive their jobs in clusters only: name a node of the cluster with --node".to_owned())
}

async fn list(as_json: bool, remote: Remote) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct ActorList {
        actors: Vec<ActorRow>,
    }
    let mut client = connect(remote).await?.ok_or_else(no_node)?;
    let actors = client.actors().await.map_err(CliError::failed)?;
    client.close().await;
    if as_json {
        return output::json(&ActorList { actors });
    }
    let mut table = Columns::new(&["ACTOR", "NAME", "STATE", "CALLS", "RESTARTS"]);
    for ActorRow { id, name, state, calls, restarts, .. } in actors {
        table.row([id, name, state, calls.to_string(), restarts.to_string()]);
    }
    output::print(&table.text())
}

async fn stop(actors: Vec<String>, remote: Remote) -> Result<(), CliError> {
    let mut client = connect(remote).await?.ok_or_else(no_node)?;
    for actor in actors {
        client.stop_actor(&actor).await.map_err(CliError::failed)?;
        output::message(&format!("stopped actor {actor}"));
    }
    client.close().await;
    Ok(())
}
