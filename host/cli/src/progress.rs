//! JobProgress on standard error: a bar on a terminal, otherwise periodic lines for programs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use sandbar_node::{JobProgress, Phase, ProgressRow};

use crate::output;
use crate::plain::plain;

const REDRAW: Duration = Duration::from_millis(100);
/// Interval of progress lines without a terminal.
const PRINT_INTERVAL: Duration = Duration::from_secs(5);

/// The progress bar of a job, with guests' log lines above it.
pub(crate) struct Watch {
    bar: ProgressBar,
    progress: Arc<JobProgress>,
    is_quiet: bool,
    task: tokio::task::JoinHandle<()>,
}

/// The part of a job's progress to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgressDisplay {
    /// The progress bar, builds of crates, and guests' logs.
    All,
    /// Builds of crates, and guests' logs.
    Log,
    /// Nothing.
    Nothing,
}

impl ProgressDisplay {
    pub(crate) fn unless(is_quiet: bool) -> ProgressDisplay {
        if is_quiet { ProgressDisplay::Nothing } else { ProgressDisplay::All }
    }
}

/// Follows `progress`. Draws no bar if standard error is not a terminal.
pub(crate) fn watch(progress: Arc<JobProgress>, show: ProgressDisplay) -> Watch {
    let quiet = show != ProgressDisplay::All;
    if show == ProgressDisplay::Nothing {
        progress.set_quiet();
    }
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    if let Ok(style) = ProgressStyle::with_template("{prefix:>10} [{bar:30}] {msg} {elapsed}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let (drawn, followed) = (bar.clone(), progress.clone());
    let task = tokio::spawn(async move {
        let prints_lines = !quiet && drawn.is_hidden();
        let (mut printed, mut last) = (Vec::new(), Instant::now());
        loop {
            show_log(&drawn, &followed);
            draw(&drawn, &followed);
            if prints_lines && last.elapsed() >= PRINT_INTERVAL {
                last = Instant::now();
                print_new_rows(&followed, &mut printed);
            }
            tokio::time::sleep(REDRAW).await;
        }
    });
    Watch { bar, progress, is_quiet: quiet, task }
}

/// Prints the progress of a program if it has changed since the last line.
fn print_new_rows(progress: &JobProgress, printed: &mut Vec<ProgressRow>) {
    let rows = progress.program_rows();
    rows.iter().filter(|row| !printed.contains(row)).for_each(|row| output::message(&row.to_string()));
    *printed = rows;
}

fn show_log(bar: &ProgressBar, progress: &JobProgress) {
    let lines = progress.take_log();
    if !lines.is_empty() {
        bar.suspend(|| lines.iter().for_each(|line| output::message(line)));
    }
}

fn draw(bar: &ProgressBar, progress: &JobProgress) {
    if let Some(row) = at_hand(&progress.program_rows()) {
        bar.set_length(row.total.unwrap_or(row.done).max(1));
        bar.set_position(if row.total.is_some() { row.done } else { 0 });
        bar.set_prefix(plain(&row.name).replace('\n', " "));
        return bar.set_message(counted(row));
    }
    let (done, total) = progress.parts();
    bar.set_length(total.max(1));
    bar.set_position(done);
    let (prefix, message) = match progress.phase() {
        Phase::Preparing => ("Preparing", String::new()),
        Phase::Reading => ("Reading", format!("{} rows", progress.rows())),
        Phase::Training => ("Training", format!("{} models", progress.models())),
        Phase::Writing => ("Writing", format!("{} models", progress.models())),
        Phase::Running => ("Running", String::new()),
    };
    bar.set_prefix(prefix);
    bar.set_message(message);
}

/// Returns the first unfinished progress row of the tasks, or else the last row.
fn at_hand(rows: &[ProgressRow]) -> Option<&ProgressRow> {
    rows.iter().find(|row| row.total.is_none_or(|total| row.done < total)).or(rows.last())
}

fn counted(row: &ProgressRow) -> String {
    let total = row.total.map_or_else(String::new, |total| format!("/{total}"));
    let rate = row.rate().map_or_else(String::new, |rate| format!(", {rate:.0}/s"));
    format!("{}{total}{rate}", row.done)
}

impl Watch {
    /// Removes the bar and prints the remaining log lines.
    pub(crate) fn finish(self) {
        self.task.abort();
        self.bar.finish_and_clear();
        show_log(&self.bar, &self.progress);
        if !self.is_quiet {
            print_new_rows(&self.progress, &mut Vec::new());
        }
        if self.progress.hidden_lines() > 0 {
            output::message(&format!("(guests logged {} more lines)", self.progress.hidden_lines()));
        }
    }
}
