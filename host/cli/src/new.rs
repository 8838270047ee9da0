//! `host new`: creates a crate from a template.

use std::fs;
use std::path::{Path, PathBuf};

use sandbar_node::machine;

use crate::error::CliError;
use crate::output;

/// Contents of a new crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Template {
    /// A function of each kind.
    Functions,
    /// Tasks.
    Program,
    /// A trainer with parameters, and its model.
    Trainer,
}

impl Template {
    /// Returns `src/lib.rs` and `README.md`, with `{name}` for the crate's name.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Template::Functions => {
                (include_str!("templates/functions.rs.in"), include_str!("templates/functions.md.in"))
            }
            Template::Program => (include_str!("templates/program.rs.in"), include_str!("templates/program.md.in")),
            Template::Trainer => (include_str!("templates/trainer.rs.in"), include_str!("templates/trainer.md.in")),
        }
    }
}

pub(crate) fn create(name: &str, template: Template, sdk: Option<&Path>) -> Result<(), CliError> {
    let crate_name = Path::new(name).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let valid = crate_name.starts_with(|c: char| c.is_ascii_alphabetic())
        && crate_name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if !valid {
        return Err(CliError::Usage(format!(
            "invalid crate name `{name}`: use letters, digits, - and _, starting with a letter"
        )));
    }
    let folder = PathBuf::from(name);
    if folder.exists() {
        return Err(CliError::Usage(format!("{} already exists", folder.display())));
    }
    let own = || machine::checkout().map(|checkout| checkout.join("guest-sdk"));
    let Some(sdk) = sdk.map(Path::to_path_buf).or_else(own) else {
        let message = "the checkout of this program's build does not exist; set the guest SDK's folder with --sdk";
        return Err(CliError::Usage(message.to_owned()));
    };
    let sdk = fs::canonicalize(&sdk)
        .map_err(|e| CliError::Usage(format!("no guest SDK in {}: {e}; set its folder with --sdk", sdk.display())))?;
    let manifest = include_str!("templates/Cargo.toml.in").replace("{sdk}", &sdk.display().to_string());
    let write = |path: PathBuf, text: &str| {
        let text = text.replace("{name}", crate_name);
        fs::write(&path, text).map_err(|e| CliError::Failed(format!("{}: {e}", path.display())))
    };
    let (source, readme) = template.texts();
    fs::create_dir_all(folder.join("src")).map_err(|e| CliError::Failed(format!("{}: {e}", folder.display())))?;
    write(folder.join("Cargo.toml"), &manifest)?;
    write(folder.join("src/lib.rs"), source)?;
    write(folder.join("README.md"), readme)?;
    write(folder.join(".gitignore"), "/target\n")?;
    // The dependency versions that the SDK is tested with. Crates with the same versions share compiled dependencies.
    // Cargo drops unused entries.
    let _ = fs::copy(sdk.with_file_name("Cargo.lock"), folder.join("Cargo.lock"));
    let (shown, next) = (folder.display(), if template == Template::Program { "submit" } else { "build" });
    output::message(&format!("created {shown}: edit {shown}/src/lib.rs, then run `host {next} {shown}`"));
    Ok(())
}
