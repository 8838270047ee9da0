//! From `PATH#function` to a function that can be called.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbar_core::{Code, Fault, Function, FunctionKind, Limits, Parameter, TaskKind, hint};
use sandbar_jobs::JobProgress;
use sandbar_machine::write_atomically;
use sandbar_worker::{Binding, CallRequest, CallWork, CompiledComponent, LogLine};
use serde::Serialize;

use crate::build::{BuildError, build_crate, built_component};
use crate::{Node, NodeError};

/// A component with its functions.
pub(crate) struct Loaded {
    pub(crate) compiled: Arc<CompiledComponent>,
    pub(crate) functions: Vec<Function>,
    /// As it was named.
    pub(crate) path: PathBuf,
    /// The file of it: that of the path, or what its crate was built to.
    pub(crate) file: PathBuf,
}

/// The form of what is kept of a component's description: another host's may be another.
const DESCRIPTION: u32 = 3;

/// Components of a job, each built, compiled and described once.
pub(crate) struct Components {
    /// What each call of their functions may use.
    limits: Limits,
    by_path: HashMap<PathBuf, Arc<Loaded>>,
}

/// A function ready to be called.
#[derive(Clone)]
pub(crate) struct Callable {
    pub(crate) binding: Arc<Binding>,
    pub(crate) function: Function,
    pub(crate) component: Arc<Loaded>,
}

impl Components {
    pub(crate) fn new(limits: Limits) -> Components {
        Components { limits, by_path: HashMap::new() }
    }

    /// Resolves `udf`, which must be one of `kinds`. `key` says where it is named: `` `train.models[0].udf` ``.
    pub(crate) async fn resolve(
        &mut self,
        node: &Node,
        key: &str,
        udf: &str,
        kinds: &[FunctionKind],
        params: &Params,
    ) -> Result<Callable, NodeError> {
        let Some((path, name)) = udf.rsplit_once('#') else {
            return Err(NodeError::Job(format!(
                "{key}: `{udf}` is not PATH#function, where PATH is a component, the folder of a crate, or the name of a \
                 shipped one"
            )));
        };
        let component = self.load(node, key, Path::new(path)).await?;
        callable(component, (name, kinds, udf), params, self.limits)
    }

    /// The folder of the crate that has to be built before `udf` can be resolved, if one has to.
    ///
    /// # Errors
    /// When there is no such component or crate.
    pub(crate) fn stale_crate(node: &Node, key: &str, udf: &str) -> Result<Option<PathBuf>, NodeError> {
        match udf.rsplit_once('#') {
            Some((path, _)) => node.stale_crate(&node.find_component(key, Path::new(path))?),
            None => Ok(None),
        }
    }

    async fn load(&mut self, node: &Node, key: &str, path: &Path) -> Result<Arc<Loaded>, NodeError> {
        if let Some(loaded) = self.by_path.get(path) {
            return Ok(loaded.clone());
        }
        let found = node.find_component(key, path)?;
        let file = node.component_file(&found).await?;
        let component = File::open(&file).map_err(NodeError::file(&file))?;
        let loaded = Arc::new(Loaded { file, ..node.load(component, &found).await? });
        self.by_path.insert(path.to_owned(), loaded.clone());
        Ok(loaded)
    }
}

/// Logs what a call of a function logged.
pub(crate) fn log_lines(progress: &JobProgress, function: &str, lines: &[LogLine]) {
    lines.iter().for_each(|line| progress.log(format!("{function}: {}: {}", line.level, line.message)));
}

/// Parameters of a function.
pub(crate) type Params = serde_json::Map<String, serde_json::Value>;

/// Parameters without each one of them, with its name: to find out which of them a function refuses.
pub(crate) fn without_each(params: &Params) -> impl Iterator<Item = (&str, String)> {
    params.keys().map(|name| {
        let others: Params =
            params.iter().filter(|(other, _)| *other != name).map(|(k, v)| (k.clone(), v.clone())).collect();
        (name.as_str(), serde_json::Value::Object(others).to_string())
    })
}

