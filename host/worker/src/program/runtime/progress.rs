//! Progress of a task, reported to the node at a limited rate.

use std::time::{Duration, Instant};

/// Maximum number of names of one task. Progress under further names is dropped.
const NAMES_MAX: usize = 8;
/// Maximum bytes of a name; longer names are truncated.
const NAME_BYTES_MAX: usize = 64;
/// Minimum interval between reports of one name to the node.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The progress of a task under each name.
#[derive(Debug, Default)]
pub(super) struct TaskProgress(Vec<NamedProgress>);

/// The last progress under a name.
#[derive(Debug)]
pub(super) struct NamedProgress {
    pub name: String,
    pub done: u64,
    pub total: Option<u64>,
    reported_at: Option<Instant>,
    /// Whether the node has received it.
    is_reported: bool,
}

impl TaskProgress {
    /// Records progress. Returns its truncated name if the caller must report it now.
    pub(super) fn record<'n>(&mut self, name: &'n str, done: u64, total: Option<u64>) -> Option<&'n str> {
        let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
        let at = match self.0.iter().position(|known| known.name == name) {
            Some(at) => at,
            None if self.0.len() < NAMES_MAX => {
                let name = name.to_owned();
                self.0.push(NamedProgress { name, done, total, reported_at: None, is_reported: false });
                self.0.len() - 1
            }
            None => return None,
        };
        let own = &mut self.0[at];
        (own.done, own.total, own.is_reported) = (done, total, false);
        if own.reported_at.is_some_and(|reported_at| reported_at.elapsed() < REPORT_INTERVAL) {
            return None;
        }
        (own.reported_at, own.is_reported) = (Some(Instant::now()), true);
        Some(name)
    }

    /// Returns the progress that the node has not received.
    pub(super) fn unreported(&self) -> impl Iterator<Item = &NamedProgress> {
        self.0.iter().filter(|progress| !progress.is_reported)
    }
}
