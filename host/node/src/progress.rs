//! How far a job is, for whoever watches.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbar_worker::LogLine;

use crate::jobs::ProgressRow;
use crate::program::Bars;

/// Lines of guests' logs that a job shows; the others are counted.
const LOG_LINES_MAX: u64 = 1000;

/// Counters of the job at hand.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    pub(crate) done: AtomicU64,
    pub(crate) total: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) models: AtomicU64,
    /// Of the program at hand.
    bars: Mutex<Arc<Bars>>,
    /// Nanoseconds that building and compiling components took.
    build_nanos: AtomicU64,
    log: Mutex<Vec<String>>,
    logged: AtomicU64,
    is_quiet: AtomicBool,
}

/// Counts as building until it is dropped.
pub(crate) struct BuildTimer<'a> {
    progress: &'a Progress,
    begun: Instant,
}

impl Drop for BuildTimer<'_> {
    fn drop(&mut self) {
        let nanos = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.progress.build_nanos.fetch_add(nanos, Relaxed);
    }
}

/// What a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Building and compiling components, finding files.
    Preparing,
    /// Reading, transforming and grouping rows.
    Reading,
    /// Training, or predicting.
    Training,
    /// Writing the output.
    Writing,
    /// Running a program.
    Running,
}

impl Progress {
    /// What the job is doing.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            0 => Phase::Preparing,
            1 => Phase::Reading,
            2 => Phase::Training,
            3 => Phase::Writing,
            _ => Phase::Running,
        }
    }

    /// Parts of the phase that are done, and all of them.
    pub fn parts(&self) -> (u64, u64) {
        (self.done.load(Relaxed), self.total.load(Relaxed))
    }

    /// Rows read so far.
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    /// Models trained so far.
    pub fn models(&self) -> u64 {
        self.models.load(Relaxed)
    }

    /// How long building and compiling components took so far, of all jobs.
    pub(crate) fn build_time(&self) -> Duration {
        Duration::from_nanos(self.build_nanos.load(Relaxed))
    }

    /// Begins to count time as that of building.
    pub(crate) fn time_build(&self) -> BuildTimer<'_> {
        BuildTimer { progress: self, begun: Instant::now() }
    }

    /// How far the tasks of a program say that they are.
    pub fn rows_of_program(&self) -> Vec<ProgressRow> {
        let bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner).clone();
        bars.rows()
    }

    /// Tasks say how far they are there, from now on.
    pub(crate) fn follow(&self, bars: Arc<Bars>) {
        *self.bars.lock().unwrap_or_else(PoisonError::into_inner) = bars;
    }

    /// What guests have logged since this was asked last: `function: level: line`. The first thousand
    /// lines of a job.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lines that [`Progress::take_log`] does not give, since they are too many.
    pub fn unshown(&self) -> u64 {
        self.logged.load(Relaxed).saturating_sub(LOG_LINES_MAX)
    }

    /// Hides builds and guests' logs from here on.
    pub fn be_quiet(&self) {
        self.is_quiet.store(true, Relaxed);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.is_quiet.load(Relaxed)
    }

    pub(crate) fn log(&self, function: &str, lines: &[LogLine]) {
        if self.is_quiet() {
            return;
        }
        for line in lines {
            if self.logged.fetch_add(1, Relaxed) < LOG_LINES_MAX {
                let text = format!("{function}: {}: {}", line.level, line.message);
                self.log.lock().unwrap_or_else(PoisonError::into_inner).push(text);
            }
        }
    }

    /// A line of a program's log, with who said it.
    pub(crate) fn show(&self, text: String) {
        if !self.is_quiet() && self.logged.fetch_add(1, Relaxed) < LOG_LINES_MAX {
            self.log.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }

    /// Says something of the job as a whole, among what guests log.
    pub(crate) fn warn(&self, text: String) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    pub(crate) fn enter(&self, phase: Phase, parts: u64) {
        self.done.store(0, Relaxed);
        self.total.store(parts, Relaxed);
        self.phase.store(phase as u8, Relaxed);
    }
}
