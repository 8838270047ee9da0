//! A logical device of one tenant: its memory, its kernels, and detection of its loss.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_dense::DeviceInfo;

use crate::GpuError;
use crate::adapter::Adapter;
use crate::kernels::{Kernel, MatrixUnits, Step};
use crate::memory::BufferPool;
use crate::tensor::TensorMemory;

/// A device, shared by several [streams](crate::Stream).
#[derive(Debug)]
pub struct Device {
    pub(crate) inner: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) memory: TensorMemory,
    about: DeviceInfo,
    limits: wgpu::Limits,
    units: Option<MatrixUnits>,
    /// Whether the matrix units passed their check.
    uses_units: AtomicBool,
    kernels: Mutex<HashMap<Kernel, wgpu::ComputePipeline>>,
    /// The first error that made the device unusable.
    loss: Arc<Mutex<Option<String>>>,
}

impl Device {
    /// Opens a device of a GPU with a limit of tensor memory.
    ///
    /// # Errors
    /// Fails if the driver creates none.
    pub fn open(adapter: &Adapter, memory_bytes_max: u64) -> Result<Device, GpuError> {
        use wgpu::Features;
        let requested = Features::IMMEDIATES
            | Features::SHADER_F16
            | Features::SHADER_F64
            | Features::TIMESTAMP_QUERY
            | Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
        let limits = adapter.inner.limits();
        let units = MatrixUnits::for_adapter(&adapter.inner);
        let requested = if units.is_some() { requested | MatrixUnits::FEATURES } else { requested };
        let experimental_features = match units {
            // SAFETY: wgpu documents that its experimental features may have errors, including undefined behaviour.
            // This enables matrix units alone. One kernel of this crate uses them, within the bounds of its bindings,
            // and only after they passed a check (`Stream::check_device`); guests' kernels that name them are rejected.
            Some(_) => unsafe { wgpu::ExperimentalFeatures::enabled() },
            None => wgpu::ExperimentalFeatures::disabled(),
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: None,
            required_features: adapter.inner.features() & requested,
            required_limits: limits.clone(),
            experimental_features,
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let requested_device = pollster::block_on(adapter.inner.request_device(&descriptor));
        let (inner, queue) =
            requested_device.map_err(|e| GpuError::Unusable(format!("{}: {e}", adapter.about().name)))?;
        let loss = Arc::new(Mutex::new(None));
        let recorded = loss.clone();
        inner.set_device_lost_callback(move |reason, message| record_loss(&recorded, format!("{reason:?}: {message}")));
        let recorded = loss.clone();
        inner.on_uncaptured_error(Arc::new(move |error: wgpu::Error| record_loss(&recorded, error.to_string())));
        let about = adapter.about().clone();
        let memory = TensorMemory::new(BufferPool::new(inner.clone(), memory_bytes_max), about.tensor_bytes_max);
        let (uses_units, kernels) = (AtomicBool::new(false), Mutex::default());
        Ok(Device { inner, queue, memory, about, limits, units, uses_units, kernels, loss })
    }

    /// Returns the properties of the GPU.
    pub fn about(&self) -> &DeviceInfo {
        &self.about
    }

    /// Returns the properties with the results of [`crate::Stream::check_device`].
    pub fn describe(&self) -> DeviceInfo {
        DeviceInfo { has_matrix_units: self.units().is_some(), ..self.about.clone() }
    }

    /// Returns the bytes of all tensors.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.used_bytes()
    }

    /// Whether the device supports timestamps between commands.
    pub(crate) fn has_timestamps(&self) -> bool {
        self.inner.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS)
    }

    pub(crate) fn limits(&self) -> &wgpu::Limits {
        &self.limits
    }

    /// Returns the matrix units, if they are in use.
    pub(crate) fn units(&self) -> Option<MatrixUnits> {
        self.units.filter(|_| self.uses_units.load(Ordering::Relaxed))
    }

    /// Enables or disables the use of matrix units.
    pub(crate) fn use_units(&self, uses: bool) {
        self.uses_units.store(uses, Ordering::Relaxed);
    }

    /// Returns the pipeline of one of this crate's kernels, compiled on first use.
    pub(crate) fn pipeline(&self, step: &Step) -> wgpu::ComputePipeline {
        let mut kernels = lock(&self.kernels);
        if let Some(pipeline) = kernels.get(&step.kernel) {
            return pipeline.clone();
        }
        let source = step.kernel.source();
        let descriptor =
            wgpu::ShaderModuleDescriptor { label: None, source: wgpu::ShaderSource::Wgsl(source.as_str().into()) };
        // SAFETY: the loops of this crate's kernels terminate, and their indices are within their bindings:
        // `Op::outputs` validated the shapes, and kernels compare every index that they read with a size. Tests run all
        // kernels with checks as well.
        let module =
            unsafe { self.inner.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) };
        let pipeline = self.inner.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&self.layout(step)),
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..wgpu::PipelineCompilationOptions::default()
            },
            cache: None,
        });
        kernels.insert(step.kernel.clone(), pipeline.clone());
        pipeline
    }

    /// Returns the layout of a kernel's bindings, including those that its text declares but does not use.
    fn layout(&self, step: &Step) -> wgpu::PipelineLayout {
        let read = step.bindings.len() - step.written;
        let entries: Vec<wgpu::BindGroupLayoutEntry> = (0..step.bindings.len())
            .map(|at| wgpu::BindGroupLayoutEntry {
                binding: at as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: at < read },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
        let bound = self.inner.create_bind_group_layout(&descriptor);
        self.inner.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&bound)],
            immediate_size: step.immediates.len() as u32,
        })
    }

    /// Returns an error if the device is lost.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        match &*lock(&self.loss) {
            Some(why) => Err(GpuError::Lost(why.clone())),
            None => Ok(()),
        }
    }
}

/// Records the first error, which is the most specific.
fn record_loss(loss: &Mutex<Option<String>>, cause: String) {
    lock(loss).get_or_insert(cause);
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
