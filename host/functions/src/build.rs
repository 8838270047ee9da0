//! Crates to components, when they are stale.

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
/// How guests are built: with SIMD, whose loops work on four vectors a turn (a sum then waits for no addition; of a
/// machine that it does not know, as wasm's, LLVM assumes that it gains nothing), and room for small ones without
/// growing, so that a fresh sandbox starts with the memory it needs.
const SETTINGS: [(&str, &str); 6] = [
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

/// Why a crate can't be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The folder is no crate.
    #[error("{}: there is no Cargo.toml; name the folder of a crate (make one with `host new NAME`) or a component", .0.display())]
    NoCrate(PathBuf),
    /// Cargo said no; its words are on standard error.
    #[error("{}: cargo could not build it (its message is above){hint}", folder.display())]
    Cargo {
        /// The crate.
        folder: PathBuf,
        /// What may help.
        hint: String,
    },
    /// There is no cargo.
    #[error("`{0}` is not installed, or not in PATH; name a component instead of a crate")]
    NoCargo(String),
    /// Cargo could not be run, or files not be read.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// The crate makes no component.
    #[error("{}: it makes no component; its Cargo.toml needs [lib] crate-type = [\"cdylib\"]", .0.display())]
    NoComponent(PathBuf),
}

/// The folder in the cache where crates share what cargo compiles for them: the SDK and what it depends on, once.
const SHARED_FOLDER: &str = "cargo";

/// What is known of a crate's last build.
#[derive(Serialize, Deserialize)]
struct Stamp {
    /// The [`SETTINGS`] it was built with.
    settings: Vec<(String, String)>,
    component: PathBuf,
    /// When the component was written: whoever else writes one there makes this stale.
    written: SystemTime,
    /// When it was known to be up to date. Later than it was written, when a source changed and cargo
    /// found that it makes no difference.
    checked: SystemTime,
    /// Files it was made from, and the manifests of their crates.
    sources: Vec<PathBuf>,
    /// What else says how it is made: see [`settings_around`].
    around: Vec<PathBuf>,
    /// Which compiler it was made by: see [`compiler`].
    compiler: String,
}

/// A crate, with the inputs that decide whether its last build is still good.
struct Crate {
    folder: PathBuf,
    stamp_path: PathBuf,
    around: Vec<PathBuf>,
    compiler: String,
}

impl Crate {
    fn find(folder: &Path, cache: &Path) -> Result<Crate, BuildError> {
        if !folder.join("Cargo.toml").is_file() {
            return Err(BuildError::NoCrate(folder.to_owned()));
        }
        let folder = fs::canonicalize(folder).map_err(at(folder))?;
        let (stamp_path, around) = (stamp_path(&folder, cache), settings_around(&folder));
        Ok(Crate { folder, stamp_path, around, compiler: compiler() })
    }

    fn component(&self) -> Option<PathBuf> {
        fresh(&self.stamp_path, &self.around, &self.compiler)
    }
}

/// The component of the crate in `folder`, unless it has to be built first.
///
/// # Errors
/// When the folder is no crate.
pub(crate) fn built_component(folder: &Path, cache: &Path) -> Result<Option<PathBuf>, BuildError> {
    Ok(Crate::find(folder, cache)?.component())
}

/// Receives a message for the user before a crate is built.
pub type SayBuild<'a> = &'a (dyn Fn(String) + Sync);

