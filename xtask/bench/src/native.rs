//! The training job without sandboxes: the same reading, grouping, functions and scores, in threads of this process.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use arrow_array::{ArrayRef, BinaryArray, Float64Array, RecordBatch, StringArray};
use arrow_schema::{Field, Schema};
use futures::StreamExt as _;
use futures::executor::block_on;
use models::forest::RandomForestParams;
use models::linear::LinearParams;
use models::tree::RegressionTreeParams;
use sandbar_dataset::{
    Grouper, Grouping, HeapUnitMemory, MemoryBudget, ParquetOutput, Partitions, RowGroupReader, Scan, ScanOptions,
    ScanSource, UnitGroup, WorkUnit,
};
use sandbar_guest::Features;

use crate::failure::Failure;
use crate::job::{Bench, Model};
use crate::paths;

/// First argument of a process that runs a job natively; the second is the job as JSON.
pub const ARGUMENT: &str = "__native";

/// Runs a job and returns the number of models.
pub fn run(bench: &Bench) -> Result<u64, Failure> {
    let grouping = Grouping {
        keys: bench.keys.clone(),
        features: bench.features.clone(),
        target: bench.target.clone(),
        per_file: bench.per_file,
        test: 0.25,
        seed: 201,
        min_rows: 4,
        ..Grouping::default()
    };
    let raw = ["pickup_at", "dropoff_at", "pickup_location_id", "dropoff_location_id"];
    let used = bench.keys.iter().chain(&bench.features).chain([&bench.target]);
    let columns = if bench.clean { raw.map(str::to_owned).to_vec() } else { used.cloned().collect() };
    let source = ScanSource {
        paths: bench.input.iter().map(|p| p.to_string_lossy().into_owned()).collect(),
        filter: bench.filter.clone(),
        columns: Some(columns),
        ..ScanSource::default()
    };
    let options = ScanOptions::default();
    let batch_rows = options.batch_rows;
    let scan = block_on(Scan::open(source, options))?;
    let cleaned = |batch: RecordBatch| if bench.clean { taxi::clean(batch) } else { Ok(batch) };
    let schema = cleaned(RecordBatch::new_empty(scan.schema().clone()))?.schema();
    let grouper = Grouper::new(grouping, &schema, scan.files().to_vec(), MemoryBudget::default())?;
    in_threads(scan.morsels().len(), |morsel| {
        let mut groups = grouper.morsel(morsel as u64, scan.morsels()[morsel].file)?;
        if let Some(stored) = block_on(scan.row_groups(morsel)) {
            for group in stored {
                for batch in RowGroupReader::new(group.file().clone(), group.description(), batch_rows)? {
                    groups.push(&cleaned(batch?.with_schema(scan.schema().clone())?)?)?;
                }
            }
            return Ok(groups.finish()?);
        }
        let mut batches = scan.read(morsel)?;
        while let Some(batch) = block_on(batches.next()) {
            groups.push(&cleaned(batch?)?)?;
        }
        Ok(groups.finish()?)
    })?;
    let partitions = grouper.finish()?;
    let rows = train(&partitions, &bench.models)?;
    write(&paths::data()?.join("native.parquet"), rows)
}

/// Calls `work` with each of `0..count` on one thread per processor.
fn in_threads(count: usize, work: impl Fn(usize) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let all = || -> Result<(), Failure> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(());
            }
            work(index)?;
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(|| all().map_err(|e| e.to_string()))).collect();
        started.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)?;
        Ok(())
    })
}

#[derive(Default)]
struct Rows {
    scores: [Vec<f64>; 4],
    params: Vec<String>,
    models: Vec<Vec<u8>>,
}

