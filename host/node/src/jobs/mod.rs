//! Jobs as their users see them: a folder for each, with what became of it, its log and the records of its tasks.
//!
//! A program's node keeps the folder of its job while it runs ([`JobKeeper`]), and answers questions at a socket in it
//! ([`Question`]); a lock in it says that the node lives. Whoever asks finds jobs on the shelf ([`JobShelf`]): those that
//! run say themselves what they do, of those that have ended the folder does.
//!
//! All of it is one user's. What is read is nevertheless parsed with care: a folder may be of another version, or half of
//! what it was.

mod control;
mod fold;
mod keeper;
mod limits;
mod log;
mod name;
mod record;
mod shelf;
mod trace;
mod views;

pub use control::{Answer, ControlError, Question};
pub use keeper::{JobKeeper, StopMark};
pub use limits::JobFolderLimits;
pub use log::LoggedLine;
pub use name::JobName;
pub(crate) use record::now_ms;
pub use record::{JobCounts, JobFailure, JobRecord, LogCounts, RunState};
pub use shelf::{JobShelf, LogReader, ShelfError, StoredJob};
pub use trace::trace;
pub use views::{
    ActorRow, BundleRow, ErrorRow, GroupRow, HolderRow, JobSummary, Listing, MemoryView, NameSummary, NodeRow,
    ObjectRow, ProcessRow, ProgressRow, ResourceRow, Spread, TaskRow, WorkerRow,
};

pub(crate) use log::{JobLog, LogSender, Said, Shown};
