//! Guests' kernels.
//!
//! wgpu validates them, and compiles them with bounds checks: accesses out of bounds touch the same tensor or nothing,
//! and workgroup memory starts as zeros. Endless loops are handled by the owner of the process.

use sandbar_dense::remote::{BINDINGS_MAX, KERNEL_BYTES_MAX};
use wgpu::naga;

use crate::device::Device;
use crate::{DeviceTensor, GpuError, Stream};

/// Maximum number of thread groups of a launch.
const GROUPS_MAX: u64 = 1 << 24;
/// Maximum bytes of one thread's variables.
const THREAD_BYTES_MAX: u64 = 64 << 10;
/// Maximum bytes of an error message.
const WORDS_MAX: usize = 2048;

/// A kernel that a guest wrote.
#[derive(Debug, Clone)]
pub struct GuestKernel {
    pipeline: wgpu::ComputePipeline,
}

impl Device {
    /// Compiles a kernel from WGSL text with one entry point, for tensors in group 0.
    ///
    /// # Errors
    /// [`GpuError::Kernel`] if it is invalid.
    pub fn guest_kernel(&self, wgsl: &str) -> Result<GuestKernel, GpuError> {
        if wgsl.len() > KERNEL_BYTES_MAX {
            let message = format!("a kernel of {} bytes, the maximum is {KERNEL_BYTES_MAX}", wgsl.len());
            return Err(GpuError::Kernel(message));
        }
        check(wgsl, self.limits())?;
        let scope = self.inner.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = self.inner.push_error_scope(wgpu::ErrorFilter::Internal);
        let source = wgpu::ShaderSource::Wgsl(wgsl.into());
        let module = self.inner.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = self.inner.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let errors = [pollster::block_on(internal.pop()), pollster::block_on(scope.pop())];
        match errors.into_iter().flatten().next() {
            Some(error) => Err(of_guest("the kernel is invalid", &error)),
            None => Ok(GuestKernel { pipeline }),
        }
    }
}

/// Checks properties that wgpu leaves to drivers: the sizes of thread-local and shared variables. Rejects a feature that wgpu
/// accepts because a kernel of this crate uses it.
fn check(wgsl: &str, limits: &wgpu::Limits) -> Result<(), GpuError> {
    let mut options = naga::front::wgsl::Options::new();
    // Nothing checks the bounds of loads and stores of cooperative matrices.
    options.capabilities.remove(naga::valid::Capabilities::COOPERATIVE_MATRIX);
    let module = naga::front::wgsl::Frontend::new_with_options(options).parse(wgsl).map_err(|error| {
        GpuError::Kernel(shortened(format!("the kernel is invalid: {}", error.emit_to_string(wgsl))))
    })?;
    let bytes = |variable: naga::Handle<naga::Type>| match module.types[variable].inner.try_size(module.to_ctx()) {
        Some(bytes) => u64::from(bytes),
        None => u64::MAX,
    };
    if !module.overrides.is_empty() {
        return Err(GpuError::Kernel("the kernel is invalid: override constants are not supported".to_owned()));
    }
    let global = |space| {
        module
            .global_variables
            .iter()
            .filter(move |(_, variable)| variable.space == space)
            .map(|(_, variable)| variable.ty)
    };
    let shared = global(naga::AddressSpace::WorkGroup).map(bytes).fold(0, u64::saturating_add);
    let functions = module.functions.iter().map(|(_, function)| function);
    let functions = functions.chain(module.entry_points.iter().map(|entry| &entry.function));
    let local = functions.flat_map(|function| function.local_variables.iter().map(|(_, variable)| variable.ty));
    let own = global(naga::AddressSpace::Private).chain(local).map(bytes).fold(0, u64::saturating_add);
    for (kind_name, bytes, max) in [
        ("shared variables", shared, u64::from(limits.max_compute_workgroup_storage_size)),
        ("variables of a thread", own, THREAD_BYTES_MAX),
    ] {
        if bytes > max {
            return Err(GpuError::Kernel(format!(
                "the kernel is invalid: {kind_name} take {bytes} bytes, the maximum is {max}"
            )));
        }
    }
    Ok(())
}

impl Stream {
    /// Queues a guest's kernel, with tensors bound from binding 0 on, on a grid of thread groups.
    ///
    /// # Errors
    /// [`GpuError::Kernel`] if it does not accept these.
    pub fn dispatch(
        &mut self,
        kernel: &GuestKernel,
        bindings: &[&DeviceTensor],
        grid: [u32; 3],
    ) -> Result<(), GpuError> {
        let device = self.device().clone();
        let max = device.limits().max_compute_workgroups_per_dimension;
        let groups: u64 = grid.iter().map(|groups| u64::from(*groups)).product();
        if bindings.len() > BINDINGS_MAX {
            return Err(GpuError::Kernel(format!("{} tensors, the maximum is {BINDINGS_MAX}", bindings.len())));
        }
        if grid.iter().any(|groups| *groups > max) || groups > GROUPS_MAX {
            let message = format!("a grid of {grid:?}, the maximum is {max} per dimension and {GROUPS_MAX} in total");
            return Err(GpuError::Kernel(message));
        }
        self.submit();
        let scope = device.inner.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = device.inner.push_error_scope(wgpu::ErrorFilter::Internal);
        let entries: Vec<wgpu::BindGroupEntry<'_>> = bindings
            .iter()
            .enumerate()
            .map(|(at, tensor)| wgpu::BindGroupEntry { binding: at as u32, resource: tensor.binding() })
            .collect();
        let bind_group = device.inner.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &kernel.pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let mut encoder = device.inner.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&kernel.pipeline);
        pass.set_bind_group(0, &bind_group, &[]);
        pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
        drop(pass);
        let commands = encoder.finish();
        let errors = [pollster::block_on(internal.pop()), pollster::block_on(scope.pop())];
        if let Some(error) = errors.into_iter().flatten().next() {
            return Err(of_guest("the kernel does not take these tensors", &error));
        }
        device.queue.submit([commands]);
        device.check()
    }
}

fn of_guest(kind_name: &str, error: &wgpu::Error) -> GpuError {
    GpuError::Kernel(shortened(format!("{kind_name}: {error}")))
}

fn shortened(mut error_text: String) -> String {
    if error_text.len() > WORDS_MAX {
        error_text.truncate(error_text.floor_char_boundary(WORDS_MAX));
        error_text.push('…');
    }
    error_text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_with_forbidden_extensions_are_rejected() {
        let matrices = "@group(0) @binding(0) var<storage, read_write> all: array<f32>;
            @compute @workgroup_size(32) fn main() {
                coopStore(coopLoad<coop_mat8x8<f32, C>>(&all[1 << 30]), &all[0]);
            }";
        for (kind_name, text, is_taken) in [
            ("nothing", "@compute @workgroup_size(1) fn main() {}".to_owned(), true),
            ("matrices", matrices.to_owned(), false),
            ("matrices that are enabled", format!("enable wgpu_cooperative_matrix;\n{matrices}"), false),
        ] {
            let checked = check(&text, &wgpu::Limits::default());
            assert_eq!(checked.is_ok(), is_taken, "{kind_name}: {checked:?}");
        }
        let parsed = naga::front::wgsl::parse_str(&format!("enable wgpu_cooperative_matrix;\n{matrices}"));
        assert!(parsed.is_ok(), "it is refused for what it enables: {parsed:?}");
    }
}
