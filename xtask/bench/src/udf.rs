//! A scalar function of two integers, on few rows and on many.

use std::hint::black_box;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};

use crate::failure::Failure;
use crate::paths;
use crate::report::Report;
use crate::sandbox::{Data, LoadedGuest, total};
use crate::timing::{Effort, least_alternating};

pub fn run(report: Report, effort: Effort) -> Result<(), Failure> {
    let guest = LoadedGuest::new(&paths::guest("udfs/taxi")?)?;
    for (rows, name) in [(1024, "1024 rows"), (1_000_000, "1M rows")] {
        let (a, b): (Vec<i64>, Vec<i64>) = (0..rows).map(|row| (row, 3 * row)).unzip();
        let column = |values: &[i64]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("a", column(&a)), ("b", column(&b))])?;
        let encoded = sandbar_batch::encode(&batch)?;
        let data = Data::new(&encoded.body())?;
        let [mut copied, mut read] = [guest.instantiate(&data)?, guest.instantiate_in_place(&data)?];
        for sandbox in [&mut copied, &mut read] {
            sandbox.open(guest.function("add")?, "{}", 0)?;
            sandbox.process(&encoded.header)?;
        }
        let mut read = || read.process(&encoded.header).expect("the first call succeeded");
        let mut copied = || {
            data.start_call();
            copied.process(&encoded.header).expect("the first call succeeded");
        };
        // The same function, natively, into a reused buffer.
        let mut sums: Vec<i64> = Vec::new();
        let mut kept = || {
            sums.clear();
            sums.extend(black_box(&a).iter().zip(black_box(&b)).map(|(a, b)| taxi::add(*a, *b)));
            black_box(&sums);
        };
        // The result is also read.
        let mut summed: Vec<i64> = Vec::new();
        let mut kept_and_read = || {
            summed.clear();
            summed.extend(black_box(&a).iter().zip(black_box(&b)).map(|(a, b)| taxi::add(*a, *b)));
            black_box(total(black_box(&summed)));
        };
        // A new column for each batch, as query engines allocate one.
        let mut new = || {
            let sums = black_box(&a).iter().zip(black_box(&b)).map(|(a, b)| taxi::add(*a, *b));
            black_box(Int64Array::from_iter_values(sums));
        };
        let all: [&mut dyn FnMut(); 5] = [&mut copied, &mut kept, &mut new, &mut read, &mut kept_and_read];
        let [copied, kept, new, read, kept_and_read] = least_alternating(effort.time, all).map(|seconds| seconds * 1e6);
        let (copy, in_place) = (format!("udf/{name}/warm"), format!("udf/{name}/warm, read in place"));
        report.compare(&copy, copied, "µs", "native", kept);
        report.compare(&copy, copied, "µs", "native, into a new column", new);
        report.compare(&in_place, read, "µs", "native, read as well", kept_and_read);
    }
    Ok(())
}
