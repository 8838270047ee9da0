//! Builds of crates to components, if their last build is stale.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::SystemTime;

use rustix::process::{Pid, Signal, kill_process_group};
use sandbar_machine::write_atomically;
use sandbar_worker::in_own_group;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

const TARGET: &str = "wasm32-wasip2";
/// Environment of a build. SIMD is enabled, and loops are interleaved four times, so that a sum does not wait for each
/// addition: for wasm, whose machine it does not know, LLVM assumes no gain. The initial memory lets small guests run
/// without growing it, so that a fresh sandbox starts with the memory it needs.
const BUILD_ENVIRONMENT: [(&str, &str); 6] = [
    (
        "CARGO_ENCODED_RUSTFLAGS",
        "-C\x1ftarget-feature=+simd128\x1f-C\x1fllvm-args=-force-vector-interleave=4\x1f-C\x1flink-arg=--initial-memory=2097152",
    ),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_STRIP", "symbols"),
];

/// Error of building a crate.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The folder is not a crate.
    #[error("{}: there is no Cargo.toml; name the folder of a crate (make one with `host new NAME`) or a component", .0.display())]
    NoCrate(PathBuf),
    /// Cargo failed; its message is on standard error.
    #[error("{}: cargo could not build it (its message is above){hint}", folder.display())]
    Cargo {
        /// Folder of the crate.
        folder: PathBuf,
        /// Suggestion to append to the message.
        hint: String,
    },
    /// Cargo is not installed.
    #[error("`{0}` is not installed, or not in PATH; name a component instead of a crate")]
    NoCargo(String),
    /// Running cargo or reading a file failed.
    #[error("{}: {reason}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Error of the operating system.
        reason: io::Error,
    },
    /// The crate produces no component.
    #[error("{}: the crate produces no component; its Cargo.toml needs [lib] crate-type = [\"cdylib\"]", .0.display())]
    NoComponent(PathBuf),
}

/// Folder in the cache with cargo's artifacts that crates share: the SDK and its dependencies are compiled once.
const SHARED_FOLDER: &str = "cargo";

/// Record of a crate's last build.
#[derive(Serialize, Deserialize)]
struct BuildStamp {
    /// The [`BUILD_ENVIRONMENT`] of the build.
    #[serde(rename = "settings")]
    environment: Vec<(String, String)>,
    component: PathBuf,
    /// Modification time of the component. Any other writer of that file makes the record stale.
    #[serde(rename = "written")]
    component_modified: SystemTime,
    /// Time at which the component was verified to be up to date. It is later than the modification time if a source
    /// changed without a change of the component.
    #[serde(rename = "checked")]
    verified_at: SystemTime,
    /// Source files, the manifests of their crates, and the lock file.
    sources: Vec<PathBuf>,
    /// Other files that affect the build: see [`find_config_files`].
    #[serde(rename = "around")]
    config_files: Vec<PathBuf>,
    /// Compiler: see [`compiler_fingerprint`].
    compiler: String,
}

/// A crate, with the inputs that determine whether its last build is up to date.
struct Crate {
    folder: PathBuf,
    stamp_path: PathBuf,
    config_files: Vec<PathBuf>,
    compiler: String,
}

impl Crate {
    fn find(folder: &Path, cache: &Path) -> Result<Crate, BuildError> {
        if !folder.join("Cargo.toml").is_file() {
            return Err(BuildError::NoCrate(folder.to_owned()));
        }
        let folder = fs::canonicalize(folder).map_err(io_error(folder))?;
        let (stamp_path, config_files) = (stamp_path(&folder, cache), find_config_files(&folder));
        Ok(Crate { folder, stamp_path, config_files, compiler: compiler_fingerprint() })
    }

    /// Returns the component of the last build, if it is up to date.
    fn built_component(&self) -> Option<PathBuf> {
        let stamp: BuildStamp = serde_json::from_slice(&fs::read(&self.stamp_path).ok()?).ok()?;
        let environment = stamp.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let is_unmodified = |file: &PathBuf| modified(file).is_some_and(|modified| modified <= stamp.verified_at);
        let is_up_to_date = environment.eq(BUILD_ENVIRONMENT)
            && modified(&stamp.component)? == stamp.component_modified
            && stamp.config_files == self.config_files
            && (self.compiler.is_empty() || stamp.compiler == self.compiler)
            && stamp.sources.iter().chain(&self.config_files).all(is_unmodified);
        is_up_to_date.then_some(stamp.component)
    }
}

