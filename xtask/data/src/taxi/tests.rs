//! Properties of files of trips, as a reader sees them.

use std::fs::{self, File};

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Float64Type, Int32Type, TimestampMicrosecondType};
use arrow_array::{Array as _, RecordBatch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::*;
use crate::atomic_file::test_folder::TestFolder;

fn quiet(_: &str, _: u64) {}

fn read(path: &Path) -> Vec<RecordBatch> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    reader.with_batch_size(1 << 20).build().unwrap().map(Result::unwrap).collect()
}

#[test]
fn the_same_arguments_give_the_same_bytes_whatever_the_number_of_months() {
    let folder = TestFolder::new("taxi-bytes");
    let once = write(&folder.join("a"), 20_000, 1, &quiet).unwrap();
    let more = write(&folder.join("b"), 20_000, 3, &quiet).unwrap();
    assert_eq!((once.len(), more.len()), (1, 3));
    assert!(more[2].ends_with("yellow_tripdata_2019-03.parquet"));
    assert_eq!(fs::read(&once[0]).unwrap(), fs::read(&more[0]).unwrap());
    assert_ne!(fs::read(&more[0]).unwrap(), fs::read(&more[1]).unwrap());
}

#[test]
fn columns_are_as_published() {
    let folder = TestFolder::new("taxi-schema");
    let files = write(&folder.join(""), 50_000, 1, &quiet).unwrap();
    let batch = &read(&files[0])[0];
    assert_eq!(batch.schema().fields(), schema().fields());
    assert_eq!(batch.num_rows(), 50_000);
    for column in batch.columns() {
        let name = batch.schema().field(batch.columns().iter().position(|c| std::ptr::eq(c, column)).unwrap()).clone();
        let missing = ["passenger_count", "pickup_location_id", "dropoff_location_id"].contains(&name.name().as_str());
        assert_eq!(column.null_count() > 0, missing, "{name}");
        assert!(column.null_count() < 500, "{name}");
    }
}

#[test]
fn values_are_in_range() {
    let folder = TestFolder::new("taxi-range");
    let files = write(&folder.join(""), 50_000, 1, &quiet).unwrap();
    let batch = &read(&files[0])[0];
    for name in ["pickup_location_id", "dropoff_location_id"] {
        let zones = batch.column_by_name(name).unwrap().as_primitive::<Int32Type>();
        assert!(zones.iter().flatten().all(|zone| (1..=ZONES).contains(&zone)), "{name}");
    }
    let times = |name| batch.column_by_name(name).unwrap().as_primitive::<TimestampMicrosecondType>().values();
    let (pickups, dropoffs) = (times("pickup_at"), times("dropoff_at"));
    let january = 1_546_300_800_000_000..1_548_979_200_000_000;
    assert!(pickups.iter().all(|at| january.contains(at) && at % 1_000_000 == 0));
    assert!(pickups.iter().zip(dropoffs).all(|(from, to)| (30_000_000..20_000_000_000).contains(&(to - from))));
    assert!(pickups.windows(2).all(|pair| pair[1] - pair[0] > -1_800_000_000), "approximately in order");
    for name in ["trip_distance", "fare_amount", "total_amount"] {
        let amounts = batch.column_by_name(name).unwrap().as_primitive::<Float64Type>();
        assert!(amounts.values().iter().all(|amount| (0.1..1_000.0).contains(amount)), "{name}");
    }
}

#[test]
fn row_groups_have_a_mebi_of_rows() {
    let folder = TestFolder::new("taxi-groups");
    let files = write(&folder.join(""), (1 << 20) + 5, 1, &quiet).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&files[0]).unwrap()).unwrap();
    let rows: Vec<i64> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(rows, [1 << 20, 5]);
}

#[test]
fn too_many_months_are_rejected() {
    assert!(write(Path::new("/nonexistent"), 1, MONTHS_MAX + 1, &quiet).is_err());
}
