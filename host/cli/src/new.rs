//! `host new`: a crate to start from.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{CliError, output};

/// The `Cargo.toml` of the checkout this program was built from; `.cargo/config.toml` says why not by cargo's own words.
const MANIFEST: &str = match option_env!("SANDBAR_MANIFEST") {
    Some(manifest) => manifest,
    None => concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"),
};

pub(crate) fn create(name: &str, sdk: Option<&Path>) -> Result<(), CliError> {
    let crate_name = Path::new(name).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let valid = crate_name.starts_with(|c: char| c.is_ascii_alphabetic())
        && crate_name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if !valid {
        return Err(CliError::Usage(format!(
            "`{name}` can't be the name of a crate: letters, digits, - and _, a letter first"
        )));
    }
    let folder = PathBuf::from(name);
    if folder.exists() {
        return Err(CliError::Usage(format!("{} is there already", folder.display())));
    }
    let sdk = sdk.map_or_else(|| Path::new(MANIFEST).with_file_name("guest-sdk"), Path::to_path_buf);
    let sdk = fs::canonicalize(&sdk).map_err(|e| {
        CliError::Usage(format!("the guest SDK is not in {}: {e}; say where with --sdk", sdk.display()))
    })?;
    let manifest = include_str!("templates/Cargo.toml.in")
        .replace("{name}", crate_name)
        .replace("{sdk}", &sdk.display().to_string());
    let write = |path: PathBuf, text: &str| {
        fs::write(&path, text).map_err(|e| CliError::Failed(format!("{}: {e}", path.display())))
    };
    fs::create_dir_all(folder.join("src")).map_err(|e| CliError::Failed(format!("{}: {e}", folder.display())))?;
    write(folder.join("Cargo.toml"), &manifest)?;
    write(folder.join("src/lib.rs"), include_str!("templates/lib.rs.in"))?;
    write(folder.join(".gitignore"), "/target\n")?;
    output::talk(&format!("made {0}: write functions in {0}/src/lib.rs, then `host build {0}`", folder.display()));
    Ok(())
}
