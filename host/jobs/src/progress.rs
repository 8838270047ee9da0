//! Progress of a job, for the command line and other observers.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::progress_bars::ProgressBars;
use crate::rows::ProgressRow;

/// Maximum log lines that a job shows; further lines are counted.
const LOG_LINES_MAX: u64 = 1000;

/// Counters of the running job.
#[derive(Debug, Default)]
pub struct JobProgress {
    phase: AtomicU8,
    parts_done: AtomicU64,
    parts: AtomicU64,
    rows: AtomicU64,
    models: AtomicU64,
    /// Progress that the tasks of the current program report.
    bars: Mutex<Arc<ProgressBars>>,
    build_nanos: AtomicU64,
    log: Mutex<Vec<String>>,
    logged: AtomicU64,
    is_quiet: AtomicBool,
}

/// Adds the time from its creation until it is dropped to the build time.
#[derive(Debug)]
pub struct BuildTimer<'a> {
    progress: &'a JobProgress,
    started: Instant,
}

impl Drop for BuildTimer<'_> {
    fn drop(&mut self) {
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.progress.build_nanos.fetch_add(nanos, Relaxed);
    }
}

/// Phase of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Building and compiling components, finding files.
    Preparing,
    /// Reading, transforming and grouping rows.
    Reading,
    /// Training or predicting.
    Training,
    /// Writing the output.
    Writing,
    /// Running a program.
    Running,
}

impl JobProgress {
    /// Returns the current phase.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            0 => Phase::Preparing,
            1 => Phase::Reading,
            2 => Phase::Training,
            3 => Phase::Writing,
            _ => Phase::Running,
        }
    }

    /// Starts a phase of `parts` parts.
    pub fn enter(&self, phase: Phase, parts: u64) {
        self.parts_done.store(0, Relaxed);
        self.parts.store(parts, Relaxed);
        self.phase.store(phase as u8, Relaxed);
    }

    /// Returns the completed parts of the phase, and all of its parts.
    pub fn parts(&self) -> (u64, u64) {
        (self.parts_done.load(Relaxed), self.parts.load(Relaxed))
    }

    /// Counts a completed part of the phase.
    pub fn complete_part(&self) {
        self.parts_done.fetch_add(1, Relaxed);
    }

    /// Returns the number of rows read.
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    /// Counts rows that were read.
    pub fn add_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Relaxed);
    }

    /// Returns the number of trained models.
    pub fn models(&self) -> u64 {
        self.models.load(Relaxed)
    }

    /// Counts trained models.
    pub fn add_models(&self, models: u64) {
        self.models.fetch_add(models, Relaxed);
    }

    /// Returns the total time of building and compiling components, of all jobs.
    pub fn build_time(&self) -> Duration {
        Duration::from_nanos(self.build_nanos.load(Relaxed))
    }

    /// Starts a timer that adds to [`JobProgress::build_time`].
    pub fn time_build(&self) -> BuildTimer<'_> {
        BuildTimer { progress: self, started: Instant::now() }
    }

    /// Returns the progress that the tasks of the program reported.
    pub fn program_rows(&self) -> Vec<ProgressRow> {
        let bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner).clone();
        bars.rows()
    }

    /// Sets the program whose progress [`JobProgress::program_rows`] returns.
    pub fn set_program_bars(&self, bars: Arc<ProgressBars>) {
        *self.bars.lock().unwrap_or_else(PoisonError::into_inner) = bars;
    }

    /// Returns the lines logged since the last call: `function: level: line`. A job logs at most 1,000 lines here.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of guests' lines that were hidden because of the limit of [`JobProgress::take_log`].
    pub fn hidden_lines(&self) -> u64 {
        self.logged.load(Relaxed).saturating_sub(LOG_LINES_MAX)
    }

    /// Hides builds and guests' logs from now on.
    pub fn set_quiet(&self) {
        self.is_quiet.store(true, Relaxed);
    }

    /// Returns whether builds and guests' logs are hidden.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet.load(Relaxed)
    }

    /// Logs a guest's line, unless the job is quiet or has logged too many.
    pub fn log(&self, line: String) {
        if !self.is_quiet() && self.logged.fetch_add(1, Relaxed) < LOG_LINES_MAX {
            self.warn(line);
        }
    }

    /// Logs a message about the whole job, even if the job is quiet.
    pub fn warn(&self, text: String) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}
