//! Components to native code, in a process of their own, kept by content.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use sandbar_core::{Code, ComponentId, Fault};
use sandbar_store::Object;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::process::Command;

/// The argument with which `host-worker` compiles standard input to standard output.
pub const COMPILER_ARGUMENT: &str = "compiler";

/// Largest component.
const COMPONENT_BYTES_MAX: u64 = 256 << 20;
/// What a compiling process may use.
const ADDRESS_SPACE_BYTES_MAX: u64 = 16 << 30;
const CPU_SECONDS_MAX: u64 = 300;
const WALL_TIME_MAX: Duration = Duration::from_secs(300);

/// A compiled component, ready for workers.
#[derive(Debug)]
pub struct Compiled {
    id: ComponentId,
    number: u32,
    code: Object,
    image_end: u64,
}

impl Compiled {
    /// The component's content hash.
    pub fn id(&self) -> ComponentId {
        self.id
    }

    /// Its number in this process.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn code(&self) -> &Object {
        &self.code
    }

    pub(crate) fn image_end(&self) -> u64 {
        self.image_end
    }
}

/// Compiles components, and keeps native code in a folder under the hash of what
/// it was made from and by.
#[derive(Debug)]
pub struct Compiler {
    cache: PathBuf,
    program: PathBuf,
}

static NUMBERS: AtomicU32 = AtomicU32::new(0);

impl Compiler {
    /// A compiler that keeps code in the folder `cache`; `program` is `host-worker`,
    /// which [`COMPILER_ARGUMENT`] makes compile.
    pub fn new(cache: PathBuf, program: PathBuf) -> Self {
        Compiler { cache, program }
    }

    /// The id of a component.
    pub fn id(component: &[u8]) -> ComponentId {
        ComponentId::from_digest(Sha256::digest(component).into())
    }

    /// The native code of a component: from the cache, or compiled now.
    pub async fn compile(&self, component: &[u8]) -> Result<Compiled, Fault> {
        let id = Compiler::id(component);
        let path = self.cache.join(format!("{id}-{}", sandbar_sandbox::build_id()));
        let kept = match std::fs::read(&path).ok().and_then(|bytes| Kept::parse(&bytes).ok()) {
            Some(kept) => kept?,
            None => {
                let bytes = self.run(component).await?;
                let kept = Kept::parse(&bytes)??;
                keep(&path, &bytes).map_err(|e| {
                    Fault::new(Code::Host, format!("compiled code can't be kept in {}: {e}", self.cache.display()))
                })?;
                kept
            }
        };
        let code = Object::new(&kept.code).map_err(|e| Fault::new(Code::Host, e.to_string()))?;
        Ok(Compiled { id, number: NUMBERS.fetch_add(1, Ordering::Relaxed), code, image_end: kept.image_end })
    }

    async fn run(&self, component: &[u8]) -> Result<Vec<u8>, Fault> {
        if component.len() as u64 > COMPONENT_BYTES_MAX {
            return Err(Fault::new(
                Code::Compile,
                format!("it takes {} bytes, the limit is {COMPONENT_BYTES_MAX}", component.len()),
            ));
        }
        // What is plainly wrong needs no process.
        sandbar_sandbox::check_binary(component)?;
        let host = |e: io::Error| Fault::new(Code::Host, format!("the compiler can't be run: {e}"));
        let mut input = tempfile::tempfile().map_err(host)?;
        input.write_all(component).and_then(|()| io::Seek::rewind(&mut input)).map_err(host)?;
        let child = Command::new(&self.program)
            .arg(COMPILER_ARGUMENT)
            .stdin(Stdio::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(host)?;
        match tokio::time::timeout(WALL_TIME_MAX, child.wait_with_output()).await {
            Err(_) => {
                Err(Fault::new(Code::Compile, format!("it did not compile within {} s", WALL_TIME_MAX.as_secs())))
            }
            Ok(Err(e)) => Err(host(e)),
            Ok(Ok(output)) if output.status.success() => Ok(output.stdout),
            Ok(Ok(output)) => {
                let words = String::from_utf8_lossy(&output.stderr);
                Err(Fault::new(Code::Compile, format!("the compiler ended with {} ({})", output.status, words.trim())))
            }
        }
    }
}

fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// What the compiling process writes, and the cache keeps.
#[derive(Serialize, Deserialize)]
struct Kept {
    image_end: u64,
    #[serde(with = "serde_bytes")]
    code: Vec<u8>,
}

impl Kept {
    /// The outer error: these bytes are not what a compiler writes. The inner:
    /// the component is at fault.
    fn parse(bytes: &[u8]) -> Result<Result<Kept, Fault>, Fault> {
        postcard::from_bytes(bytes)
            .map_err(|e| Fault::new(Code::Host, format!("the compiler's answer is malformed: {e}")))
    }
}

/// Compiles the component on standard input, and writes native code or a fault
/// to standard output.
pub fn run_compiler() -> io::Result<()> {
    let at_most = |n| Rlimit { current: Some(n), maximum: Some(n) };
    setrlimit(Resource::As, at_most(ADDRESS_SPACE_BYTES_MAX))?;
    setrlimit(Resource::Cpu, at_most(CPU_SECONDS_MAX))?;
    setrlimit(Resource::Core, at_most(0))?;
    setrlimit(Resource::Fsize, at_most(1 << 30))?;
    let mut component = Vec::new();
    io::stdin().lock().read_to_end(&mut component)?;
    let answer = sandbar_sandbox::compile(&component).map(|(code, shape)| Kept { image_end: shape.image_end, code });
    let bytes = postcard::to_stdvec(&answer).map_err(io::Error::other)?;
    io::stdout().write_all(&bytes)
}
