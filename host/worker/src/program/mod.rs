//! Workers for programs, whose tasks submit other tasks, wait for each other, and share objects.
//!
//! Such a worker is one thread with many sandboxes: each task is a call on its own stack, which leaves the thread while
//! the task waits. Worker and node communicate through [rings](ring) in shared memory. A busy worker polls the rings
//! between tasks, at almost no cost; an idle worker spins for a moment, then sleeps until the node wakes it. A socket
//! carries what is rare: compiled code, and files of large objects.
//!
//! A submitted task is not published to the node at once, but when several messages wait, when a moment has passed, or
//! when its submitter waits for something else. A task that waits for the task it has just submitted takes it back and
//! runs it in the same worker, which wakes no other process. A node can take back tasks in the same way until the
//! worker starts them.

mod clock;
mod doorbell;
mod fuzz;
mod layout;
mod message_sender;
mod messages;
mod node_doorbell;
mod objects;
mod packets;
mod process;
mod ring;
mod runtime;
mod worker;

pub use clock::monotonic_nanos;
#[doc(hidden)]
pub use fuzz::{fuzz_rings, fuzz_task_request};
pub use messages::{
    ActorSettings, AttemptUsage, Delivery, NodeMessage, RANGE_OBJECTS_MAX, ReturnedValues, SentValue, StartTask,
    SubmitTask, TaskRole, WAIT_OBJECTS_MAX, WorkerMessage,
};
pub use node_doorbell::NodeDoorbell;
pub use process::run_program_worker;
pub use worker::{PROGRAM_ARGUMENT, Polled, ProgramWorker, ProgramWorkerOptions, TaskPosition};
