//! Input files, and reference results computed from them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampMicrosecondType};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use sandbar_testnet::{cache, component, workspace};

const TAXI_ROWS: u64 = 20_000;
const LARGE_TAXI_ROWS: u64 = 1_000_000;
const TAXI_MONTHS: u32 = 2;

/// Returns the arguments that run the taxi example and write `models.parquet`.
pub fn taxi_line(files: &[PathBuf]) -> Vec<String> {
    let job = workspace().join("examples/taxi.toml").display().to_string();
    let mut line: Vec<String> = ["submit", &job, "--json", "--output", "models.parquet"].map(str::to_owned).into();
    line.extend(files.iter().flat_map(|file| ["--input".to_owned(), file.display().to_string()]));
    let clean = format!("transform.0.udf=\"{}#clean\"", component("udfs/taxi").display());
    let trainers = component("udfs/models");
    let models_of = ["linear", "tree", "tree"].iter().enumerate();
    let models = models_of.map(|(i, f)| format!("train.models.{i}.udf=\"{}#{f}\"", trainers.display()));
    line.extend(std::iter::once(clean).chain(models).flat_map(|set| ["--set".to_owned(), set]));
    line
}

/// Returns two months of generated taxi trips, ordered by month. All tests of a process share the files.
///
/// # Panics
/// Panics if the files can't be written.
pub fn taxi_files() -> &'static [PathBuf] {
    static FILES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FILES.get_or_init(|| {
        let folder = cache().join("taxi");
        sandbar_data::taxi::write(&folder, TAXI_ROWS, TAXI_MONTHS, &|_, _| {}).expect("taxi data can be written")
    })
}

/// Writes two months of 500,000 generated trips each, enough for several work units of groups.
///
/// # Panics
/// Panics if the files can't be written.
pub fn large_taxi_files() -> Vec<PathBuf> {
    let folder = cache().join("taxi-large");
    sandbar_data::taxi::write(&folder, LARGE_TAXI_ROWS, TAXI_MONTHS, &|_, _| {}).expect("taxi data can be written")
}

/// The columns that the taxi job trains on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaxiTrip {
    /// Pickup zone. The job's filter drops trips without one.
    pub pickup: Option<i32>,
    /// Drop-off zone, -1 if unknown.
    pub dropoff: i32,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Reads the trips of a file in file order.
///
/// # Panics
/// Panics if the file is not a file of trips.
pub fn taxi_trips(path: &Path) -> Vec<TaxiTrip> {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).and_then(|b| b.build()).expect("the file is Parquet");
    let mut trips = Vec::new();
    for batch in reader {
        let batch = batch.expect("a batch can be read");
        let zones =
            |name: &str| batch.column_by_name(name).expect("a column of zones").as_primitive::<Int32Type>().clone();
        let times = |name: &str| {
            batch.column_by_name(name).expect("a column of times").as_primitive::<TimestampMicrosecondType>().clone()
        };
        let (pickup, dropoff) = (zones("pickup_location_id"), zones("dropoff_location_id"));
        let (from, to) = (times("pickup_at"), times("dropoff_at"));
        trips.extend((0..batch.num_rows()).map(|row| TaxiTrip {
            pickup: pickup.is_valid(row).then(|| pickup.value(row)),
            dropoff: if dropoff.is_valid(row) { dropoff.value(row) } else { -1 },
            seconds: (to.value(row) - from.value(row)) as f64 / 1e6,
        }));
    }
    trips
}

/// Computes slope and intercept of the least-squares line through the pairs (x, y) from centred sums. The slope is 0 if
/// all x are equal.
pub fn least_squares(pairs: &[(f64, f64)]) -> (f64, f64) {
    let rows = pairs.len() as f64;
    let mean_x = pairs.iter().map(|(x, _)| x).sum::<f64>() / rows;
    let mean_y = pairs.iter().map(|(_, y)| y).sum::<f64>() / rows;
    let xy: f64 = pairs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let xx: f64 = pairs.iter().map(|(x, _)| (x - mean_x) * (x - mean_x)).sum();
    let slope = if xx == 0.0 { 0.0 } else { xy / xx };
    (slope, mean_y - slope * mean_x)
}
