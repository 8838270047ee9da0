//! A sandbox of a program's tasks.

use wasmtime::Store;
use wasmtime::component::{Instance, TypedFunc};

use crate::memory_reset::WrittenPages;
use crate::state::SandboxState;

/// Answer of a guest to a call: whether the call waits.
pub(crate) type GuestResult = (Result<bool, String>,);
pub(crate) type Run = TypedFunc<(u32, u64, u64, Box<[u8]>), GuestResult>;

/// A sandbox, and its exported functions.
pub(crate) struct Sandbox {
    pub(crate) store: Store<SandboxState>,
    pub(crate) calls: TaskFunctions,
    pub(crate) written: Option<WrittenPages>,
}

/// Exported functions of one instance of a program.
pub(crate) struct TaskFunctions {
    pub(crate) run: Run,
    pub(crate) instance: Instance,
}

impl Sandbox {
    pub(crate) fn new(store: Store<SandboxState>, calls: TaskFunctions) -> Sandbox {
        Sandbox { store, calls, written: None }
    }
}
