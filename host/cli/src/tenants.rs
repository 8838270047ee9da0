//! `host tenant`: tenants and their tokens, through a node of this machine or from outside.

use std::process::ExitCode;

use sandbar_node::{ClusterClient, Name, Tenant, TenantSettings, TenantToken};
use serde::Serialize;

use crate::cluster_args::AccessArgs;
use crate::control_socket::{PrintedToken, SocketRequest, send_request};
use crate::error::CliError;
use crate::output;
use crate::remote_client;
use crate::table::Columns;
use crate::tenant_args::TenantCommand;

#[derive(Serialize)]
struct TenantList {
    tenants: Vec<Tenant>,
}

pub(crate) async fn run(command: TenantCommand) -> Result<ExitCode, CliError> {
    match command {
        TenantCommand::Add { name, settings, data } => {
            let settings = settings.apply(TenantSettings::default());
            send_request(data, &SocketRequest::AddTenant { name: name.clone(), settings }).await?.done()?;
            output::message(&format!(
                "added tenant {name}; next: `host tenant token {name}` prints a token for its users"
            ));
        }
        TenantCommand::Set { name, settings, data } => {
            let found = send_request(data.clone(), &SocketRequest::Tenants { only: Some(name.clone()) }).await?;
            let before = found.tenants()?.pop().map(|tenant| tenant.settings).unwrap_or_default();
            let settings = settings.apply(before);
            send_request(data, &SocketRequest::SetTenant { name: name.clone(), settings }).await?.done()?;
            output::message(&format!("changed tenant {name}"));
        }
        TenantCommand::Remove { name, data } => {
            send_request(data, &SocketRequest::RemoveTenant { name: name.clone() }).await?.done()?;
            output::message(&format!("removed tenant {name}: its certificates and tokens are revoked, its jobs end"));
        }
        TenantCommand::List { name, json, access } => list(name, json, access).await?,
        TenantCommand::Token { name, role, lifetime, once, json, access } => {
            let printed = match client(&name, &access).await? {
                Some(mut client) => {
                    let (token, text) = client.create_token(role, once, lifetime).await.map_err(CliError::failed)?;
                    client.close().await;
                    PrintedToken { tenant: name, token, text }
                }
                None => {
                    let (lifetime_s, use_once) = (lifetime.as_secs(), once);
                    let request = SocketRequest::CreateToken { name, role, use_once, lifetime_s };
                    send_request(access.data, &request).await?.token()?
                }
            };
            if json {
                output::json(&printed)?;
            } else {
                let PrintedToken { tenant, token, text } = &printed;
                let TenantToken { id, role, expires, .. } = token;
                output::message(&format!(
                    "token {id} of tenant {tenant} ({role}), valid until {expires}; `host tenant revoke {tenant} {id}` \
                     revokes it"
                ));
                output::line(text)?;
            }
        }
        TenantCommand::Revoke { name, id: token, access } => {
            match client(&name, &access).await? {
                Some(mut client) => {
                    client.revoke_token(token).await.map_err(CliError::failed)?;
                    client.close().await;
                }
                None => {
                    let request = SocketRequest::RevokeToken { name: name.clone(), token: token.to_string() };
                    send_request(access.data, &request).await?.done()?;
                }
            }
            output::message(&format!("revoked token {token} of tenant {name}, and the certificates that came from it"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Connects as an admin of the tenant, if `--node` is set.
async fn client(name: &Name, access: &AccessArgs) -> Result<Option<ClusterClient>, CliError> {
    let AccessArgs { node, timeouts, token, data } = access.clone();
    let Some(node) = node else { return Ok(None) };
    let client = remote_client::client(&node, token, data, timeouts).await?;
    match client.tenant_name() {
        own if own == name => Ok(Some(client)),
        own => Err(CliError::Failed(format!("the certificate is of tenant {own}, not of {name}"))),
    }
}

async fn list(name: Option<Name>, json: bool, access: AccessArgs) -> Result<(), CliError> {
    let tenants = match &access.node {
        Some(_) => {
            let Some(name) = &name else {
                return Err(CliError::Usage(
                    "with --node, name a tenant: others are visible on a node only".to_owned(),
                ));
            };
            match client(name, &access).await? {
                Some(mut client) => {
                    let tenant = client.tenant().await.map_err(CliError::failed)?;
                    client.close().await;
                    vec![tenant]
                }
                None => Vec::new(),
            }
        }
        None => send_request(access.data, &SocketRequest::Tenants { only: name.clone() }).await?.tenants()?,
    };
    if json {
        return output::json(&TenantList { tenants });
    }
    match (name, &tenants[..]) {
        (Some(_), [tenant]) => output::print(&tokens(tenant)),
        _ => output::print(&table(&tenants)),
    }
}

fn table(tenants: &[Tenant]) -> String {
    let mut table = Columns::new(&["TENANT", "WEIGHT", "RESERVED CPUS", "JOBS MAX", "TOKENS", "CREATED"]);
    for Tenant { name, created, settings, tokens } in tenants {
        table.row([
            name.to_string(),
            settings.weight.to_string(),
            settings.reserved_cpus.to_string(),
            settings.jobs_max.to_string(),
            tokens.len().to_string(),
            created.to_string(),
        ]);
    }
    table.text()
}

fn tokens(tenant: &Tenant) -> String {
    let mut table = Columns::new(&["TOKEN", "ROLE", "ONCE", "VALID UNTIL", "CERTIFICATES", "THE LAST ONE UNTIL"]);
    for TenantToken { id, role, use_once, expires, last_use, .. } in &tenant.tokens {
        table.row([
            id.to_string(),
            role.to_string(),
            if *use_once { "yes" } else { "no" }.to_owned(),
            expires.to_string(),
            last_use.as_ref().map_or(0, |last| last.certificates).to_string(),
            crate::table::cell(last_use.as_ref().map(|last| last.expires)),
        ]);
    }
    table.text()
}