/// The component of the crate in `folder`: the one built last when nothing it
/// was made from has changed, else a new one. `say` is called before a new one is
/// built; without it cargo reports nothing but warnings and errors, on standard error. Cargo ends when this is dropped.
///
/// # Errors
/// When the crate can't be built.
pub async fn build_crate(folder: &Path, cache: &Path, say: Option<SayBuild<'_>>) -> Result<PathBuf, BuildError> {
    let found = Crate::find(folder, cache)?;
    if let Some(component) = found.component() {
        return Ok(component);
    }
    let Crate { folder, stamp_path, around, compiler } = found;
    let places = Places::find(&folder, cache).await;
    if let Some(say) = say {
        let first = if places.has_compiled() { "" } else { " (the first time takes about a minute)" };
        say(format!("building the functions of {}{first} …", folder.display()));
    }
    let checked = SystemTime::now();
    let component = cargo(&folder, places.shared.as_deref(), say.is_none()).await?;
    let written = fs::metadata(&component).and_then(|m| m.modified()).map_err(at(&component))?;
    let mut sources = dep_info(&component.with_extension("d")).map_err(at(&component))?;
    let manifests: BTreeSet<PathBuf> = sources.iter().filter_map(|source| manifest_of(source)).collect();
    sources.extend(manifests);
    sources.extend(folder.ancestors().map(|a| a.join("Cargo.lock")).find(|lock| lock.is_file()));
    let settings = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let stamp = Stamp { settings, component: component.clone(), written, checked, sources, around, compiler };
    // Without a stamp cargo is asked again.
    let _ = serde_json::to_vec(&stamp).map(|text| write_atomically(&stamp_path, &text));
    Ok(component)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> BuildError + use<> {
    let path = path.to_owned();
    move |reason| BuildError::Io { path, reason }
}

/// One stamp for each crate and target folder.
fn stamp_path(folder: &Path, cache: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_default();
    let key = sandbar_core::Seed::new(1).with(folder.as_os_str().as_encoded_bytes()).with(target.as_encoded_bytes());
    cache.join("builds").join(format!("{:016x}.json", key.value()))
}

fn fresh(stamp: &Path, around: &[PathBuf], compiler: &str) -> Option<PathBuf> {
    let stamp: Stamp = serde_json::from_slice(&fs::read(stamp).ok()?).ok()?;
    let settings = stamp.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let unchanged = settings.eq(SETTINGS)
        && modified(&stamp.component)? == stamp.written
        && stamp.around == around
        && (compiler.is_empty() || stamp.compiler == compiler)
        && stamp.sources.iter().chain(around).all(|source| modified(source).is_some_and(|m| m <= stamp.checked));
    unchanged.then_some(stamp.component)
}

/// The manifests and settings of cargo and rustup in `folder`, and in those that it lies in: a workspace's profiles,
/// dependencies and flags are there.
fn settings_around(folder: &Path) -> Vec<PathBuf> {
    let names = ["Cargo.toml", ".cargo/config.toml", ".cargo/config", "rust-toolchain.toml", "rust-toolchain"];
    let around = folder.ancestors().flat_map(|folder| names.map(|name| folder.join(name)));
    let home = std::env::var_os("CARGO_HOME").map(|home| Path::new(&home).join("config.toml"));
    around.chain(home).filter(|file| file.is_file()).collect()
}

/// The manifest of the crate that a source belongs to.
fn manifest_of(source: &Path) -> Option<PathBuf> {
    source.ancestors().skip(1).map(|folder| folder.join("Cargo.toml")).find(|manifest| manifest.is_file())
}

/// What changes when another compiler does: the program's time, and those of rustup's choice and of what it installed. To
/// ask the compiler takes longer than many a job. Nothing where there is none to build anything anew.
fn compiler() -> String {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let found = std::env::var_os("PATH").and_then(|path| {
        let programs = std::env::split_paths(&path).map(|folder| folder.join("rustc"));
        programs.into_iter().find(|program| program.is_file())
    });
    let Some(program) = variable("RUSTC").or(found) else { return String::new() };
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

/// The sources in a make-style dependency file.
fn dep_info(path: &Path) -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string(path)?;
    let first = text.lines().next().unwrap_or_default();
    let sources = first.split_once(": ").map_or("", |(_, sources)| sources);
    // Spaces in names are escaped with a backslash.
    Ok(sources
        .replace("\\ ", "\0")
        .split(' ')
        .filter(|s| !s.is_empty())
        .map(|s| PathBuf::from(s.replace('\0', " ")))
        .collect())
}

/// Where cargo compiles a crate.
#[derive(Default)]
struct Places {
    /// The folder of intermediate results that it shares with other crates. Its component lies in its own.
    shared: Option<PathBuf>,
    /// Its own folder, or that of its workspace.
    own: PathBuf,
}

/// What `cargo metadata` says of a crate.
#[derive(Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    target_directory: PathBuf,
    #[serde(default)]
    build_directory: PathBuf,
    #[serde(default)]
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

impl Package {
    /// Whether cargo could take what it compiled of another crate for a part of this one: it tells crates in the folders of
    /// their workspaces by names and versions alone. The library itself is told apart by [`cargo`].
    fn has_parts(&self, folder: &Path) -> bool {
        let is_within = |of: &Dependency| of.path.as_ref().is_some_and(|path| path.starts_with(folder));
        let is_script = |target: &Target| target.kind.iter().any(|kind| kind == "custom-build");
        self.dependencies.iter().any(is_within) || self.targets.iter().any(is_script)
    }
}

impl Places {
    /// A crate shares, unless it is in a workspace with others, has crates in its folder or a build script, or some setting
    /// of cargo's says where it is compiled.
    async fn find(folder: &Path, cache: &Path) -> Places {
        let mut cargo = Command::new(cargo_program());
        cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(folder).stderr(Stdio::null());
        // What is wrong with the crate is said when it is built.
        let Ok(output) = output_of(&mut cargo).await else { return Places::default() };
        let Ok(metadata) = serde_json::from_slice::<Metadata>(&output.stdout) else { return Places::default() };
        let is_alone = metadata.workspace_root == folder
            && !metadata.packages.iter().any(|package| package.has_parts(folder))
            && metadata.target_directory == folder.join("target")
            && metadata.build_directory == metadata.target_directory;
        // A setting may say what is usual.
        let is_said = ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "CARGO_BUILD_BUILD_DIR"]
            .iter()
            .any(|name| std::env::var_os(name).is_some());
        let shared = (is_alone && !is_said).then(|| cache.join(SHARED_FOLDER)).filter(|folder| can_be_written(folder));
        Places { shared, own: metadata.build_directory }
    }

    /// Whether a crate was compiled there.
    fn has_compiled(&self) -> bool {
        self.shared.as_ref().unwrap_or(&self.own).join(TARGET).is_dir()
    }
}