fn train(partitions: &Partitions, models: &[Model]) -> Result<Rows, Failure> {
    let rows = Mutex::new(Rows::default());
    // Each pair of partition and model is a piece of work, so that one group with many models keeps all threads busy.
    let cut: Vec<Mutex<Cut>> = (0..partitions.len()).map(|_| Mutex::default()).collect();
    in_threads(partitions.len() * models.len(), |index| {
        let (partition, model) = (index / models.len(), index % models.len());
        let units = {
            let mut cut = lock(&cut[partition]);
            if cut.uses == 0 {
                cut.units =
                    Some(Arc::new(partitions.units(partition, |shape| Ok::<_, Failure>(HeapUnitMemory::new(shape)))?));
            }
            cut.uses += 1;
            // The last model takes the units, so that they are freed after it.
            if cut.uses == models.len() { cut.units.take() } else { cut.units.clone() }
        };
        let mut own = Rows::default();
        for unit in units.iter().flat_map(|units| units.iter()) {
            fit_unit(unit, models[model], &mut own)?;
        }
        let mut all = lock(&rows);
        for (all, own) in all.scores.iter_mut().zip(own.scores) {
            all.extend(own);
        }
        all.params.extend(own.params);
        all.models.extend(own.models);
        Ok(())
    })?;
    Ok(rows.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The work units of a partition, kept until the last model takes them.
#[derive(Default)]
struct Cut {
    units: Option<Arc<Vec<WorkUnit>>>,
    uses: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fit_unit(unit: &WorkUnit, model: Model, rows: &mut Rows) -> Result<(), Failure> {
    let columns: Vec<&[f64]> = (0..unit.shape.columns).map(|column| unit.column(column)).collect();
    let (target, features) = columns.split_last().ok_or("a work unit has no target column")?;
    let mut first_test = 0;
    for group in &unit.groups {
        let tests = &unit.test_targets()[first_test..][..group.test_rows as usize];
        first_test += tests.len();
        let rows_of = |first: usize, count: usize| -> (Vec<&[f64]>, Vec<f64>) {
            let columns: Vec<&[f64]> = features.iter().map(|c| &c[first..first + count]).collect();
            let joined = columns.concat();
            (columns, joined)
        };
        let (first, train, test) = (group.first_row as usize, group.train_rows as usize, group.test_rows as usize);
        let (columns, joined) = rows_of(first, train);
        let (_, test_joined) = rows_of(first + train, test);
        let train_rows = Features::new(&joined, train, train, columns.len());
        let test_rows = Features::new(&test_joined, test, test, columns.len());
        fit(group, model, &columns, train_rows, &target[first..first + train], test_rows, tests, rows)?;
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the parts of one group")]
fn fit(
    group: &UnitGroup,
    model: Model,
    columns: &[&[f64]],
    features: Features<'_>,
    target: &[f64],
    test_features: Features<'_>,
    tests: &[f64],
    rows: &mut Rows,
) -> Result<(), Failure> {
    let seed = Some(group.seed);
    match model {
        Model::Linear => settle(&LinearParams::default().fit_features(features, target)?, test_features, tests, rows),
        Model::Tree(splitter) => {
            let params = RegressionTreeParams { splitter, seed, ..RegressionTreeParams::default() };
            settle(&params.fit_columns(columns, target)?, test_features, tests, rows)
        }
        Model::Forest(n_estimators) => {
            let params = RandomForestParams { n_estimators, seed, ..RandomForestParams::default() };
            settle(&params.fit_columns(columns, target)?, test_features, tests, rows)
        }
    }
}

/// Predicts, scores and serialises, as the guest SDK and the worker do.
fn settle<M: sandbar_guest::Model>(
    model: &M,
    features: Features<'_>,
    tests: &[f64],
    rows: &mut Rows,
) -> Result<(), Failure> {
    let mut predictions = vec![0.0; tests.len()];
    model.predict(features, &mut predictions);
    let count = tests.len() as f64;
    let (mut absolute, mut squared) = (0.0, 0.0);
    for (test, prediction) in tests.iter().zip(&predictions) {
        absolute += (test - prediction).abs();
        squared += (test - prediction).powi(2);
    }
    let mean = tests.iter().sum::<f64>() / count;
    let spread: f64 = tests.iter().map(|test| (test - mean).powi(2)).sum();
    let scores = [absolute / count, squared / count, (squared / count).sqrt(), 1.0 - squared / spread];
    rows.scores.iter_mut().zip(scores).for_each(|(all, score)| all.push(score));
    rows.params.push(serde_json::to_string(&model.params())?);
    rows.models.push(postcard::to_stdvec(model)?);
    Ok(())
}

fn write(path: &Path, rows: Rows) -> Result<u64, Failure> {
    let count = rows.models.len() as u64;
    let mut columns: Vec<(&str, ArrayRef)> = Vec::new();
    for (name, scores) in ["mae", "mse", "rmse", "r2"].into_iter().zip(rows.scores) {
        columns.push((name, Arc::new(Float64Array::from(scores))));
    }
    columns.push(("params", Arc::new(StringArray::from(rows.params))));
    columns.push(("model", Arc::new(BinaryArray::from_iter_values(rows.models))));
    let field = |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), false);
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema.clone(), columns.into_iter().map(|(_, c)| c).collect())?;
    let mut output = ParquetOutput::create(path, schema, Vec::new())?;
    output.write(&batch)?;
    output.finish()?;
    Ok(count)
}
