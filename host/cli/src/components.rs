//! `host component`: the registry of a tenant's components, and how jobs name what is in it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sandbar_node::{
    ClusterClient, ComponentKey, ComponentReference, ComponentSignature, ComponentVersion, FoundComponent,
    IdentityError, Job, NewComponent, PublicKey, REGISTERED_PREFIX, RegisteredComponent, SigningKey, UploadContents,
    build_crate, cached_component, machine, signed_message, utc_text,
};
use serde::Serialize;

use crate::args::Submit;
use crate::cluster_args::Remote;
use crate::component_args::{ComponentCommand, KeyCommand};
use crate::error::CliError;
use crate::output;
use crate::remote_client::{client, connect};
use crate::table::{Columns, size};

pub(crate) async fn run(command: ComponentCommand) -> Result<ExitCode, CliError> {
    match command {
        ComponentCommand::Push { path, version, key, json, remote } => push(&path, version, key, json, remote).await?,
        ComponentCommand::List { json, remote } => list(json, remote).await?,
        ComponentCommand::Show { component, json, remote } => show(component, json, remote).await?,
        ComponentCommand::Pull { component, output, remote } => pull(component, &output, remote).await?,
        ComponentCommand::Yank { version, undo, remote } => yank(&version, undo, remote).await?,
        ComponentCommand::Keys(KeyCommand::List { json, remote }) => list_keys(json, remote).await?,
        ComponentCommand::Keys(KeyCommand::Add { key, remote }) => {
            let key = public_key(&key)?;
            let mut client = connected(remote).await?;
            client.add_component_key(key).await.map_err(CliError::failed)?;
            client.close().await;
            output::message(&format!("added key {key}: jobs now use only components that are signed"));
        }
        ComponentCommand::Keys(KeyCommand::Remove { key, remote }) => {
            let key = public_key(&key)?;
            let mut client = connected(remote).await?;
            client.remove_component_key(key).await.map_err(CliError::failed)?;
            client.close().await;
            output::message(&format!("removed key {key}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn connected(remote: Remote) -> Result<ClusterClient, CliError> {
    let no_node = || CliError::Usage("clusters have registries: name a node of the cluster with --node".to_owned());
    connect(remote).await?.ok_or_else(no_node)
}

async fn push(
    path: &Path,
    version: ComponentVersion,
    key: Option<PathBuf>,
    as_json: bool,
    remote: Remote,
) -> Result<(), CliError> {
    let key = key.map(|key| SigningKey::read(&key)).transpose().map_err(CliError::failed)?;
    let file = component_file(path, as_json).await?;
    let mut client = connected(remote).await?;
    let hashed = file.clone();
    let hashed = tokio::task::spawn_blocking(move || UploadContents::default().add_component(&hashed)).await;
    let (component, bytes) = hashed.map_err(CliError::failed)?.map_err(CliError::failed)?;
    let sign = |key: &SigningKey| {
        let message = signed_message(client.tenant_name(), &version, component);
        Ok(ComponentSignature { key: key.public()?, signature: key.sign(&message)? })
    };
    let signature = key.as_ref().map(sign).transpose().map_err(|error: IdentityError| CliError::failed(error))?;
    let new = NewComponent { version, component, bytes, signature };
    let registered = client.push_component(new, &file).await.map_err(CliError::failed)?;
    client.close().await;
    if as_json {
        return output::json(&registered);
    }
    let NewComponent { version, component, bytes, signature } = &registered.pushed;
    let signed = signature.map_or_else(String::new, |signature| format!(", signed with key {}", short(&signature.key)));
    output::line(&format!("{version}: component {} ({}{signed})", component.short(), size(*bytes)))
}

fn short(key: &PublicKey) -> String {
    key.to_string().chars().take(12).collect()
}

async fn list(as_json: bool, remote: Remote) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct ComponentList {
        components: Vec<RegisteredComponent>,
    }
    let mut client = connected(remote).await?;
    let components = client.components().await.map_err(CliError::failed)?;
    client.close().await;
    if as_json {
        return output::json(&ComponentList { components });
    }
    let mut table = Columns::new(&["NAME", "VERSION", "COMPONENT", "SIZE", "PUSHED", "KEY", "STATE", "FUNCTIONS"]);
    for component in &components {
        let NewComponent { version, component: id, bytes, signature } = &component.pushed;
        let functions: Vec<_> = component.functions.iter().map(|function| function.name.as_str()).collect();
        table.row([
            version.name.to_string(),
            version.version.to_string(),
            id.short(),
            size(*bytes),
            utc_text(component.pushed_ms),
            signature.map_or_else(|| "-".to_owned(), |signature| short(&signature.key)),
            state(component).to_owned(),
            functions.join(", "),
        ]);
    }
    output::print(&table.text())
}

fn state(component: &RegisteredComponent) -> &'static str {
    if component.yanked { "yanked" } else { "ready" }
}

/// Returns the version that a reference means. A yanked one can be shown and pulled.
async fn find(client: &mut ClusterClient, reference: ComponentReference) -> Result<RegisteredComponent, CliError> {
    let all = client.components().await.map_err(CliError::failed)?;
    reference.find(&all, true).cloned().map_err(|error| CliError::Failed(format!("{error} [{}]", error.code())))
}

async fn show(reference: ComponentReference, as_json: bool, remote: Remote) -> Result<(), CliError> {
    let mut client = connected(remote).await?;
    let found = find(&mut client, reference).await?;
    client.close().await;
    if as_json {
        return output::json(&found);
    }
    let NewComponent { version, component, bytes, signature } = &found.pushed;
    let key =
        signature.map_or_else(|| "not signed".to_owned(), |signature| format!("signed with key {}", signature.key));
    output::line(&format!("{version}: {}, {}", state(&found), size(*bytes)))?;
    output::line(&format!("component {component}"))?;
    output::line(&format!("pushed {}, {key}", utc_text(found.pushed_ms)))?;
    let mut table = Columns::new(&["FUNCTION", "KIND"]);
    for function in &found.functions {
        table.row([function.name.clone(), function.kind.as_str().to_owned()]);
    }
    output::print(&table.text())
}

async fn pull(reference: ComponentReference, path: &Path, remote: Remote) -> Result<(), CliError> {
    let mut client = connected(remote).await?;
    let found = find(&mut client, reference).await?.pushed;
    client.pull_component(found.component, path).await.map_err(CliError::failed)?;
    client.close().await;
    output::message(&format!("{}: {} ({})", found.version, path.display(), size(found.bytes)));
    Ok(())
}

async fn yank(version: &ComponentVersion, undo: bool, remote: Remote) -> Result<(), CliError> {
    let mut client = connected(remote).await?;
    client.yank_component(version, !undo).await.map_err(CliError::failed)?;
    client.close().await;
    output::message(&format!("{version} is {}", if undo { "ready again" } else { "yanked" }));
    Ok(())
}

async fn list_keys(as_json: bool, remote: Remote) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct KeyList {
        keys: Vec<ComponentKey>,
    }
    let mut client = connected(remote).await?;
    let keys = client.component_keys().await.map_err(CliError::failed)?;
    client.close().await;
    if as_json {
        return output::json(&KeyList { keys });
    }
    for ComponentKey { key, added_ms } in keys {
        output::line(&format!("{key}  added {}", utc_text(added_ms)))?;
    }
    Ok(())
}

/// Parses a public key, or reads it from the file of its private key.
fn public_key(text: &str) -> Result<PublicKey, CliError> {
    match text.parse() {
        Ok(key) => Ok(key),
        Err(_) if Path::new(text).is_file() => {
            let key = SigningKey::read(Path::new(text)).map_err(CliError::failed)?;
            key.public().map_err(CliError::failed)
        }
        Err(reason) => Err(CliError::Usage(format!("{reason}, nor the file of a key"))),
    }
}

/// Returns the registered component that the path of a program names, if it names one.
pub(crate) async fn of_program(path: &str, submit: &Submit) -> Result<Option<RegisteredComponent>, CliError> {
    let Some(reference) = path.strip_prefix(REGISTERED_PREFIX) else { return Ok(None) };
    let mut client = client_of(submit).await?;
    let found = used(&client.components().await.map_err(CliError::failed)?, path, reference)?;
    client.close().await;
    Ok(Some(found))
}

/// Finds the registered components that a job names. Each is kept on this machine, for predictions.
pub(crate) async fn of_job(job: &Job, submit: &Submit, cache: &Path) -> Result<Vec<FoundComponent>, CliError> {
    let mut names: Vec<&str> = job.components().filter(|path| path.starts_with(REGISTERED_PREFIX)).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut client = client_of(submit).await?;
    let all = client.components().await.map_err(CliError::failed)?;
    let mut found = Vec::new();
    for name in names {
        let reference = name.strip_prefix(REGISTERED_PREFIX).unwrap_or(name);
        let NewComponent { version, component, .. } = used(&all, name, reference)?.pushed;
        let file = cached_component(cache, component);
        // A damaged copy is replaced.
        if !UploadContents::default().add_component(&file).is_ok_and(|(kept, _)| kept == component) {
            client.pull_component(component, &file).await.map_err(CliError::failed)?;
        }
        let path = PathBuf::from(format!("{REGISTERED_PREFIX}{version}"));
        found.push(FoundComponent { name: name.to_owned(), found: path, file });
    }
    client.close().await;
    Ok(found)
}

/// Finds the component of a new job.
fn used(all: &[RegisteredComponent], path: &str, reference: &str) -> Result<RegisteredComponent, CliError> {
    let reference = ComponentReference::parse(reference);
    let reference = reference.map_err(|reason| CliError::Usage(format!("`{path}`: {reason}")))?;
    let found = reference.find(all, false);
    found.cloned().map_err(|error| CliError::Failed(format!("{error} [{}]", error.code())))
}

async fn client_of(submit: &Submit) -> Result<ClusterClient, CliError> {
    let Some(node) = &submit.node else { return Err(CliError::Usage("--node is missing".to_owned())) };
    client(node, submit.member.token.clone(), submit.member.data.clone(), submit.timeouts.clone()).await
}

/// Returns the path of a component, which a crate is built to.
pub(crate) async fn component_file(path: &Path, is_quiet: bool) -> Result<PathBuf, CliError> {
    let report = |text: String| output::message(&text);
    let cache = machine::cache_folder()?;
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    build_crate(path, &cache, (!is_quiet).then_some(&report)).await.map_err(CliError::failed)
}
