//! Job files: read rows, transform them, train a model for each group or write the rows, and predict with stored
//! models.
//!
//! Goals: results depend on the job and its data alone, not on the number of workers or nodes; failures name the row.
//! Non-goals: programs, the network, how workers run functions.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod call_input;
mod error;
mod execution;
mod failing_row;
mod group_blocks;
mod job;
mod job_run;
mod metadata;
mod named_files;
mod options;
mod ordered_morsels;
mod output;
mod params;
mod pipeline;
mod plan;
mod predict;
mod results;
mod rows;
mod runner;
mod sources;
mod spawned;
mod stored_rows;
mod train;
mod transform;
mod units;

pub use error::TrainError;
pub use group_blocks::create_block_collector;
pub use job::{InputSpec, Job, JobFileError, ModelSpec, OutputSpec, Override, TrainSpec, TransformSpec};
pub use job_run::JobOutcome;
#[doc(hidden)]
pub use metadata::fuzz_model_metadata;
pub use named_files::{FoundComponent, NamedJobFiles, NamedPredictionFiles};
pub use options::JobRunnerOptions;
pub use plan::{ColumnPlan, FunctionPlan, InputPlan, JobPlan, ModelPlan, OutputPlan, TrainPlan};
pub use predict::{PredictSpec, PredictSummary};
pub use results::{FittedModels, GroupFailure, TextTable};
pub use rows::RowsSummary;
pub use runner::JobRunner;
pub use sandbar_dataset::NamedFile;
pub use sandbar_functions::{ModelComponent, NamedComponent};
pub use sources::JobSources;
pub use stored_rows::create_row_group_reader;
pub use train::TrainSummary;
pub use units::{RemoteTrainers, TrainerRef, UnitLog, UnitRequest, UnitServer, UnitTrainer};
