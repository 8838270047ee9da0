//! Transforms: what they need, and running them over a batch.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, Schema};
use sandbar_core::{Code, Fault, Kind, Seed};
use sandbar_worker::{Pool, Request, Work};

use crate::function::{Callable, Components, decode};
use crate::input;
use crate::job::{Columns, TransformSpec};
use crate::progress::Progress;
use crate::{Node, NodeError};

/// A transform, ready to run.
pub(crate) struct Transform {
    callable: Callable,
    /// Column of the input for each argument; none means all columns as they are.
    columns: Option<Vec<(String, String)>>,
    /// Types of a scalar function's arguments.
    types: Vec<DataType>,
    output: Option<String>,
    udf: String,
    progress: Arc<Progress>,
}

/// The columns that some step needs: these, or all there are.
pub(crate) type Needed = Option<Vec<String>>;

/// Runs transforms one after another over a batch; `seed` says which batch it is.
pub(crate) async fn run_all(
    transforms: &[Transform],
    pool: &Pool,
    mut batch: RecordBatch,
    seed: u64,
) -> Result<RecordBatch, Fault> {
    for (step, transform) in transforms.iter().enumerate() {
        let seed = Seed::new(seed).with(&(step as u64).to_le_bytes()).value();
        batch = transform.run(pool, batch, seed).await?;
    }
    Ok(batch)
}

impl Transform {
    pub(crate) async fn new(
        node: &Node,
        components: &mut Components,
        spec: &TransformSpec,
    ) -> Result<Transform, NodeError> {
        let callable = components.resolve(node, &spec.udf, &[Kind::Scalar, Kind::Batch], &spec.params).await?;
        let arguments = decode(&callable.function.arguments).map_err(|f| f.of(&spec.udf))?;
        let scalar = callable.function.kind == Kind::Scalar;
        let columns = columns(spec, &arguments, scalar).map_err(|e| NodeError::Job(format!("`{}`: {e}", spec.udf)))?;
        let types = arguments.fields().iter().map(|f| f.data_type().clone()).collect();
        let output = scalar.then(|| spec.output.clone().unwrap_or_else(|| callable.function.name.clone()));
        Ok(Transform { callable, columns, types, output, udf: spec.udf.clone(), progress: node.progress.clone() })
    }

    /// The columns needed before this step, from those needed behind it.
    pub(crate) fn needs(&self, behind: Needed) -> Needed {
        let own = self.columns.as_ref().map(|c| c.iter().map(|(_, column)| column.clone()).collect::<Vec<_>>());
        match &self.output {
            None => own,
            Some(output) => {
                let mut all: Vec<String> = behind?.into_iter().filter(|c| c != output).collect();
                all.extend(own?);
                all.sort();
                all.dedup();
                Some(all)
            }
        }
    }

    /// Runs it over a batch, in a worker.
    pub(crate) async fn run(&self, pool: &Pool, batch: RecordBatch, seed: u64) -> Result<RecordBatch, Fault> {
        let input = self.project(&batch).map_err(|f| f.of(&self.udf))?;
        let work = Work::Process(input::of_batch(pool, &input).map_err(|f| f.of(&self.udf))?);
        let request = Request { binding: self.callable.binding.clone(), seed, work, without: Vec::new() };
        let called = pool.call(request).await;
        self.progress.log(&self.udf, &called.log);
        let out = called.result?.batches;
        let wrong = |what: String| Fault::new(Code::BadOutput, what).of(&self.udf);
        let Some(first) = out.first() else { return Err(wrong("it hands back no batch".into())) };
        let joined = match out.as_slice() {
            [only] => only.clone(),
            several => arrow_select::concat::concat_batches(first.schema_ref(), several)
                .map_err(|e| wrong(format!("its batches differ: {e}")))?,
        };
        let Some(name) = &self.output else { return Ok(joined) };
        if joined.num_rows() != batch.num_rows() || joined.num_columns() != 1 {
            return Err(wrong(format!(
                "it hands back {} columns of {} rows, a scalar function gives one of {}",
                joined.num_columns(),
                joined.num_rows(),
                batch.num_rows()
            )));
        }
        with_column(&batch, name, &joined).map_err(|e| wrong(e.to_string()))
    }

    fn project(&self, batch: &RecordBatch) -> Result<RecordBatch, Fault> {
        let Some(columns) = &self.columns else { return Ok(batch.clone()) };
        let mut fields = Vec::with_capacity(columns.len());
        let mut arrays = Vec::with_capacity(columns.len());
        for (i, (argument, column)) in columns.iter().enumerate() {
            let Some(array) = batch.column_by_name(column) else {
                let there: Vec<_> = batch.schema_ref().fields().iter().map(|f| f.name().as_str()).collect();
                return Err(Fault::new(
                    Code::Columns,
                    format!("it needs column `{column}`; there are {}", there.join(", ")),
                ));
            };
            let wanted = self.types.get(i).filter(|t| self.output.is_some() && *t != array.data_type());
            let array = match wanted {
                None => array.clone(),
                Some(wanted) => {
                    cast_with_options(array, wanted, &CastOptions { safe: false, ..CastOptions::default() }).map_err(
                        |e| {
                            Fault::new(
                                Code::Columns,
                                format!(
                                    "column `{column}` has type {}, its argument `{argument}` is {wanted}: {e}",
                                    array.data_type()
                                ),
                            )
                        },
                    )?
                }
            };
            fields.push(Field::new(argument, array.data_type().clone(), true));
            arrays.push(array);
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
            .map_err(|e| Fault::new(Code::Columns, e.to_string()))
    }
}

fn columns(spec: &TransformSpec, arguments: &Schema, scalar: bool) -> Result<Option<Vec<(String, String)>>, String> {
    let names: Vec<String> = arguments.fields().iter().map(|f| f.name().clone()).collect();
    match &spec.columns {
        None if names.is_empty() => Ok(None),
        None => Ok(Some(names.iter().map(|n| (n.clone(), n.clone())).collect())),
        Some(Columns::Names(columns)) if scalar || columns.len() == names.len() => {
            if columns.len() != names.len() {
                return Err(format!(
                    "it takes {} columns ({}), `columns` names {}",
                    names.len(),
                    names.join(", "),
                    columns.len()
                ));
            }
            Ok(Some(names.into_iter().zip(columns.iter().cloned()).collect()))
        }
        Some(Columns::Names(columns)) => Ok(Some(columns.iter().map(|c| (c.clone(), c.clone())).collect())),
        Some(Columns::ByArgument(map)) => {
            if let Some(unknown) = map.keys().find(|k| !names.is_empty() && !names.contains(k)) {
                return Err(format!("it has no argument `{unknown}`; its arguments are {}", names.join(", ")));
            }
            let names = if names.is_empty() { map.keys().cloned().collect() } else { names };
            Ok(Some(names.into_iter().map(|n| (n.clone(), map.get(&n).cloned().unwrap_or(n))).collect()))
        }
    }
}

/// `batch` with one more column, or another of that name.
fn with_column(batch: &RecordBatch, name: &str, column: &RecordBatch) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let mut fields: Vec<_> = batch.schema_ref().fields().iter().cloned().collect();
    let mut arrays = batch.columns().to_vec();
    let added = column.column(0).clone();
    let field = Arc::new(Field::new(name, added.data_type().clone(), true));
    match fields.iter().position(|f| f.name() == name) {
        Some(at) => {
            fields[at] = field;
            arrays[at] = added;
        }
        None => {
            fields.push(field);
            arrays.push(added);
        }
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
}
