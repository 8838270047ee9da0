//! The progress bar on standard error.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sandbar_node::{Phase, Progress};

use crate::output;

const REDRAW: Duration = Duration::from_millis(100);

/// A bar that follows a job until it is finished, and what guests log above it.
pub(crate) struct Watch {
    bar: ProgressBar,
    progress: Arc<Progress>,
    task: tokio::task::JoinHandle<()>,
}

/// Follows `progress`; draws nothing when it should be quiet or standard error
/// is no terminal.
pub(crate) fn watch(progress: Arc<Progress>, quiet: bool) -> Watch {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    if let Ok(style) = ProgressStyle::with_template("{prefix:>10} [{bar:30}] {msg} {elapsed}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let (drawn, followed) = (bar.clone(), progress.clone());
    let task = tokio::spawn(async move {
        loop {
            show_log(&drawn, &followed);
            draw(&drawn, &followed);
            tokio::time::sleep(REDRAW).await;
        }
    });
    Watch { bar, progress, task }
}

fn show_log(bar: &ProgressBar, progress: &Progress) {
    let lines = progress.take_log();
    if !lines.is_empty() {
        bar.suspend(|| lines.iter().for_each(|line| output::talk(line)));
    }
}

fn draw(bar: &ProgressBar, progress: &Progress) {
    let (done, total) = progress.parts();
    bar.set_length(total.max(1));
    bar.set_position(done);
    let (prefix, message) = match progress.phase() {
        Phase::Preparing => ("Preparing", String::new()),
        Phase::Reading => ("Reading", format!("{} rows", progress.rows())),
        Phase::Training => ("Training", format!("{} models", progress.models())),
        Phase::Writing => ("Writing", format!("{} models", progress.models())),
    };
    bar.set_prefix(prefix);
    bar.set_message(message);
}

impl Watch {
    /// Takes the bar away, and shows what was logged last.
    pub(crate) fn finish(self) {
        self.task.abort();
        self.bar.finish_and_clear();
        show_log(&self.bar, &self.progress);
        if self.progress.unshown() > 0 {
            output::talk(&format!("(guests logged {} lines more)", self.progress.unshown()));
        }
    }
}
