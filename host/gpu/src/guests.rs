//! Kernels that guests wrote.
//!
//! wgpu validates them, and compiles them with checks: what is out of bounds reads and writes what is within the same
//! tensor, or nothing, and memory that threads share begins as zeros. A loop without an end is for who runs the process.

use sandbar_dense::remote::{BINDINGS_MAX, KERNEL_BYTES_MAX};
use wgpu::naga;

use crate::device::{Device, DeviceTensor};
use crate::{GpuError, Stream};

/// Groups of threads of a kernel at most.
const GROUPS_MAX: u64 = 1 << 24;
/// Bytes of variables that each thread has for itself.
const THREAD_BYTES_MAX: u64 = 64 << 10;
/// Longest words of an error.
const WORDS_MAX: usize = 2048;

/// A kernel that a guest wrote.
#[derive(Debug, Clone)]
pub struct GuestKernel {
    pipeline: wgpu::ComputePipeline,
}

impl Device {
    /// Makes a kernel of a text in WGSL, which has one entry point, for tensors in group 0.
    ///
    /// # Errors
    /// [`GpuError::Kernel`] when it is none.
    pub fn guest_kernel(&self, wgsl: &str) -> Result<GuestKernel, GpuError> {
        if wgsl.len() > KERNEL_BYTES_MAX {
            let message = format!("a kernel of {} bytes, {KERNEL_BYTES_MAX} may be", wgsl.len());
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
            Some(error) => Err(of_guest("the kernel is none", &error)),
            None => Ok(GuestKernel { pipeline }),
        }
    }
}

/// What wgpu leaves to drivers to find out: variables that are too large for threads, or for those that share them; and
/// what it would take because a kernel of ours uses it.
fn check(wgsl: &str, limits: &wgpu::Limits) -> Result<(), GpuError> {
    let mut options = naga::front::wgsl::Options::new();
    // What such matrices are loaded from and stored to, nobody checks.
    options.capabilities.remove(naga::valid::Capabilities::COOPERATIVE_MATRIX);
    let module = naga::front::wgsl::Frontend::new_with_options(options)
        .parse(wgsl)
        .map_err(|error| GpuError::Kernel(shortened(format!("the kernel is none: {}", error.emit_to_string(wgsl)))))?;
    let bytes = |of: naga::Handle<naga::Type>| match module.types[of].inner.try_size(module.to_ctx()) {
        Some(bytes) => u64::from(bytes),
        None => u64::MAX,
    };
    if !module.overrides.is_empty() {
        return Err(GpuError::Kernel("the kernel is none: it has constants that are to be overridden".to_owned()));
    }
    let global = |space| module.global_variables.iter().filter(move |(_, of)| of.space == space).map(|(_, of)| of.ty);
    let shared = global(naga::AddressSpace::WorkGroup).map(bytes).fold(0, u64::saturating_add);
    let functions = module.functions.iter().map(|(_, function)| function);
    let functions = functions.chain(module.entry_points.iter().map(|entry| &entry.function));
    let local = functions.flat_map(|function| function.local_variables.iter().map(|(_, of)| of.ty));
    let own = global(naga::AddressSpace::Private).chain(local).map(bytes).fold(0, u64::saturating_add);
    for (what, bytes, most) in [
        ("threads share", shared, u64::from(limits.max_compute_workgroup_storage_size)),
        ("a thread has", own, THREAD_BYTES_MAX),
    ] {
        if bytes > most {
            return Err(GpuError::Kernel(format!("the kernel is none: {what} {bytes} bytes, {most} may be")));
        }
    }
    Ok(())
}

impl Stream {
    /// Runs a guest's kernel, bound to these tensors from place 0 on, in so many groups of threads; some time later.
    ///
    /// # Errors
    /// [`GpuError::Kernel`] when it does not take these.
    pub fn dispatch(
        &mut self,
        kernel: &GuestKernel,
        bindings: &[&DeviceTensor],
        grid: [u32; 3],
    ) -> Result<(), GpuError> {
        let device = self.device().clone();
        let most = device.limits().max_compute_workgroups_per_dimension;
        let groups: u64 = grid.iter().map(|groups| u64::from(*groups)).product();
        if bindings.len() > BINDINGS_MAX {
            return Err(GpuError::Kernel(format!("{} tensors, {BINDINGS_MAX} may be", bindings.len())));
        }
        if grid.iter().any(|groups| *groups > most) || groups > GROUPS_MAX {
            let message = format!("a grid of {grid:?}, {most} in a direction and {GROUPS_MAX} in all may be");
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

fn of_guest(what: &str, error: &wgpu::Error) -> GpuError {
    GpuError::Kernel(shortened(format!("{what}: {error}")))
}

fn shortened(mut words: String) -> String {
    if words.len() > WORDS_MAX {
        words.truncate(words.floor_char_boundary(WORDS_MAX));
        words.push('…');
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wgpu_would_take() {
        let matrices = "@group(0) @binding(0) var<storage, read_write> all: array<f32>;
            @compute @workgroup_size(32) fn main() {
                coopStore(coopLoad<coop_mat8x8<f32, C>>(&all[1 << 30]), &all[0]);
            }";
        for (what, text, is_taken) in [
            ("nothing", "@compute @workgroup_size(1) fn main() {}".to_owned(), true),
            ("matrices", matrices.to_owned(), false),
            ("matrices that are enabled", format!("enable wgpu_cooperative_matrix;\n{matrices}"), false),
        ] {
            let checked = check(&text, &wgpu::Limits::default());
            assert_eq!(checked.is_ok(), is_taken, "{what}: {checked:?}");
        }
        let parsed = naga::front::wgsl::parse_str(&format!("enable wgpu_cooperative_matrix;\n{matrices}"));
        assert!(parsed.is_ok(), "it is refused for what it enables: {parsed:?}");
    }
}
