//! Functions with bound parameters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandbar_core::{Code, Fault, Limits};
use sandbar_dense::DeviceChoice;

use crate::compiler::CompiledComponent;

/// A function with bound parameters, which can be called many times.
#[derive(Debug)]
pub struct Binding {
    pub(super) id: u64,
    /// The component.
    pub program: Arc<CompiledComponent>,
    /// Index of the function among the component's functions.
    pub function: u32,
    /// Parameters, a JSON object.
    pub params: String,
    /// Limits of each call.
    pub limits: Limits,
    /// `component#function`, for errors.
    pub name: String,
    /// Device for dense algebra. Without one, the processor is used.
    pub device: Option<DeviceChoice>,
    /// Plan for the workers' [`crate::Collectors`], for [`CallWork::Collect`](crate::CallWork::Collect).
    pub(super) plan: Vec<u8>,
}

/// Maximum bytes of a binding's plan.
pub const PLAN_BYTES_MAX: usize = 32 << 10;

/// Maximum bytes of a binding's parameters.
const PARAMS_BYTES_MAX: usize = 64 << 10;
static BINDINGS: AtomicU64 = AtomicU64::new(0);

fn new_id() -> u64 {
    BINDINGS.fetch_add(1, Ordering::Relaxed)
}

impl Binding {
    /// Binds a function of `program`.
    ///
    /// # Errors
    /// When the parameters are too long.
    pub fn new(
        program: Arc<CompiledComponent>,
        function: u32,
        params: String,
        limits: Limits,
        name: String,
    ) -> Result<Arc<Binding>, Fault> {
        if params.len() > PARAMS_BYTES_MAX {
            return Err(Fault::new(
                Code::Columns,
                format!("its parameters take {} bytes, the limit is {PARAMS_BYTES_MAX}", params.len()),
            )
            .in_function(&name));
        }
        let device = None;
        Ok(Binding { id: new_id(), program, function, params, limits, name, device, plan: Vec::new() }.into())
    }

    /// Returns a copy of the binding that does dense algebra on another device.
    pub fn on(&self, device: Option<DeviceChoice>) -> Arc<Binding> {
        let Binding { program, function, params, limits, name, plan, .. } = self;
        let (program, function, params) = (program.clone(), *function, params.clone());
        let (name, plan) = (name.clone(), plan.clone());
        Binding { id: new_id(), program, function, params, limits: *limits, name, device, plan }.into()
    }

    /// Returns a copy of the binding whose calls can [collect](crate::CallWork::Collect) by `plan`.
    ///
    /// # Errors
    /// When the plan is longer than [`PLAN_BYTES_MAX`].
    pub fn collecting(&self, plan: Vec<u8>) -> Result<Arc<Binding>, Fault> {
        if plan.len() > PLAN_BYTES_MAX {
            return Err(Fault::new(Code::Host, format!("a plan of {} bytes", plan.len())));
        }
        let Binding { program, function, params, limits, name, device, .. } = self;
        let (program, function, params) = (program.clone(), *function, params.clone());
        let (id, limits, name, device) = (new_id(), *limits, name.clone(), *device);
        Ok(Binding { id, program, function, params, limits, name, device, plan }.into())
    }
}
