//! Jobs that write rows: read, filter, transform, write.

use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::StreamExt as _;
use futures::stream;
use sandbar_core::TenantId;
use sandbar_dataset::Scan;
use sandbar_jobs::Phase;
use serde::Serialize;

use crate::error::TrainError;
use crate::execution::JobExecution;
use crate::job::Job;
use crate::ordered_morsels::{MorselItems, OrderedMorsels};
use crate::pipeline::{Pipeline, chunk_seed, transformed_schema};
use crate::transform::Transform;
use crate::{group_blocks, output};

/// Summary of a job that writes rows.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RowsSummary {
    /// The tenant that submitted the job.
    pub tenant: TenantId,
    /// Rows that passed the filter.
    pub rows: u64,
    /// Rows after the transforms, which were written.
    pub rows_written: u64,
    /// Rows that the transforms dropped.
    pub rows_dropped: u64,
    /// Number of files written.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Duration of building and compiling functions, in seconds.
    pub build_seconds: f64,
    /// Duration of everything else, in seconds.
    pub seconds: f64,
    /// Sum of the peak memory of all processes, in bytes.
    pub peak_memory_bytes: u64,
    /// Output file, or root folder of a partitioned output.
    pub output: String,
}

/// Seed of the transforms. A job that does not train has no seed.
const SEED: u64 = 0;

impl JobExecution {
    /// Runs a job that writes rows.
    pub(crate) async fn write_rows(&self, job: &Job, transforms: Vec<Transform>) -> Result<RowsSummary, TrainError> {
        let pipeline = Pipeline::new(transforms, self.calls.clone(), None);
        let scan = Arc::new(self.open_scan(job, &pipeline, None).await?);
        let target = match &self.sources {
            Some(sources) => output::row_target_at(&job.output, &sources.output)?,
            None => output::writable_row_target(&job.output, scan.files().iter().map(String::as_str))?,
        };
        let morsels = scan.morsels().len();
        self.progress.enter(Phase::Writing, morsels as u64);
        let schema = transformed_schema(job, &pipeline, scan.schema(), chunk_seed(SEED, 0, 0)).await?;
        let mut output = target.create(&schema)?;
        let finder = self.failing_row_finder(job, SEED)?;
        let transform = {
            let (pipeline, scan) = (pipeline.clone(), scan.clone());
            move |morsel| transform_morsel(pipeline.clone(), &scan, morsel)
        };
        let concurrency = self.morsels_at_once(&scan);
        let mut chunks = OrderedMorsels::new(morsels, concurrency, self.progress.clone(), transform);
        let mut rows = 0;
        while let Some((morsel, item)) = chunks.next().await {
            let chunk = match item {
                Ok(chunk) => chunk,
                Err(error) => return Err(finder.explain(&pipeline, &scan, morsel, error).await),
            };
            rows += chunk.rows_read;
            self.progress.add_rows(chunk.rows_read);
            for batch in chunk.batches {
                group_blocks::check_columns(&batch, &schema)?;
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

/// Transformed rows of a chunk.
struct TransformedChunk {
    /// Number of input rows.
    rows_read: u64,
    batches: Vec<RecordBatch>,
}

/// Transforms the chunks of a morsel.
fn transform_morsel(pipeline: Arc<Pipeline>, scan: &Scan, morsel: usize) -> MorselItems<TransformedChunk> {
    let batches = match scan.read(morsel) {
        Ok(batches) => batches,
        Err(e) => return stream::iter([Err(e.into())]).boxed(),
    };
    // One call transforms while the batches of the next are decoded.
    let chunks = pipeline.chunks(batches).enumerate().map(move |(number, chunk)| async move {
        let chunk = chunk?;
        let rows_read = chunk.rows() as u64;
        let seed = chunk_seed(SEED, morsel as u64, number as u64);
        Ok::<_, TrainError>(TransformedChunk { rows_read, batches: chunk.run(seed).await? })
    });
    chunks.buffered(2).boxed()
}
