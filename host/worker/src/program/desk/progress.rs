//! How far tasks say that they are: the node is told now and then, however often they say it.

use std::time::{Duration, Instant};

use super::{Desk, TaskDesk};
use crate::program::messages::Up;
use crate::program::objects::Slot;

/// Names of one task. What it says of others is not passed on.
const NAMES_MAX: usize = 8;
/// Bytes of a name: what is more is cut off.
const NAME_BYTES_MAX: usize = 64;
/// The node is told of one so often at most.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// What a task said last under a name.
#[derive(Debug)]
pub(super) struct Progress {
    name: String,
    done: u64,
    total: Option<u64>,
    told: Option<Instant>,
    /// Whether the node knows this.
    is_told: bool,
}

impl Progress {
    fn message<'a>(&'a self, task: u64) -> Up<'a> {
        Up::Progress { task, name: &self.name, done: self.done, total: self.total }
    }
}

impl Desk {
    /// A task says how far it is.
    pub(super) fn progress(&mut self, slot: Slot, name: &str, done: u64, total: Option<u64>) {
        let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
        let Some(task) = self.task(slot) else { return };
        let place = match task.progress.iter().position(|known| known.name == name) {
            Some(place) => place,
            None if task.progress.len() < NAMES_MAX => {
                let name = name.to_owned();
                task.progress.push(Progress { name, done, total, told: None, is_told: false });
                task.progress.len() - 1
            }
            None => return,
        };
        let (id, own) = (task.id, &mut task.progress[place]);
        (own.done, own.total, own.is_told) = (done, total, false);
        if own.told.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            return;
        }
        (own.told, own.is_told) = (Some(Instant::now()), true);
        self.announce(slot);
        self.say(&Up::Progress { task: id, name, done, total });
        self.publish_in_time();
    }

    /// What a task said that has ended, and the node was not told.
    pub(super) fn tell_progress(&mut self, own: &TaskDesk) {
        for progress in own.progress.iter().filter(|progress| !progress.is_told) {
            self.say(&progress.message(own.id));
        }
    }
}
