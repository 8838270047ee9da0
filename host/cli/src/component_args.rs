//! Command-line arguments of `host component`.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};
use sandbar_node::{ComponentReference, ComponentVersion};

use crate::cluster_args::Remote;

#[derive(Debug, Subcommand)]
pub(crate) enum ComponentCommand {
    /// Registers a component under a name and a version, which then never changes. Jobs name it as component:NAME@VERSION.
    #[command(after_help = "Examples:
  host component push fares fares@1.0.0 --node first:7410            (builds the crate first)
  host component push fares.wasm fares@1.1.0 --node first:7410
  host component push fares.wasm fares@1.1.0 --node first:7410 --key key.pem
  host submit component:fares@1.1.0#main --node first:7410
  openssl genpkey -algorithm ed25519 -out key.pem && chmod 600 key.pem

Exit codes: 0 registered, also if the same component was registered before, 1 refused, 2 wrong usage.")]
    Push {
        /// A component, or the folder of a crate.
        #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
        path: PathBuf,
        /// Name and version, such as fares@1.2.0: see <https://semver.org>.
        #[arg(value_name = "NAME@VERSION")]
        version: ComponentVersion,
        /// Sign the component with the Ed25519 key in this file (PKCS #8 as PEM), which only this user can read.
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        key: Option<PathBuf>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Lists the registered components.
    #[command(
        after_help = "Examples:\n  host component list --node first:7410\n  host component list --node first:7410 --json"
    )]
    List {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Shows a registered component: its functions, hash, signature and state.
    #[command(
        after_help = "Examples:\n  host component show fares --node first:7410\n  host component show fares@1.0.0 --node first:7410 --json"
    )]
    Show {
        /// Its name and version [default version: the last release]
        #[arg(value_name = "NAME[@VERSION]", value_parser = ComponentReference::parse)]
        component: ComponentReference,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Downloads a registered component.
    #[command(after_help = "Examples:\n  host component pull fares@1.0.0 -o fares.wasm --node first:7410")]
    Pull {
        /// Its name and version [default version: the last release]
        #[arg(value_name = "NAME[@VERSION]", value_parser = ComponentReference::parse)]
        component: ComponentReference,
        /// File to write.
        #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
        #[command(flatten)]
        remote: Remote,
    },
    /// Yanks a version: new jobs can't name it, running ones go on. Nodes evict it like any other component, and nothing else
    /// gets its name and version.
    #[command(
        after_help = "Examples:\n  host component yank fares@1.0.0 --node first:7410\n  host component yank fares@1.0.0 --undo --node first:7410"
    )]
    Yank {
        /// Its name and version.
        #[arg(value_name = "NAME@VERSION")]
        version: ComponentVersion,
        /// Take it back.
        #[arg(long)]
        undo: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Lists, adds and removes the keys that sign components. While a tenant has a key, its jobs use only registered components
    /// that one of its keys has signed.
    #[command(subcommand)]
    Keys(KeyCommand),
}

impl ComponentCommand {
    /// Returns whether the command prints JSON.
    pub(crate) fn is_json(&self) -> bool {
        match self {
            ComponentCommand::Push { json, .. }
            | ComponentCommand::List { json, .. }
            | ComponentCommand::Show { json, .. }
            | ComponentCommand::Keys(KeyCommand::List { json, .. }) => *json,
            _ => false,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Lists the keys.
    #[command(after_help = "Examples:\n  host component keys list --node first:7410")]
    List {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Adds a key. Needs the role admin.
    #[command(
        after_help = "Examples:\n  host component keys add key.pem --node first:7410\n  host component keys add 7a435441be76099947999f4b00d4a700456d87c4dc1d61138508c5818b18fdb0 --node first:7410"
    )]
    Add {
        /// The public key as 64 hexadecimal digits, or the file of the private key.
        #[arg(value_name = "KEY")]
        key: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Removes a key: what only it has signed is no longer used by new jobs. Needs the role admin.
    #[command(
        after_help = "Examples:\n  host component keys remove 7a435441be76099947999f4b00d4a700456d87c4dc1d61138508c5818b18fdb0 --node first:7410"
    )]
    Remove {
        /// The public key as 64 hexadecimal digits, or the file of the private key.
        #[arg(value_name = "KEY")]
        key: String,
        #[command(flatten)]
        remote: Remote,
    },
}
