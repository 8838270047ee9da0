//! A job that writes rows: read, filter, transform, write.

use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::StreamExt as _;
use futures::stream;
use sandbar_dataset::Scan;
use sandbar_jobs::Phase;
use serde::Serialize;

use crate::error::TrainError;
use crate::failing_row::{FailingRowFinder, chunk_seed};
use crate::job::Job;
use crate::ordered::{Items, Ordered};
use crate::runner::{JobRunner, transformed_schema};
use crate::transform::{Steps, Transform};
use crate::{group_blocks, output};

/// What came of a job that writes rows.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RowsSummary {
    /// Rows read, those that the filter leaves out not counted.
    pub rows: u64,
    /// Rows behind the transforms, which were written.
    pub rows_written: u64,
    /// Rows that transforms left out.
    pub rows_dropped: u64,
    /// Files written.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Seconds that building and compiling its functions took.
    pub build_seconds: f64,
    /// Seconds that all else took.
    pub seconds: f64,
    /// Most memory of all processes together, each at its peak.
    pub peak_memory_bytes: u64,
    /// The file with the rows, or the folder of folders.
    pub output: String,
}

/// Transforms get no seed of a job that does not train.
const SEED: u64 = 0;

impl JobRunner {
    /// Runs a job that writes rows.
    pub(crate) async fn write_rows(&self, job: &Job, transforms: Vec<Transform>) -> Result<RowsSummary, TrainError> {
        let steps = Arc::new(Steps { transforms, pool: self.pool.clone(), behind: None });
        let scan = Arc::new(self.open_scan(job, &steps, None).await?);
        let target = output::rows_target(&job.output, scan.files().iter().map(String::as_str))?;
        let morsels = scan.morsels().len();
        self.progress.enter(Phase::Writing, morsels as u64);
        let schema = transformed_schema(job, &steps, &scan, chunk_seed(SEED, 0, 0)).await?;
        let mut output = target.create(&schema)?;
        let finder = FailingRowFinder::new(job, self.options.spill.clone(), SEED);
        let make = {
            let (steps, scan) = (steps.clone(), scan.clone());
            move |morsel| transformed(steps.clone(), &scan, morsel)
        };
        let mut made = Ordered::new(morsels, self.morsels_at_once(&scan), self.progress.clone(), make);
        let mut rows = 0;
        while let Some((morsel, item)) = made.next().await {
            let (read, batches) = match item {
                Ok(made) => made,
                Err(error) => return Err(finder.explain(&steps, &scan, morsel, error).await),
            };
            rows += read;
            self.progress.add_rows(read);
            for batch in batches {
                group_blocks::same_columns(&batch, &schema)?;
                output.write(&batch)?;
            }
        }
        let written = output.finish()?;
        Ok(RowsSummary {
            rows,
            rows_written: written.rows,
            rows_dropped: rows.saturating_sub(written.rows),
            files: written.files,
            bytes: written.bytes,
            output: job.output.path.clone(),
            ..RowsSummary::default()
        })
    }
}

/// What the transforms make of the chunks of a morsel, each with how many rows were read for it.
fn transformed(steps: Arc<Steps>, scan: &Scan, morsel: usize) -> Items<(u64, Vec<RecordBatch>)> {
    let batches = match scan.read(morsel) {
        Ok(batches) => batches,
        Err(e) => return stream::iter([Err(e.into())]).boxed(),
    };
    // Two calls at a time: one transforms while batches for the next are decoded.
    let made = steps.chunks(batches).enumerate().map(move |(number, chunk)| async move {
        let chunk = chunk?;
        let rows = chunk.rows() as u64;
        let seed = chunk_seed(SEED, morsel as u64, number as u64);
        Ok::<_, TrainError>((rows, chunk.run(seed).await?))
    });
    made.buffered(2).boxed()
}