/// A function of a component, for calls with these parameters. `label` is what errors call it.
pub(crate) fn callable(
    component: Arc<Loaded>,
    (name, kinds, label): (&str, &[FunctionKind], &str),
    params: &Params,
    limits: Limits,
) -> Result<Callable, NodeError> {
    let index = find(&component.functions, name, kinds).map_err(|f| f.of(label))?;
    let params =
        serde_json::to_string(params).map_err(|e| NodeError::Job(format!("the parameters of `{label}`: {e}")))?;
    let binding = Binding::new(component.compiled.clone(), index as u32, params, limits, label.to_owned())?;
    Ok(Callable { binding, function: component.functions[index].clone(), component })
}

fn find(functions: &[Function], name: &str, kinds: &[FunctionKind]) -> Result<usize, Fault> {
    let Some(index) = functions.iter().position(|f| f.name == name) else {
        let there: Vec<_> = functions.iter().map(|f| f.name.as_str()).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        let hint = hint(name, &functions.iter().map(|f| f.name.as_str()).collect::<Vec<_>>());
        return Err(Fault::new(Code::Export, format!("it has no function `{name}`{hint}; its functions are: {there}")));
    };
    if !kinds.contains(&functions[index].kind) {
        let wanted: Vec<_> = kinds.iter().map(|k| k.as_str()).collect();
        return Err(Fault::new(
            Code::Export,
            format!(
                "`{name}` is a {} function, where a {} is needed",
                functions[index].kind.as_str(),
                wanted.join(" or ")
            ),
        ));
    }
    Ok(index)
}

impl Node {
    /// The component at `path`: itself, or the one of the crate there, which is built if it is stale.
    pub(crate) async fn component_file(&self, path: &Path) -> Result<PathBuf, BuildError> {
        if !path.is_dir() {
            return Ok(path.to_owned());
        }
        let _timed = self.progress.time_build();
        let say = |text| self.progress.warn(text);
        build_crate(path, &self.options.cache, (!self.progress.is_quiet()).then_some(&say)).await
    }

    /// The folder of the crate at `path`, if it has to be built first.
    pub(crate) fn stale_crate(&self, path: &Path) -> Result<Option<PathBuf>, NodeError> {
        let is_stale = path.is_dir() && built_component(path, &self.options.cache)?.is_none();
        Ok(is_stale.then(|| path.to_owned()))
    }

    /// Compiles a component and asks it for its functions, in a sandbox.
    pub(crate) async fn load(&self, component: File, path: &Path) -> Result<Loaded, Fault> {
        let name = path.display().to_string();
        let timed = self.progress.time_build();
        let compiled = Arc::new(self.compiler.compile(component).await.map_err(|f| f.of(&name))?);
        drop(timed);
        let described = self.options.cache.join("described").join(format!("{}.{DESCRIPTION}.json", compiled.id()));
        let functions = match std::fs::read(&described).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
            Some(functions) => functions,
            None => {
                let functions = self.describe(compiled.clone(), &name).await?;
                // A cache that can't be written is slower, not wrong.
                let _ = serde_json::to_vec(&functions).map(|text| write_atomically(&described, &text));
                functions
            }
        };
        Ok(Loaded { compiled, functions, path: path.to_owned(), file: path.to_owned() })
    }

    async fn describe(&self, compiled: Arc<CompiledComponent>, name: &str) -> Result<Vec<Function>, Fault> {
        let limits = Limits { time_ms_max: self.options.limits.time_ms_max.min(10_000), ..self.options.limits };
        let binding = Binding::new(compiled, 0, "{}".into(), limits, name.to_owned())?;
        let request = CallRequest { binding, seed: 0, work: CallWork::Describe };
        self.pool.call(request).await.result?.product.into_functions()
    }
}

/// What a component is, for people.
#[derive(Debug, Serialize)]
pub struct Inspected {
    /// Its SHA-256.
    pub id: String,
    /// Its length.
    pub bytes: u64,
    /// The contract it keeps.
    pub contract: &'static str,
    /// What it imports.
    pub imports: Vec<String>,
    /// Its functions.
    pub functions: Vec<InspectedFunction>,
}

