//! Discovery of GPUs, and the checks for using them.

use sandbar_dense::{DeviceInfo, DeviceKind};

use crate::{GpuError, kernels};

/// Oldest supported release of Mesa's drivers: 22.3's lavapipe gives wrong results beyond 65,535 iterations of a loop.
const MESA_MIN: u32 = 25;

/// A discovered GPU.
#[derive(Debug, Clone)]
pub struct Adapter {
    pub(crate) inner: wgpu::Adapter,
    about: DeviceInfo,
}

impl Adapter {
    /// Returns all GPUs, the fastest kinds first.
    ///
    /// Loads drivers into this process.
    pub fn all() -> Vec<Adapter> {
        let mut options = wgpu::InstanceDescriptor::new_without_display_handle();
        options.backends = wgpu::Backends::VULKAN;
        options.flags = wgpu::InstanceFlags::empty();
        let instance = wgpu::Instance::new(options);
        let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let mut adapters: Vec<Adapter> = found.into_iter().map(Adapter::new).collect();
        adapters.sort_by_key(|adapter| adapter.about.kind as u8);
        adapters
    }

    /// Returns the GPU at an index of [`Adapter::all`].
    ///
    /// # Errors
    /// Fails if it does not exist, or must not be used.
    pub fn at(index: usize) -> Result<Adapter, GpuError> {
        let mut all = Adapter::all();
        if index >= all.len() {
            return Err(GpuError::Unusable(format!("GPU {index} does not exist, the number of GPUs is {}", all.len())));
        }
        let adapter = all.swap_remove(index);
        match &adapter.about.refused {
            Some(why) => Err(GpuError::Unusable(format!("{}: {why}", adapter.about.name))),
            None => Ok(adapter),
        }
    }

    fn new(inner: wgpu::Adapter) -> Adapter {
        let (info, features, limits) = (inner.get_info(), inner.features(), inner.limits());
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
            wgpu::DeviceType::VirtualGpu => DeviceKind::Virtual,
            wgpu::DeviceType::Cpu => DeviceKind::Software,
            wgpu::DeviceType::Other => DeviceKind::Other,
        };
        let refused = match mesa(&info.driver_info) {
            Some(release) if release < MESA_MIN => {
                Some(format!("its driver is of Mesa {release}, which has known errors: install {MESA_MIN} or newer"))
            }
            _ if !features.contains(wgpu::Features::IMMEDIATES) => Some("its driver has no push constants".to_owned()),
            _ => None,
        };
        let about = DeviceInfo {
            memory_bytes: memory_bytes(&inner),
            name: info.name,
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            kind,
            tensor_bytes_max: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
            has_f16: features.contains(wgpu::Features::SHADER_F16),
            has_f64: features.contains(wgpu::Features::SHADER_F64),
            // Determined when a device is opened.
            has_matrix_units: false,
            grouped_width_max: kernels::grouped_width_max(&limits),
            refused,
        };
        Adapter { inner, about }
    }

    /// Returns the properties of the GPU.
    pub fn about(&self) -> &DeviceInfo {
        &self.about
    }
}

/// Returns the Mesa release in a driver's description, if it is Mesa's.
fn mesa(driver: &str) -> Option<u32> {
    let (_, release) = driver.split_once("Mesa ")?;
    release.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the bytes of device-local memory; 0 if unknown.
fn memory_bytes(adapter: &wgpu::Adapter) -> u64 {
    // SAFETY: the handles are read while the adapter lives, and nothing is destroyed through them.
    let Some(vulkan) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else { return 0 };
    // SAFETY: the handles are read while the adapter lives; the physical device belongs to this instance.
    let memory = unsafe {
        vulkan.shared_instance().raw_instance().get_physical_device_memory_properties(vulkan.raw_physical_device())
    };
    const DEVICE_LOCAL: u32 = 1;
    let heaps = &memory.memory_heaps[..(memory.memory_heap_count as usize).min(memory.memory_heaps.len())];
    heaps.iter().filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0).map(|heap| heap.size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_mesa() {
        for (driver, release) in [
            ("Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)", Some(25)),
            ("Mesa 22.3.6 (LLVM 15.0.6)", Some(22)),
            ("550.54.14", None),
            ("Mesa", None),
            ("Mesa x", None),
        ] {
            assert_eq!(mesa(driver), release, "{driver}");
        }
    }
}
