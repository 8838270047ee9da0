//! Components that are ready to be instantiated.

use std::sync::Arc;

use sandbar_core::{Code, Fault, Limits};
use wasmtime::Store;
use wasmtime::component::{Component, ComponentExportIndex, InstancePre};

use crate::contract::{GUEST, PARAMETERS, PROGRAM};
use crate::interrupt::FunctionBodies;
use crate::memory::Slots;
use crate::memory_reset::MemoryReset;
use crate::services::Services;
use crate::state::SandboxState;

/// Keeps code alive until it is dropped.
pub(crate) type CodeOwner = Option<Box<dyn Send + Sync>>;

/// A component that is ready to be instantiated.
pub struct Program {
    pub(crate) pre: InstancePre<SandboxState>,
    pub(crate) exports: Exports,
    pub(crate) image_end: u64,
    pub(crate) slots: Arc<Slots>,
    /// Present if its sandboxes are reused.
    pub(crate) reuse: Option<MemoryReset>,
    /// Where its tasks can be interrupted.
    pub(crate) functions: FunctionBodies,
    /// The memory of the code, if wasmtime does not own it. Dropped last.
    pub(crate) _code: CodeOwner,
}

impl Program {
    /// Creates the store of a sandbox.
    pub(crate) fn store(&self, services: Box<dyn Services>, limits: &Limits, seed: u64) -> Store<SandboxState> {
        let state = SandboxState::new(services, limits, self.image_end, self.slots.clone(), seed);
        let mut store = Store::new(self.pre.engine(), state);
        store.limiter(|state| &mut state.limiter);
        store
    }
}

/// The contract's functions among a component's exports.
pub(crate) struct Exports {
    pub(crate) describe: ComponentExportIndex,
    pub(crate) open: ComponentExportIndex,
    pub(crate) process: ComponentExportIndex,
    pub(crate) fit: ComponentExportIndex,
    pub(crate) predict: ComponentExportIndex,
    /// `describe` of a component that describes parameters.
    pub(crate) parameters: Option<ComponentExportIndex>,
    /// Functions of a component that has tasks.
    pub(crate) tasks: Option<TaskExports>,
}

/// Exported functions of a component that has tasks.
pub(crate) struct TaskExports {
    pub(crate) describe: ComponentExportIndex,
    pub(crate) run: ComponentExportIndex,
    pub(crate) resume: ComponentExportIndex,
    pub(crate) abandon: ComponentExportIndex,
}

impl Exports {
    pub(crate) fn find(component: &Component) -> Result<Exports, Fault> {
        let missing = |name: &str| Fault::new(Code::Contract, format!("its `{GUEST}` has no `{name}`"));
        let guest = component
            .get_export_index(None, GUEST)
            .ok_or_else(|| Fault::new(Code::Contract, format!("it does not export `{GUEST}`")))?;
        let find = |name: &str| component.get_export_index(Some(&guest), name).ok_or_else(|| missing(name));
        Ok(Exports {
            describe: find("describe")?,
            open: find("open")?,
            process: find("process")?,
            fit: find("fit")?,
            predict: find("predict")?,
            parameters: component
                .get_export_index(None, PARAMETERS)
                .and_then(|parameters| component.get_export_index(Some(&parameters), "describe")),
            tasks: component.get_export_index(None, PROGRAM).and_then(|program| {
                let find = |name: &str| component.get_export_index(Some(&program), name);
                Some(TaskExports {
                    describe: find("describe")?,
                    run: find("run")?,
                    resume: find("resume")?,
                    abandon: find("abandon")?,
                })
            }),
        })
    }
}