/// A function of a component, for people.
#[derive(Debug, Serialize)]
pub struct InspectedFunction {
    /// Its name.
    pub name: String,
    /// `scalar`, `batch` or `trainer`.
    pub kind: FunctionKind,
    /// The columns it needs, with their types where it says.
    pub arguments: Vec<String>,
    /// What it returns, where it says.
    pub returns: Vec<String>,
    /// The parameters that it takes, where it says.
    pub parameters: Vec<InspectedParameter>,
    /// One line.
    pub about: String,
}

/// A parameter of a function, for people.
#[derive(Debug, Serialize)]
pub struct InspectedParameter {
    /// Its key among the function's `params`.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its value where it is left out, where the component says that.
    pub default: Option<serde_json::Value>,
    /// Whether it can't be left out.
    pub required: bool,
}

/// Looks a component over: checks it, compiles it, asks it for its functions.
pub async fn inspect(node: &Node, path: &Path) -> Result<Inspected, NodeError> {
    let path = &node.find_component("", path)?;
    let file = node.component_file(path).await?;
    let bytes = std::fs::read(&file).map_err(NodeError::file(&file))?;
    let shape = sandbar_sandbox::check_binary(&bytes).map_err(|f| f.of(&path.display().to_string()))?;
    let loaded = node.load(File::open(&file).map_err(NodeError::file(&file))?, path).await?;
    let functions = loaded.functions.iter().map(|f| InspectedFunction {
        name: f.name.clone(),
        kind: f.kind,
        arguments: if f.kind == FunctionKind::Task { task_arguments(&f.arguments) } else { columns(&f.arguments) },
        returns: if f.kind == FunctionKind::Task { task_returns(&f.returns) } else { columns(&f.returns) },
        parameters: f.parameters.iter().map(parameter).collect(),
        about: f.about.clone(),
    });
    Ok(Inspected {
        id: loaded.compiled.id().to_string(),
        bytes: shape.bytes,
        contract: sandbar_sandbox::CONTRACT,
        imports: shape.imports,
        functions: functions.collect(),
    })
}

fn parameter(of: &Parameter) -> InspectedParameter {
    InspectedParameter {
        name: of.name.clone(),
        type_name: of.type_name.clone(),
        default: serde_json::from_str(&of.default).ok(),
        required: of.required,
    }
}

/// Name and type of each argument of a task.
fn task_arguments(encoded: &[u8]) -> Vec<String> {
    let arguments: Result<Vec<(String, String)>, _> = postcard::from_bytes(encoded);
    let malformed = |_| vec!["(malformed)".to_owned()];
    arguments.map_or_else(malformed, |all| all.into_iter().map(|(name, of)| format!("{name}: {of}")).collect())
}

/// The type of what a task returns, if that is anything, or of the items of its stream.
fn task_returns(encoded: &[u8]) -> Vec<String> {
    let returns: Result<(String, u32, TaskKind), _> = postcard::from_bytes(encoded);
    match returns {
        Err(_) => vec!["(malformed)".to_owned()],
        Ok((of, _, TaskKind::Generator)) => vec![format!("stream of {of}")],
        Ok((of, ..)) if of == "()" => Vec::new(),
        Ok((of, ..)) => vec![of],
    }
}

fn columns(encoded: &[u8]) -> Vec<String> {
    let Ok(schema) = decode(encoded) else { return vec!["(malformed)".to_owned()] };
    schema
        .fields()
        .iter()
        .map(|f| if f.data_type().is_null() { f.name().clone() } else { format!("{}: {}", f.name(), f.data_type()) })
        .collect()
}

/// The schema that a component says of its arguments or its result; empty bytes
/// are no columns.
pub(crate) fn decode(encoded: &[u8]) -> Result<arrow_schema::Schema, Fault> {
    if encoded.is_empty() {
        return Ok(arrow_schema::Schema::empty());
    }
    sandbar_batch::decode_schema(encoded)
        .map_err(|e| Fault::new(Code::BadOutput, format!("its description is malformed: {e}")))
}
