//! Compiles components to native code in a separate process, and caches the code by content.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{MemfdFlags, memfd_create};
use sandbar_core::{Code, ComponentId, Fault, TenantId};
use sandbar_machine::{cores, evict_oldest, memory_limit, write_atomically};
use sandbar_process::{ProcessKind, Profile, confine, spawn};
use sandbar_store::SealedFile;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::compile_queue::{CompileLimits, CompileQueue};

/// The argument with which `host-worker` compiles standard input to standard output.
pub const COMPILER_ARGUMENT: &str = "compiler";

/// Maximum bytes of a component.
const COMPONENT_BYTES_MAX: u64 = 256 << 20;
/// Maximum bytes of the compiler's output, and of its error text.
const OUTPUT_BYTES_MAX: u64 = 1 << 30;
const STDERR_BYTES_MAX: u64 = 4 << 10;
/// Maximum time of a compiling process.
const WALL_TIME_MAX: Duration = Duration::from_secs(300);
/// Maximum compiled components of a tenant in the cache, and maximum bytes of them. The least recently used ones are
/// evicted. Those of the machine's own user stay.
const CACHED_MAX: usize = 256;
const CACHED_BYTES_MAX: u64 = 1 << 30;

/// A compiled component, ready for workers.
#[derive(Debug)]
pub struct CompiledComponent {
    id: ComponentId,
    number: u32,
    code: SealedFile,
    memory: MemoryShape,
    /// Initial memory image, if the component's sandboxes are reused.
    image: Option<SealedFile>,
}

/// Properties of a component's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryShape {
    /// End address of its initialised data.
    pub image_end: u64,
    /// Present if its sandboxes can be reused.
    pub initial: Option<InitialMemory>,
}

/// Initial memory of a component: zero except for an image, which is stored after the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InitialMemory {
    pub memory_bytes: u64,
    pub image_start: u64,
    pub image_bytes: u64,
}

impl CompiledComponent {
    /// Returns the component's content hash.
    pub fn id(&self) -> ComponentId {
        self.id
    }

    /// Returns its number within this process.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the hash of the [placeholder](Self::placeholder).
    #[doc(hidden)]
    pub fn placeholder_id() -> ComponentId {
        Compiler::id(&[])
    }

    /// Creates a component that no worker can run, for tests that run nothing.
    ///
    /// # Errors
    /// When there is no memory.
    #[doc(hidden)]
    pub fn placeholder() -> io::Result<CompiledComponent> {
        let (id, number) = (CompiledComponent::placeholder_id(), NUMBERS.fetch_add(1, Ordering::Relaxed));
        let memory = MemoryShape { image_end: 0, initial: None };
        Ok(CompiledComponent { id, number, code: SealedFile::new(&[0])?, memory, image: None })
    }

    pub(crate) fn code(&self) -> &SealedFile {
        &self.code
    }

    pub(crate) fn image_end(&self) -> u64 {
        self.memory.image_end
    }

    /// Returns the initial memory with its image, if the component's sandboxes are reused.
    pub(crate) fn initial(&self) -> Option<(InitialMemory, &SealedFile)> {
        Some((self.memory.initial?, self.image.as_ref()?))
    }

    fn new(id: ComponentId, code: SealedFile, memory: MemoryShape, image: Option<SealedFile>) -> CompiledComponent {
        CompiledComponent { id, number: NUMBERS.fetch_add(1, Ordering::Relaxed), code, memory, image }
    }
}

/// Compiles components, and caches native code in a folder by the hash of the component and of the compiler's build.
/// Tenants have folders of their own. A few components are compiled at a time, one of each tenant.
#[derive(Debug, Clone)]
pub struct Compiler {
    cache: PathBuf,
    program: PathBuf,
    queue: Arc<CompileQueue>,
}

static NUMBERS: AtomicU32 = AtomicU32::new(0);

impl Compiler {
    /// Creates a compiler that caches code in the folder `cache`; `program` is `host-worker`, which compiles when it
    /// gets [`COMPILER_ARGUMENT`].
    pub fn new(cache: PathBuf, program: PathBuf) -> Self {
        Compiler { cache, program, queue: Arc::new(CompileQueue::new(cores(), memory_limit().map(|(bytes, _)| bytes))) }
    }

    /// Returns the id of a component.
    pub fn id(component: &[u8]) -> ComponentId {
        ComponentId::from_digest(Sha256::digest(component).into())
    }

