//! `host completion`: shell completion scripts.

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::args::{Arguments, Shell};
use crate::error::CliError;
use crate::output;

/// Prints the completion script of a shell.
pub(crate) fn print(shell: Shell) -> Result<ExitCode, CliError> {
    let mut command = Arguments::command();
    let name = command.get_name().to_owned();
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    output::bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
