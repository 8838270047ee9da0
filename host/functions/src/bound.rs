//! Functions bound to parameters and limits.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::Schema;
use sandbar_core::{Code, ComponentId, Fault, Function, FunctionKind, Limits, hint};
use sandbar_jobs::JobProgress;
use sandbar_worker::{Binding, LogLine};

use crate::error::FunctionError;
use crate::loader::{FunctionLoader, LoadedComponent};

/// Parameters of a function.
pub type FunctionParams = serde_json::Map<String, serde_json::Value>;

/// A function that workers can call.
#[derive(Debug, Clone)]
pub struct BoundFunction {
    /// The function with its parameters and limits.
    pub binding: Arc<Binding>,
    /// Description of the function.
    pub function: Function,
    /// Component of the function.
    pub component: Arc<LoadedComponent>,
}

impl BoundFunction {
    /// Binds the function `name` of a component, which must be one of `kinds`. Errors call it `label`.
    pub(crate) fn new(
        component: Arc<LoadedComponent>,
        name: &FunctionName<'_>,
        params: &FunctionParams,
        limits: Limits,
    ) -> Result<BoundFunction, FunctionError> {
        let FunctionName { name, kinds, label } = *name;
        let index = find(&component.functions, name, kinds).map_err(|f| f.in_function(label))?;
        let params = serde_json::to_string(params)
            .map_err(|e| FunctionError::Invalid(format!("the parameters of `{label}`: {e}")))?;
        let binding = Binding::new(component.compiled.clone(), index as u32, params, limits, label.to_owned())?;
        Ok(BoundFunction { binding, function: component.functions[index].clone(), component })
    }
}

/// A function to look up in a component.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionName<'a> {
    pub(crate) name: &'a str,
    /// Accepted kinds.
    pub(crate) kinds: &'a [FunctionKind],
    /// Name in errors.
    pub(crate) label: &'a str,
}

/// Functions of one job. Each component is built, compiled and described once.
#[derive(Debug)]
pub struct JobFunctions {
    loader: FunctionLoader,
    /// Limits of each call.
    limits: Limits,
    by_path: HashMap<PathBuf, Arc<LoadedComponent>>,
    /// The only components that may be loaded, for functions whose paths are names only.
    named: Option<Arc<[NamedComponent]>>,
}

/// A component under the path by which functions know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedComponent {
    /// Path before the `#` of functions. Nothing opens it.
    pub name: String,
    /// Path at which its user found it, for messages and origins. Nothing opens it.
    pub found: PathBuf,
    /// The component's file.
    pub file: PathBuf,
    /// The component.
    pub component: ComponentId,
}

impl JobFunctions {
    /// Creates an empty set, for calls within `limits`. With `named`, only these components are loaded.
    pub fn new(loader: FunctionLoader, limits: Limits, named: Option<Arc<[NamedComponent]>>) -> JobFunctions {
        JobFunctions { loader, limits, by_path: HashMap::new(), named }
    }

    /// Binds `udf` (`PATH#function`), which must be one of `kinds`. `key` names the job file's key for errors, e.g.
    /// `` `train.models[0].udf` ``.
    ///
    /// # Errors
    /// Fails if the component or function does not exist or is of another kind, or if a build fails.
    pub async fn bind(
        &mut self,
        key: &str,
        udf: &str,
        kinds: &[FunctionKind],
        params: &FunctionParams,
    ) -> Result<BoundFunction, FunctionError> {
        let Some((path, name)) = udf.rsplit_once('#') else {
            return Err(FunctionError::Invalid(format!(
                "{key}: `{udf}` is not PATH#function, where PATH is a component, the folder of a crate, or the name of a \
                 shipped one"
            )));
        };
        let component = self.load(key, Path::new(path)).await?;
        BoundFunction::new(component, &FunctionName { name, kinds, label: udf }, params, self.limits)
    }

    /// Returns the crate that must be built before `udf` can be bound, if any.
    ///
    /// # Errors
    /// Fails if the component or crate does not exist.
    pub fn stale_crate(&self, key: &str, udf: &str) -> Result<Option<PathBuf>, FunctionError> {
        match udf.rsplit_once('#') {
            Some((path, _)) => self.loader.stale_crate(&self.loader.find(key, Path::new(path))?),
            None => Ok(None),
        }
    }

    async fn load(&mut self, key: &str, path: &Path) -> Result<Arc<LoadedComponent>, FunctionError> {
        if let Some(loaded) = self.by_path.get(path) {
            return Ok(loaded.clone());
        }
        let loaded = Arc::new(match &self.named {
            Some(named) => self.load_named(key, path, named).await?,
            None => self.loader.load_path(key, path).await?,
        });
        self.by_path.insert(path.to_owned(), loaded.clone());
        Ok(loaded)
    }

    async fn load_named(
        &self,
        key: &str,
        path: &Path,
        named: &[NamedComponent],
    ) -> Result<LoadedComponent, FunctionError> {
        let name = path.display();
        let Some(component) = named.iter().find(|component| Path::new(&component.name) == path) else {
            return Err(FunctionError::NotFound(format!("{key}: the job comes without the component `{name}`")));
        };
        let fault = |message: String| FunctionError::Fault(Fault::new(Code::Host, message));
        // Its user must not learn where it is stored.
        let file = File::open(&component.file).map_err(|e| fault(format!("component `{name}`: {e}")))?;
        let loaded = self.loader.load(file, &component.found).await?;
        match loaded.compiled.id() == component.component {
            true => Ok(LoadedComponent { file: component.file.clone(), ..loaded }),
            false => Err(fault(format!("the stored component `{name}` is damaged; submit the job again"))),
        }
    }
}

/// Returns the parameters without each one of them, as JSON, with its name: for finding the parameter that a function
/// refuses.
pub fn without_each(params: &FunctionParams) -> impl Iterator<Item = (&str, String)> {
    params.keys().map(|name| {
        let others: FunctionParams =
            params.iter().filter(|(other, _)| *other != name).map(|(k, v)| (k.clone(), v.clone())).collect();
        (name.as_str(), serde_json::Value::Object(others).to_string())
    })
}

/// Reports the log lines of a function's call.
pub fn log_lines(progress: &JobProgress, function: &str, lines: &[LogLine]) {
    lines.iter().for_each(|line| progress.log(format!("{function}: {}: {}", line.level, line.message)));
}

/// Decodes the schema that a component declares for arguments or results. Empty bytes are a schema without columns.
///
/// # Errors
/// Fails if the bytes are malformed.
pub fn decode_schema(encoded: &[u8]) -> Result<Schema, Fault> {
    if encoded.is_empty() {
        return Ok(Schema::empty());
    }
    sandbar_batch::decode_schema(encoded)
        .map_err(|e| Fault::new(Code::BadOutput, format!("its description is malformed: {e}")))
}

fn find(functions: &[Function], name: &str, kinds: &[FunctionKind]) -> Result<usize, Fault> {
    let Some(index) = functions.iter().position(|f| f.name == name) else {
        let names: Vec<_> = functions.iter().map(|f| f.name.as_str()).collect();
        let list = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let hint = hint(name, &names);
        return Err(Fault::new(Code::Export, format!("it has no function `{name}`{hint}; its functions are: {list}")));
    };
    if !kinds.contains(&functions[index].kind) {
        let expected: Vec<_> = kinds.iter().map(|k| k.as_str()).collect();
        return Err(Fault::new(
            Code::Export,
            format!(
                "`{name}` is a {} function, where a {} is needed",
                functions[index].kind.as_str(),
                expected.join(" or ")
            ),
        ));
    }
    Ok(index)
}