/// Whether cargo can build there; also says to people what it is. Without a cache each crate builds in its own folder.
fn can_be_written(folder: &Path) -> bool {
    let words = "What `host build` compiled of crates that crates depend on. It can be deleted at any time.\n";
    fs::create_dir_all(folder).and_then(|()| fs::write(folder.join("README"), words)).is_ok()
}

fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

async fn cargo(folder: &Path, shared: Option<&Path>, is_quiet: bool) -> Result<PathBuf, BuildError> {
    let program = cargo_program();
    let mut cargo = Command::new(&program);
    // Where cargo shares a folder, crates of one name in folders of their own are one to it, and it would take what it
    // compiled last for what is older than that: arguments that differ make it compile.
    let place = shared.map(|_| format!("sandbar_crate={:?}", folder.to_string_lossy()));
    cargo
        .arg(if place.is_some() { "rustc" } else { "build" })
        .args(["--release", "--lib", "--target", TARGET, "--message-format", "json-render-diagnostics"])
        .args(is_quiet.then_some("--quiet"))
        .args(place.iter().flat_map(|place| ["--", "--cfg", place]))
        .current_dir(folder)
        .envs(SETTINGS)
        .envs(shared.map(|folder| ("CARGO_BUILD_BUILD_DIR", folder)));
    let output = output_of(&mut cargo).await.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => BuildError::NoCargo(program.display().to_string()),
        _ => at(folder)(e),
    })?;
    if !output.status.success() {
        let hint = match target_is_missing().await {
            true => format!("; the target {TARGET} is not installed: {INSTALL_TARGET}"),
            false => String::new(),
        };
        return Err(BuildError::Cargo { folder: folder.to_owned(), hint });
    }
    let manifest = folder.join("Cargo.toml");
    // The last comes first.
    let messages = output.stdout.rsplit(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    messages
        .filter(|m: &Message| m.reason == "compiler-artifact" && m.manifest_path == manifest)
        .find_map(|m| m.filenames.into_iter().find(|f| f.extension().is_some_and(|e| e == "wasm")))
        .ok_or_else(|| BuildError::NoComponent(folder.to_owned()))
}

/// Runs cargo in a process group of its own, which ends when this is dropped. Its standard error is as it was set.
async fn output_of(cargo: &mut Command) -> io::Result<Output> {
    cargo.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let child = in_own_group(|| cargo.spawn())?;
    let group = Group(child.id());
    let output = child.wait_with_output().await?;
    group.has_ended();
    Ok(output)
}

/// Cargo and the compilers that it starts, by the id of their process group. Dropping it kills them.
struct Group(Option<u32>);

impl Group {
    fn has_ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0.and_then(|id| Pid::from_raw(id.cast_signed())) {
            // It may have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The compiler of functions on this machine.
#[derive(Debug, Clone, Serialize)]
pub struct Toolchain {
    /// Cargo's version, in its own words; `None` without cargo.
    pub cargo: Option<String>,
    /// The compiler's version, in its own words; `None` without rustc.
    pub rustc: Option<String>,
    /// The target of functions.
    pub target: &'static str,
    /// Whether the standard library is installed for that target.
    pub has_target: bool,
}

/// The way to install the target of functions.
pub const INSTALL_TARGET: &str =
    "run `rustup target add wasm32-wasip2`, or `cargo xtask setup` in Sandbar's own checkout";

/// Finds the compiler that builds functions. Rustup installs nothing meanwhile.
pub async fn toolchain() -> Toolchain {
    let cargo = version_of(&cargo_program()).await;
    let rustc = version_of(&"rustc".into()).await;
    let has_target = rustc.is_some() && !target_is_missing().await;
    Toolchain { cargo, rustc, target: TARGET, has_target }
}

/// A command of the toolchain that installs nothing.
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
    // A rustc that fails has said why.
    sysroot.is_ok_and(|out| out.status.success() && !Path::new(String::from_utf8_lossy(&out.stdout).trim()).is_dir())
}