    /// Returns the native code of a tenant's component, which starts at the start of `file`: from the cache, or compiled
    /// now. A cache hit needs only the component's hash. If a component can't be compiled, that is remembered for a while.
    pub async fn compile(&self, mut file: File, tenant: TenantId) -> Result<CompiledComponent, Fault> {
        let unreadable = |e: io::Error| Fault::new(Code::NotAComponent, format!("it can't be read: {e}"));
        let hashed = tokio::task::spawn_blocking(move || hash(&file).map(|id| (id, file))).await;
        let (id, read) = hashed.map_err(io::Error::other).flatten().map_err(unreadable)?;
        file = read;
        if let Some(cached) = self.cached(id, tenant) {
            return cached;
        }
        let bytes = file.metadata().map_err(unreadable)?.len();
        let _turn = self.queue.enter(tenant, CompileLimits::of(bytes)).await;
        // Another call may have compiled it meanwhile.
        if let Some(cached) = self.cached(id, tenant) {
            return cached;
        }
        if let Some(fault) = self.queue.failure(tenant, id) {
            return Err(fault);
        }
        let compiled = self.compile_now(file, tenant).await;
        if let Err(fault) = &compiled
            && fault.code != Code::Host
        {
            self.queue.remember_failure(tenant, id, fault);
        }
        compiled
    }

    async fn compile_now(&self, mut file: File, tenant: TenantId) -> Result<CompiledComponent, Fault> {
        let unreadable = |e: io::Error| Fault::new(Code::NotAComponent, format!("it can't be read: {e}"));
        let mut component = Vec::new();
        file.rewind()
            .and_then(|()| file.take(COMPONENT_BYTES_MAX + 1).read_to_end(&mut component))
            .map_err(unreadable)?;
        let mut compiler_output = self.run(&component).await?;
        // A compiler that its component has taken over may report an error of any length.
        let last = &compiler_output[compiler_output.len().saturating_sub(TRAILER_BYTES_MAX as usize)..];
        let end = Trailer::parse(last, compiler_output.len() as u64);
        let Trailer { code_bytes, compiled } =
            end.ok_or_else(|| Fault::new(Code::Host, "the compiler's output is malformed"))?;
        let memory = compiled?;
        // The id of the bytes that were compiled: the file may have changed since it was hashed.
        let id = Compiler::id(&component);
        let path = self.path_of(id, tenant);
        compiler_output.extend_from_slice(id.digest());
        // A cache that cannot be written makes later starts slower; it is not an error.
        let _ = write_atomically(&path, &compiler_output);
        if tenant != TenantId::DEFAULT {
            evict_oldest(&self.folder_of(tenant), CACHED_MAX, CACHED_BYTES_MAX, |other| other == path);
        }
        let (code, rest) = compiler_output.split_at(code_bytes as usize);
        let object = |bytes: &[u8]| SealedFile::new(bytes).map_err(|e| Fault::new(Code::Host, e.to_string()));
        let image = memory.initial.map(|initial| object(&rest[..initial.image_bytes as usize])).transpose()?;
        Ok(CompiledComponent::new(id, object(code)?, memory, image))
    }

    fn folder_of(&self, tenant: TenantId) -> PathBuf {
        match tenant {
            TenantId::DEFAULT => self.cache.clone(),
            tenant => self.cache.join("tenants").join(tenant.to_string()),
        }
    }

    fn path_of(&self, id: ComponentId, tenant: TenantId) -> PathBuf {
        self.folder_of(tenant).join(format!("{id}-{}.{CACHE_EXTENSION}", sandbar_sandbox::build_id()))
    }

    /// Returns the cached result, if there is one.
    fn cached(&self, id: ComponentId, tenant: TenantId) -> Option<Result<CompiledComponent, Fault>> {
        let file = File::open(self.path_of(id, tenant)).ok()?;
        if tenant != TenantId::DEFAULT {
            // Eviction is by modification time.
            let _ = file.set_modified(SystemTime::now());
        }
        let bytes = file.metadata().ok()?.len();
        let mut end = vec![0; bytes.min(TRAILER_BYTES_MAX) as usize];
        let at = bytes - end.len() as u64;
        file.read_exact_at(&mut end, at).ok()?;
        // A file that was copied or renamed does not give a component the code of another one.
        let end = end.strip_suffix(id.digest())?;
        let Trailer { code_bytes, compiled } = Trailer::parse(end, bytes - id.digest().len() as u64)?;
        let host = |e: io::Error| Fault::new(Code::Host, e.to_string());
        Some(compiled.and_then(|memory| {
            let code = SealedFile::of_file(file.as_fd(), code_bytes).map_err(host)?;
            let image = memory.initial.map(|initial| {
                let mut image = vec![0; initial.image_bytes as usize];
                file.read_exact_at(&mut image, code_bytes)?;
                SealedFile::new(&image)
            });
            Ok(CompiledComponent::new(id, code, memory, image.transpose().map_err(host)?))
        }))
    }

