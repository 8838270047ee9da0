//! Loading of components: build, compile, describe.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbar_core::{ComponentId, Fault, Function, Limits, TenantId};
use sandbar_jobs::JobProgress;
use sandbar_machine::write_atomically;
use sandbar_worker::{Binding, CallRequest, CallWork, CompiledComponent, Compiler, Pool};

use crate::build::{BuildError, build_crate, built_component};
use crate::error::FunctionError;
use crate::find::find_component;

/// Version of cached descriptions; hosts of other versions may share the cache.
const DESCRIPTION_VERSION: u32 = 3;
/// Maximum duration of describing a component.
const DESCRIBE_TIME_MS_MAX: u64 = 10_000;

/// Options of a [`FunctionLoader`].
#[derive(Debug, Clone)]
pub struct LoaderOptions {
    /// Limits for describing components.
    pub limits: Limits,
    /// Cache folder, for compiled code, descriptions, and components of models.
    pub cache: PathBuf,
    /// Folders of shipped functions.
    pub shipped: Vec<PathBuf>,
}

/// Finds, builds, compiles and describes components.
#[derive(Debug, Clone)]
pub struct FunctionLoader {
    pool: Arc<Pool>,
    compiler: Compiler,
    progress: Arc<JobProgress>,
    options: Arc<LoaderOptions>,
    /// Tenant whose components it loads. Tenants share no cached code and descriptions: how long a load takes would tell
    /// whether another tenant has the component.
    tenant: TenantId,
}

/// A compiled component and its functions.
#[derive(Debug)]
pub struct LoadedComponent {
    /// Compiled code.
    pub compiled: Arc<CompiledComponent>,
    /// Functions in the component's order.
    pub functions: Vec<Function>,
    /// Path as the user named it.
    pub path: PathBuf,
    /// Component file: the path itself, or the build output of the crate at the path.
    pub file: PathBuf,
}

impl FunctionLoader {
    /// Creates a loader. Builds and compilations are reported to `progress`.
    pub fn new(
        pool: Arc<Pool>,
        compiler: Compiler,
        progress: Arc<JobProgress>,
        options: LoaderOptions,
    ) -> FunctionLoader {
        FunctionLoader { pool, compiler, progress, options: Arc::new(options), tenant: TenantId::DEFAULT }
    }

    /// Returns a loader that reports to another progress.
    pub fn with_progress(&self, progress: Arc<JobProgress>) -> FunctionLoader {
        FunctionLoader { progress, ..self.clone() }
    }

    /// Returns a loader of a tenant's components.
    pub fn for_tenant(&self, tenant: TenantId) -> FunctionLoader {
        FunctionLoader { tenant, ..self.clone() }
    }

    /// Returns whether it loads this node's own components, and not a tenant's.
    pub(crate) fn is_own(&self) -> bool {
        self.tenant == TenantId::DEFAULT
    }

    /// Returns the options.
    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// Finds a component or crate; see [`find_component`].
    ///
    /// # Errors
    /// Fails if it does not exist.
    pub fn find(&self, key: &str, path: &Path) -> Result<PathBuf, FunctionError> {
        find_component(&self.options.shipped, key, path)
    }

    /// Returns the component file for `path`: the path itself, or the build output if it is a crate's folder. Builds
    /// the crate if its component is stale.
    ///
    /// # Errors
    /// Fails if the build fails.
    pub async fn component_file(&self, path: &Path) -> Result<PathBuf, BuildError> {
        if !path.is_dir() {
            return Ok(path.to_owned());
        }
        let _timer = self.progress.time_build();
        let report = |text| self.progress.warn(text);
        build_crate(path, &self.options.cache, (!self.progress.is_quiet()).then_some(&report)).await
    }

    /// Returns `path` if it is a crate whose component is stale.
    ///
    /// # Errors
    /// Fails if the folder is not a crate.
    pub fn stale_crate(&self, path: &Path) -> Result<Option<PathBuf>, FunctionError> {
        let is_stale = path.is_dir() && built_component(path, &self.options.cache)?.is_none();
        Ok(is_stale.then(|| path.to_owned()))
    }

    /// Finds, builds and loads the component or crate at `path`.
    ///
    /// # Errors
    /// Fails if it does not exist, its build fails, or it is not a valid component.
    pub async fn load_path(&self, key: &str, path: &Path) -> Result<LoadedComponent, FunctionError> {
        let found = self.find(key, path)?;
        let file = self.component_file(&found).await?;
        let component = File::open(&file).map_err(FunctionError::file(&file))?;
        Ok(LoadedComponent { file, ..self.load(component, &found).await? })
    }

    /// Compiles a component, and reads the list of its functions in a sandbox.
    ///
    /// # Errors
    /// Fails if it is not a valid component.
    pub async fn load(&self, component: File, path: &Path) -> Result<LoadedComponent, Fault> {
        let name = path.display().to_string();
        let timer = self.progress.time_build();
        let compiled = Arc::new(self.compiler.compile(component, self.tenant).await.map_err(|f| f.in_function(&name))?);
        drop(timer);
        let cached = format!("{}.{DESCRIPTION_VERSION}.json", compiled.id());
        let folder = self.options.cache.join("described");
        let cached = match self.tenant {
            TenantId::DEFAULT => folder.join(cached),
            tenant => folder.join("tenants").join(tenant.to_string()).join(cached),
        };
        let functions = match std::fs::read(&cached).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
            Some(functions) => functions,
            None => {
                let functions = self.describe(compiled.clone(), &name).await?;
                // Without a writable cache the host is slower, not wrong.
                let _ = serde_json::to_vec(&functions).map(|text| write_atomically(&cached, &text));
                functions
            }
        };
        Ok(LoadedComponent { compiled, functions, path: path.to_owned(), file: path.to_owned() })
    }

    async fn describe(&self, compiled: Arc<CompiledComponent>, name: &str) -> Result<Vec<Function>, Fault> {
        let limits = self.options.limits;
        let limits = Limits { time_ms_max: limits.time_ms_max.min(DESCRIBE_TIME_MS_MAX), ..limits };
        let binding = Binding::new(compiled, 0, "{}".into(), limits, name.to_owned())?;
        let request = CallRequest { binding, seed: 0, work: CallWork::Describe };
        self.pool.call(request).await.result?.product.into_functions()
    }

    /// Returns the cache's path of a component.
    pub fn cached_component(&self, id: ComponentId) -> PathBuf {
        cached_component(&self.options.cache, id)
    }
}

/// Returns a cache's path of a component.
pub fn cached_component(cache: &Path, id: ComponentId) -> PathBuf {
    cache.join("components").join(format!("{id}.wasm"))
}
