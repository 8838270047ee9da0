//! `host version`: versions of this program, its contract and its engines, and the isolation of its processes.

use std::process::ExitCode;

use sandbar_node::machine::{ConfinementSupport, confinement_support};
use sandbar_node::{CONTRACT, PROTOCOL_VERSION};
use serde::Serialize;

use crate::error::CliError;
use crate::output;

#[derive(Serialize)]
struct Version {
    sandbar: &'static str,
    /// The contract of components, with its version.
    contract: &'static str,
    /// The protocol version of clusters.
    protocol: u8,
    wasmtime: &'static str,
    arrow: &'static str,
    datafusion: &'static str,
    /// The target triple.
    target: &'static str,
    walls: ConfinementSupport,
}

pub(crate) fn print(as_json: bool) -> Result<ExitCode, CliError> {
    let version = Version {
        sandbar: env!("CARGO_PKG_VERSION"),
        contract: CONTRACT,
        protocol: PROTOCOL_VERSION,
        wasmtime: env!("SANDBAR_WASMTIME_VERSION"),
        arrow: env!("SANDBAR_ARROW_VERSION"),
        datafusion: env!("SANDBAR_DATAFUSION_VERSION"),
        target: env!("SANDBAR_TARGET"),
        walls: confinement_support(),
    };
    match as_json {
        true => output::json(&version)?,
        false => output::print(&text(&version))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(version: &Version) -> String {
    let Version { sandbar, contract, protocol, wasmtime, arrow, datafusion, target, walls } = version;
    let seccomp = if walls.seccomp { "seccomp" } else { "no seccomp: workers can't start" };
    let landlock = match walls.landlock_abi {
        Some(abi) => format!("Landlock {abi}"),
        None => "no Landlock".to_owned(),
    };
    format!(
        "sandbar     {sandbar}\n\
         contract    {contract}\n\
         protocol    sandbar/{protocol}\n\
         wasmtime    {wasmtime}\n\
         arrow       {arrow}\n\
         datafusion  {datafusion}\n\
         target      {target}\n\
         walls       {seccomp}; {landlock} (processes that drive GPUs)\n"
    )
}