/// Returns the component of the crate in `folder`, if its last build is up to date.
///
/// # Errors
/// Fails if the folder is not a crate.
pub(crate) fn built_component(folder: &Path, cache: &Path) -> Result<Option<PathBuf>, BuildError> {
    Ok(Crate::find(folder, cache)?.built_component())
}

/// Receives a message for the user before a crate is built.
pub type BuildReporter<'a> = &'a (dyn Fn(String) + Sync);

/// Returns the component of the crate in `folder`. Builds it if a source or a setting has changed since the last build.
/// `report` is called before a build; without it cargo prints only warnings and errors, to standard error. Dropping the
/// future kills cargo.
///
/// # Errors
/// Fails if the crate can't be built.
pub async fn build_crate(
    folder: &Path,
    cache: &Path,
    report: Option<BuildReporter<'_>>,
) -> Result<PathBuf, BuildError> {
    let found = Crate::find(folder, cache)?;
    if let Some(component) = found.built_component() {
        return Ok(component);
    }
    let Crate { folder, stamp_path, config_files, compiler } = found;
    let folders = BuildFolders::find(&folder, cache).await;
    if let Some(report) = report {
        let duration = if folders.has_compiled() { "" } else { " (the first time takes about a minute)" };
        report(format!("building the functions of {}{duration} …", folder.display()));
    }
    let verified_at = SystemTime::now();
    let component = run_cargo(&folder, folders.shared.as_deref(), report.is_none()).await?;
    let component_modified = fs::metadata(&component).and_then(|m| m.modified()).map_err(io_error(&component))?;
    let mut sources = read_dep_info(&component.with_extension("d")).map_err(io_error(&component))?;
    let manifests: BTreeSet<PathBuf> = sources.iter().filter_map(|source| manifest_of(source)).collect();
    sources.extend(manifests);
    sources.extend(folder.ancestors().map(|a| a.join("Cargo.lock")).find(|lock| lock.is_file()));
    let stamp = BuildStamp {
        environment: BUILD_ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        component: component.clone(),
        component_modified,
        verified_at,
        sources,
        config_files,
        compiler,
    };
    // Without the record, the next call runs cargo again.
    let _ = serde_json::to_vec(&stamp).map(|text| write_atomically(&stamp_path, &text));
    Ok(component)
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> BuildError + use<> {
    let path = path.to_owned();
    move |reason| BuildError::Io { path, reason }
}

/// Returns the path of the record of a crate's last build. Each pair of a crate and a target folder has one.
fn stamp_path(folder: &Path, cache: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_default();
    let key = sandbar_core::Seed::new(1).with(folder.as_os_str().as_encoded_bytes()).with(target.as_encoded_bytes());
    cache.join("builds").join(format!("{:016x}.json", key.value()))
}

/// Finds the manifests and the configuration of cargo and rustup in `folder` and its ancestors. They contain the
/// profiles, dependencies and flags of workspaces.
fn find_config_files(folder: &Path) -> Vec<PathBuf> {
    let names = ["Cargo.toml", ".cargo/config.toml", ".cargo/config", "rust-toolchain.toml", "rust-toolchain"];
    let files = folder.ancestors().flat_map(|folder| names.map(|name| folder.join(name)));
    let home = std::env::var_os("CARGO_HOME").map(|home| Path::new(&home).join("config.toml"));
    files.chain(home).filter(|file| file.is_file()).collect()
}

/// Finds the manifest of the crate of a source file.
fn manifest_of(source: &Path) -> Option<PathBuf> {
    source.ancestors().skip(1).map(|folder| folder.join("Cargo.toml")).find(|manifest| manifest.is_file())
}

/// Returns a text that changes with the compiler: the modification times of rustc, of rustup's settings, and of the
/// toolchains that rustup installed. Running the compiler would take longer than many jobs. Empty without a compiler.
fn compiler_fingerprint() -> String {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let in_path = std::env::var_os("PATH").and_then(|path| {
        let programs = std::env::split_paths(&path).map(|folder| folder.join("rustc"));
        programs.into_iter().find(|program| program.is_file())
    });
    let Some(program) = variable("RUSTC").or(in_path) else { return String::new() };
    let rustup = variable("RUSTUP_HOME").or_else(|| Some(variable("HOME")?.join(".rustup"))).unwrap_or_default();
    let installed =
        fs::read_dir(rustup.join("update-hashes")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        installed.chain([program, rustup.join("settings.toml"), rustup.join("toolchains")]).collect();
    files.sort();
    let times: Vec<_> = files.iter().map(|file| (file, modified(file))).collect();
    format!("{:?} {times:?}", variable("RUSTUP_TOOLCHAIN"))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Reads the source files from a make-style dependency file.
fn read_dep_info(path: &Path) -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string(path)?;
    let first = text.lines().next().unwrap_or_default();
    let sources = first.split_once(": ").map_or("", |(_, sources)| sources);
    // Spaces in paths are escaped with a backslash.
    Ok(sources
        .replace("\\ ", "\0")
        .split(' ')
        .filter(|s| !s.is_empty())
        .map(|s| PathBuf::from(s.replace('\0', " ")))
        .collect())
}

/// Folders of the artifacts of a crate.
#[derive(Default)]
struct BuildFolders {
    /// Folder of intermediate artifacts that the crate shares with others. Its component stays in its own folder.
    shared: Option<PathBuf>,
    /// Build folder of the crate or its workspace.
    own: PathBuf,
}

/// Output of `cargo metadata`.
#[derive(Deserialize)]
struct CargoMetadata {
    workspace_root: PathBuf,
    target_directory: PathBuf,
    #[serde(default)]
    build_directory: PathBuf,
    #[serde(default)]
    packages: Vec<CargoPackage>,
}

#[derive(Deserialize)]
struct CargoPackage {
    dependencies: Vec<CargoDependency>,
    targets: Vec<CargoTarget>,
}

#[derive(Deserialize)]
struct CargoDependency {
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct CargoTarget {
    kind: Vec<String>,
}

impl CargoPackage {
    /// Returns whether the crate has parts whose artifacts cargo could confuse with those of another crate: crates in
    /// its folder, or a build script. In a shared folder cargo identifies local crates by name and version only.
    /// [`run_cargo`] distinguishes the libraries themselves.
    fn has_ambiguous_artifacts(&self, folder: &Path) -> bool {
        let is_within =
            |dependency: &CargoDependency| dependency.path.as_ref().is_some_and(|path| path.starts_with(folder));
        let is_script = |target: &CargoTarget| target.kind.iter().any(|kind| kind == "custom-build");
        self.dependencies.iter().any(is_within) || self.targets.iter().any(is_script)
    }
}

impl BuildFolders {
    /// Finds the folders of a crate. A crate shares artifacts unless it is in a workspace with others, has ambiguous
    /// artifacts, or a setting of cargo determines its folders.
    async fn find(folder: &Path, cache: &Path) -> BuildFolders {
        let mut cargo = Command::new(cargo_program());
        cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(folder).stderr(Stdio::null());
        // Errors of the crate are reported by the build.
        let Ok(output) = run_in_group(&mut cargo).await else { return BuildFolders::default() };
        let Ok(metadata) = serde_json::from_slice::<CargoMetadata>(&output.stdout) else {
            return BuildFolders::default();
        };
        let is_alone = metadata.workspace_root == folder
            && !metadata.packages.iter().any(|package| package.has_ambiguous_artifacts(folder))
            && metadata.target_directory == folder.join("target")
            && metadata.build_directory == metadata.target_directory;
        // A setting may be equal to the default.
        let is_configured = ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "CARGO_BUILD_BUILD_DIR"]
            .iter()
            .any(|name| std::env::var_os(name).is_some());
        let shared = (is_alone && !is_configured)
            .then(|| cache.join(SHARED_FOLDER))
            .filter(|folder| create_shared_folder(folder));
        BuildFolders { shared, own: metadata.build_directory }
    }

    /// Returns whether the folder has artifacts of an earlier build.
    fn has_compiled(&self) -> bool {
        self.shared.as_ref().unwrap_or(&self.own).join(TARGET).is_dir()
    }
}

/// Creates the shared folder with an explanatory file. Returns whether it is writable; otherwise each crate builds in
/// its own folder.
fn create_shared_folder(folder: &Path) -> bool {
    let text = "Compiled dependencies of crates that `host build` builds. This folder can be deleted at any time.\n";
    fs::create_dir_all(folder).and_then(|()| fs::write(folder.join("README"), text)).is_ok()
}

fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A message of a cargo build.
#[derive(Deserialize)]
struct CargoMessage {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

/// Builds a crate. Returns its component.
async fn run_cargo(folder: &Path, shared: Option<&Path>, is_quiet: bool) -> Result<PathBuf, BuildError> {
    let program = cargo_program();
    let mut cargo = Command::new(&program);
    // In a shared folder, crates of the same name are one crate to cargo, which would reuse the artifact of another
    // crate that is newer than the sources. Different arguments force a build.
    let cfg = shared.map(|_| format!("sandbar_crate={:?}", folder.to_string_lossy()));
    cargo
        .arg(if cfg.is_some() { "rustc" } else { "build" })
        .args(["--release", "--lib", "--target", TARGET, "--message-format", "json-render-diagnostics"])
        .args(is_quiet.then_some("--quiet"))
        .args(cfg.iter().flat_map(|cfg| ["--", "--cfg", cfg]))
        .current_dir(folder)
        .envs(BUILD_ENVIRONMENT)
        .envs(shared.map(|folder| ("CARGO_BUILD_BUILD_DIR", folder)));
    let output = run_in_group(&mut cargo).await.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => BuildError::NoCargo(program.display().to_string()),
        _ => io_error(folder)(e),
    })?;
    if !output.status.success() {
        let hint = match target_is_missing().await {
            true => format!("; the target {TARGET} is not installed: {INSTALL_TARGET}"),
            false => String::new(),
        };
        return Err(BuildError::Cargo { folder: folder.to_owned(), hint });
    }
    let manifest = folder.join("Cargo.toml");
    // Searches from the last message.
    let messages = output.stdout.rsplit(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    messages
        .filter(|m: &CargoMessage| m.reason == "compiler-artifact" && m.manifest_path == manifest)
        .find_map(|m| m.filenames.into_iter().find(|f| f.extension().is_some_and(|e| e == "wasm")))
        .ok_or_else(|| BuildError::NoComponent(folder.to_owned()))
}

/// Runs cargo in its own process group, which is killed when the future is dropped. Standard error is not changed.
async fn run_in_group(cargo: &mut Command) -> io::Result<Output> {
    cargo.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let child = in_own_group(|| cargo.spawn())?;
    let group = ProcessGroup(child.id());
    let output = child.wait_with_output().await?;
    group.disarm();
    Ok(output)
}

/// Process group of cargo and its compilers, by id. Dropping it kills them.
struct ProcessGroup(Option<u32>);

impl ProcessGroup {
    /// Forgets the group, which has ended.
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0.and_then(|id| Pid::from_raw(id.cast_signed())) {
            // The group may have ended already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The toolchain for functions on this machine.
#[derive(Debug, Clone, Serialize)]
pub struct Toolchain {
    /// Version of cargo as it prints it; `None` without cargo.
    pub cargo: Option<String>,
    /// Version of rustc as it prints it; `None` without rustc.
    pub rustc: Option<String>,
    /// Target triple of functions.
    pub target: &'static str,
    /// Whether the standard library for the target is installed.
    pub has_target: bool,
}

/// Instruction to install the target of functions.
pub const INSTALL_TARGET: &str =
    "run `rustup target add wasm32-wasip2`, or `cargo xtask setup` in Sandbar's own checkout";

/// Finds the toolchain that builds functions. Prevents rustup from installing a missing one.
pub async fn toolchain() -> Toolchain {
    let cargo = version_of(&cargo_program()).await;
    let rustc = version_of(&"rustc".into()).await;
    let has_target = rustc.is_some() && !target_is_missing().await;
    Toolchain { cargo, rustc, target: TARGET, has_target }
}

/// Returns a command of the toolchain, which installs nothing.
fn toolchain_command(program: &OsString) -> Command {
    let mut command = Command::new(program);
    command.env("RUSTUP_AUTO_INSTALL", "0").stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn version_of(program: &OsString) -> Option<String> {
    let output =
        toolchain_command(program).arg("--version").output().await.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
}

async fn target_is_missing() -> bool {
    let mut rustc = toolchain_command(&"rustc".into());
    let sysroot = rustc.args(["--print", "target-libdir", "--target", TARGET]).output().await;
    // A failure of rustc itself is on standard error.
    sysroot.is_ok_and(|out| out.status.success() && !Path::new(String::from_utf8_lossy(&out.stdout).trim()).is_dir())
}
