//! Descriptions of components for `host inspect`.

use std::fs::File;
use std::path::Path;

use sandbar_core::{FunctionKind, Parameter, TaskKind};
use serde::Serialize;

use crate::bound::decode_schema;
use crate::error::FunctionError;
use crate::loader::FunctionLoader;

/// A component.
#[derive(Debug, Serialize)]
pub struct Inspected {
    /// SHA-256 of the component.
    pub id: String,
    /// Size of the component.
    pub bytes: u64,
    /// Version of the contract that it implements.
    pub contract: &'static str,
    /// Imports.
    pub imports: Vec<String>,
    /// Functions.
    pub functions: Vec<InspectedFunction>,
}

/// A function of a component.
#[derive(Debug, Serialize)]
pub struct InspectedFunction {
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: FunctionKind,
    /// Argument columns, with their types if declared.
    pub arguments: Vec<String>,
    /// Result columns, if declared.
    pub returns: Vec<String>,
    /// Parameters, if declared.
    pub parameters: Vec<InspectedParameter>,
    /// One-line description.
    pub about: String,
}

/// A parameter of a function.
#[derive(Debug, Serialize)]
pub struct InspectedParameter {
    /// Key in the function's `params`.
    pub name: String,
    /// Type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Default value, if declared.
    pub default: Option<serde_json::Value>,
    /// Whether it is required.
    pub required: bool,
}

impl FunctionLoader {
    /// Inspects the component or crate at `path`: validates it, compiles it, and lists its functions.
    ///
    /// # Errors
    /// Fails if it does not exist, its build fails, or it is not a valid component.
    pub async fn inspect(&self, path: &Path) -> Result<Inspected, FunctionError> {
        let path = &self.find("", path)?;
        let file = self.component_file(path).await?;
        let bytes = std::fs::read(&file).map_err(FunctionError::file(&file))?;
        let shape = sandbar_sandbox::check_binary(&bytes).map_err(|f| f.in_function(&path.display().to_string()))?;
        let loaded = self.load(File::open(&file).map_err(FunctionError::file(&file))?, path).await?;
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
}

fn parameter(parameter_of: &Parameter) -> InspectedParameter {
    InspectedParameter {
        name: parameter_of.name.clone(),
        type_name: parameter_of.type_name.clone(),
        default: serde_json::from_str(&parameter_of.default).ok(),
        required: parameter_of.required,
    }
}

/// Returns name and type of each argument of a task.
fn task_arguments(encoded: &[u8]) -> Vec<String> {
    let arguments: Result<Vec<(String, String)>, _> = postcard::from_bytes(encoded);
    let malformed = |_| vec!["(malformed)".to_owned()];
    arguments.map_or_else(malformed, |all| {
        all.into_iter().map(|(name, parameter_of)| format!("{name}: {parameter_of}")).collect()
    })
}

/// Returns the type of a task's result, if it has one, or of its stream's items.
fn task_returns(encoded: &[u8]) -> Vec<String> {
    let returns: Result<(String, u32, TaskKind), _> = postcard::from_bytes(encoded);
    match returns {
        Err(_) => vec!["(malformed)".to_owned()],
        Ok((parameter_of, _, TaskKind::Generator)) => vec![format!("stream of {parameter_of}")],
        Ok((parameter_of, ..)) if parameter_of == "()" => Vec::new(),
        Ok((parameter_of, ..)) => vec![parameter_of],
    }
}

fn columns(encoded: &[u8]) -> Vec<String> {
    let Ok(schema) = decode_schema(encoded) else { return vec!["(malformed)".to_owned()] };
    schema
        .fields()
        .iter()
        .map(|f| if f.data_type().is_null() { f.name().clone() } else { format!("{}: {}", f.name(), f.data_type()) })
        .collect()
}
