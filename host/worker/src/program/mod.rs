//! Workers that run programs: tasks that submit tasks, wait for each other, and share objects.
//!
//! Such a worker is one thread that has many sandboxes at once: each task is a call on a stack of its own, which lets go
//! of the thread when it waits. It speaks with its node through [rings](ring) in shared memory: who has something to do
//! looks at them between tasks, which costs nothing; who has nothing looks again for a moment, and sleeps until the other
//! side wakes it. A socket carries what is rare: compiled code, and the files of large objects.
//!
//! A task is not sent to the node at once when another submits it, but when there are several, when a moment has passed,
//! or when who submitted it waits for others. If it waits for this very task, it takes it back and runs it itself: that
//! wakes nobody. Tasks that a node has given to a worker can be taken back in the same way, until they are begun.

mod any;
mod clock;
mod desk;
mod link;
mod messages;
mod objects;
mod process;
mod ring;

#[doc(hidden)]
pub use any::{ask_any, pass_any};
pub use clock::monotonic_nanos;
pub use link::{Bell, Crew, CrewOptions, Given, Heard};
pub use messages::{
    Begin, BeginRole, Delivery, Down, MakeOptions, RUN_MAX, ReturnedUp, Submit, Took, Up, ValueUp, WAITS_MAX,
};
pub use process::{PROGRAM_ARGUMENT, run_program_worker};