    async fn run(&self, component: &[u8]) -> Result<Vec<u8>, Fault> {
        if component.len() as u64 > COMPONENT_BYTES_MAX {
            return Err(Fault::new(
                Code::Compile,
                format!("it takes {} bytes, the limit is {COMPONENT_BYTES_MAX}", component.len()),
            ));
        }
        // Rejects clearly invalid components without starting a process.
        sandbar_sandbox::check_binary(component)?;
        let host = |e: io::Error| Fault::new(Code::Host, format!("the compiler can't be run: {e}"));
        // A memory file, so that no folder for temporary files is needed.
        let mut input = File::from(memfd_create("component", MemfdFlags::CLOEXEC).map_err(|e| host(e.into()))?);
        input.write_all(component).and_then(|()| input.rewind()).map_err(host)?;
        let mut command = Command::new(&self.program);
        command
            .arg(COMPILER_ARGUMENT)
            .env_clear()
            .env(confine::NODE_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Its own process group, for the same reason as workers: see `child.rs`.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = spawn::in_own_group(|| command.spawn()).map_err(host)?;
        drop(command);
        let (compiler_output, error_text) = (child.stdout.take(), child.stderr.take());
        // A compiler that its component has taken over may write without end.
        let output = async {
            let all = tokio::try_join!(
                read_up_to(compiler_output, OUTPUT_BYTES_MAX + 1),
                read_up_to(error_text, STDERR_BYTES_MAX)
            )?;
            Ok((child.wait().await?, all))
        };
        match tokio::time::timeout(WALL_TIME_MAX, output).await {
            Err(_) => {
                Err(Fault::new(Code::Compile, format!("it did not compile within {} s", WALL_TIME_MAX.as_secs())))
            }
            Ok(Err(e)) => Err(host(e)),
            Ok(Ok((_, (compiler_output, _)))) if compiler_output.len() as u64 > OUTPUT_BYTES_MAX => {
                Err(Fault::new(Code::Compile, format!("its native code takes more than {OUTPUT_BYTES_MAX} bytes")))
            }
            Ok(Ok((status, (compiler_output, _)))) if status.success() => Ok(compiler_output),
            Ok(Ok((status, (_, error_text)))) => {
                let error_text = String::from_utf8_lossy(&error_text);
                let CompileLimits { address_space_bytes, cpu_seconds } = CompileLimits::of(component.len() as u64);
                Err(Fault::new(
                    Code::Compile,
                    format!(
                        "the compiler ended with {status} ({}); for a component of {} bytes it may use {} MiB of address \
                         space and {cpu_seconds} s of processor time",
                        error_text.trim(),
                        component.len(),
                        address_space_bytes >> 20
                    ),
                ))
            }
        }
    }
}

/// Reads up to `bytes_max` bytes of a process's output, then closes the pipe, so that the process's next write fails.
async fn read_up_to(from: Option<impl AsyncRead + Unpin>, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(bytes_max).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Returns the SHA-256 of a file, up to one byte more than the component limit.
fn hash(file: &File) -> io::Result<ComponentId> {
    let mut hasher = Sha256::new();
    io::copy(&mut file.take(COMPONENT_BYTES_MAX + 1), &mut hasher)?;
    Ok(ComponentId::from_digest(hasher.finalize().into()))
}

/// Trailer of a compiler's output. The layout of the output is: code, memory image, postcard of the memory's shape or of
/// the compile error, length of that (u32, little-endian), magic number. In a cache file the component's SHA-256 follows.
struct Trailer {
    /// Bytes of code before the image.
    code_bytes: u64,
    compiled: Result<MemoryShape, Fault>,
}

const MAGIC: [u8; 4] = *b"SBC3";
/// File name extension of cache files. It contains the format version, so that hosts of different versions do not
/// overwrite each other's files.
const CACHE_EXTENSION: &str = "sbc3";
/// Maximum bytes of the trailer.
const TRAILER_BYTES_MAX: u64 = 64 << 10;

impl Trailer {
    fn append(compiled: &Result<MemoryShape, Fault>, to: &mut Vec<u8>) -> Result<(), postcard::Error> {
        let compiled = postcard::to_stdvec(compiled)?;
        to.extend_from_slice(&compiled);
        to.extend_from_slice(&(compiled.len() as u32).to_le_bytes());
        to.extend_from_slice(&MAGIC);
        Ok(())
    }

    /// Parses the trailer from the last bytes of `bytes` bytes. Returns `None` if they are malformed.
    fn parse(last: &[u8], bytes: u64) -> Option<Trailer> {
        let rest = last.strip_suffix(&MAGIC)?;
        let (rest, length) = rest.split_last_chunk()?;
        let length = u32::from_le_bytes(*length) as usize;
        let compiled = rest.get(rest.len().checked_sub(length)?..)?;
        let before = bytes - (length + size_of::<u32>() + MAGIC.len()) as u64;
        let compiled: Result<MemoryShape, Fault> = postcard::from_bytes(compiled).ok()?;
        let initial = compiled.as_ref().ok().and_then(|memory| memory.initial);
        let image_bytes = initial.map_or(0, |initial| initial.image_bytes);
        Some(Trailer { code_bytes: before.checked_sub(image_bytes)?, compiled })
    }
}

/// Compiles the component on standard input, and writes native code or a fault to standard output.
pub fn run_compiler() -> io::Result<()> {
    confine::start(ProcessKind::Compiler)?;
    // The node gives the component as a file, whose length it has checked.
    let limits = CompileLimits::of(rustix::fs::fstat(io::stdin())?.st_size.try_into().unwrap_or(0));
    let mut component = Vec::new();
    io::stdin().lock().read_to_end(&mut component)?;
    // A confined process cannot read its control group's files, and cannot start threads.
    let threads = cores();
    let start_threads =
        || rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().map_err(io::Error::other);
    confine::confine(&Profile::compiler(limits.address_space_bytes, limits.cpu_seconds), start_threads)?;
    let (mut compiler_output, compiled) = match sandbar_sandbox::compile(&component) {
        Ok((mut code, shape)) => {
            let initial = shape.initial.map(|initial| {
                code.extend_from_slice(&initial.image);
                let (memory_bytes, image_start) = (initial.memory_bytes, initial.image_start);
                InitialMemory { memory_bytes, image_start, image_bytes: initial.image.len() as u64 }
            });
            (code, Ok(MemoryShape { image_end: shape.image_end, initial }))
        }
        Err(fault) => (Vec::new(), Err(fault)),
    };
    Trailer::append(&compiled, &mut compiler_output).map_err(io::Error::other)?;
    io::stdout().write_all(&compiler_output)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn compiler_output_is_read_back(
            code in vec(any::<u8>(), 0..2000),
            image_end in proptest::option::of(any::<u64>()),
            image in proptest::option::of(vec(any::<u8>(), 0..500)),
            seen in 0u64..3000,
        ) {
            let initial = |image: &Vec<u8>| InitialMemory {
                memory_bytes: 65_536,
                image_start: 1024,
                image_bytes: image.len() as u64,
            };
            let initial = image.as_ref().map(initial).filter(|_| image_end.is_some());
            let compiled = image_end.map(|image_end| MemoryShape { image_end, initial });
            let compiled = compiled.ok_or_else(|| Fault::new(Code::Compile, "no"));
            let mut compiler_output = code.clone();
            compiler_output.extend(image.iter().flatten().filter(|_| initial.is_some()));
            Trailer::append(&compiled, &mut compiler_output).unwrap();
            let bytes = compiler_output.len() as u64;
            let last = &compiler_output[(bytes - bytes.min(seen.max(100))) as usize..];
            let end = Trailer::parse(last, bytes).unwrap();
            prop_assert_eq!(end.code_bytes, code.len() as u64);
            prop_assert_eq!(end.compiled.ok(), compiled.ok());
        }

        #[test]
        fn any_bytes_are_an_end_or_none(mut bytes in vec(any::<u8>(), 0..100), length in 0u32..120) {
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&MAGIC);
            if let Some(end) = Trailer::parse(&bytes, bytes.len() as u64) {
                prop_assert!(end.code_bytes <= bytes.len() as u64);
            }
        }
    }

    #[test]
    fn cached_code_belongs_to_its_component() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = Compiler::new(folder.path().to_owned(), PathBuf::from("host-worker"));
        let [good, other] = [[1; 32], [2; 32]].map(ComponentId::from_digest);
        let memory = MemoryShape { image_end: 7, initial: None };
        let mut file = b"code".to_vec();
        Trailer::append(&Ok(memory), &mut file).unwrap();
        file.extend_from_slice(good.digest());
        for id in [good, other] {
            std::fs::write(compiler.path_of(id, TenantId::DEFAULT), &file).unwrap();
        }
        let cached = compiler.cached(good, TenantId::DEFAULT).expect("it is in the cache").expect("it was compiled");
        assert_eq!((cached.id(), cached.image_end()), (good, 7));
        assert!(compiler.cached(other, TenantId::DEFAULT).is_none(), "the file is a copy of another component's");
    }
}
