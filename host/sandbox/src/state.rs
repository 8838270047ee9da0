//! The data of a store: state of one sandbox that ends with it.

use std::sync::Arc;

use sandbar_core::{Code, Fault, Limits};
use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::clock::Clock;
use crate::memory::{Overlays, Slots};
use crate::services::{Level, Services};
use crate::wasi::{self, Output};

pub(crate) struct SandboxState {
    pub(crate) services: Box<dyn Services>,
    pub(crate) overlays: Overlays,
    /// First address of guest memory behind its initial image.
    pub(crate) image_end: u64,
    pub(crate) slots: Arc<Slots>,
    /// Host address of the guest's memory, once known.
    pub(crate) memory: Option<usize>,
    pub(crate) limiter: Limiter,
    /// Message of the guest's panic.
    pub(crate) panic: Option<String>,
    /// Printed output and WASI state, created on first use. Most guests never use them.
    pub(crate) output: Option<Output>,
    pub(crate) wasi: Option<Box<WasiState>>,
    pub(crate) seed: u64,
    /// Number of tensors and kernels that the guest holds.
    pub(crate) handles: usize,
    log_bytes_max: u64,
}

pub(crate) struct WasiState {
    context: WasiCtx,
    pub(crate) table: ResourceTable,
    pub(crate) clock: Clock,
}

impl WasiState {
    pub(crate) fn has_no_handles(&self) -> bool {
        self.table.is_empty()
    }
}

impl SandboxState {
    pub(crate) fn new(
        services: Box<dyn Services>,
        limits: &Limits,
        image_end: u64,
        slots: Arc<Slots>,
        seed: u64,
    ) -> Self {
        let limiter = Limiter {
            memory_bytes_max: limits.memory_bytes_max,
            table_elements_max: limits.table_elements_max,
            memory_bytes: 0,
            exceeded: None,
        };
        SandboxState {
            services,
            overlays: Overlays::default(),
            image_end,
            slots,
            memory: None,
            limiter,
            panic: None,
            output: None,
            wasi: None,
            seed,
            handles: 0,
            log_bytes_max: limits.log_bytes_max,
        }
    }

    /// Accepts printed text. Complete lines go to the log.
    pub(crate) fn print(&mut self, level: Level, text: &[u8]) {
        let output = self.output.get_or_insert_with(|| Output::new(self.log_bytes_max));
        output.print(level, text);
        output.drain_lines(|level, line| self.services.log(level, line));
    }

    /// Returns the WASI state, creating it on first use.
    pub(crate) fn wasi(&mut self) -> &mut WasiState {
        self.services_and_wasi().1
    }

    pub(crate) fn services_and_wasi(&mut self) -> (&mut dyn Services, &mut WasiState) {
        let SandboxState { services, output, wasi, seed, log_bytes_max, .. } = self;
        let output = output.get_or_insert_with(|| Output::new(*log_bytes_max));
        let wasi = wasi.get_or_insert_with(|| {
            let clock = Clock::default();
            let context = wasi::context(*seed, output, &clock);
            Box::new(WasiState { context, table: ResourceTable::new(), clock })
        });
        (services.as_mut(), wasi)
    }

    /// Moves the remaining printed text to the log.
    pub(crate) fn flush_output(&mut self) {
        if let Some(output) = &self.output {
            output.drain(|level, line| self.services.log(level, line));
        }
    }
}

impl WasiView for SandboxState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let wasi = self.wasi();
        WasiCtxView { ctx: &mut wasi.context, table: &mut wasi.table }
    }
}

/// Denies growth over the limits and records it, so that the guest's subsequent trap gets the right fault.
pub(crate) struct Limiter {
    memory_bytes_max: u64,
    table_elements_max: u32,
    pub(crate) memory_bytes: u64,
    exceeded: Option<Fault>,
}

impl Limiter {
    /// Returns the limit that was exceeded since the current batch or group started.
    pub(crate) fn exceeded(&mut self) -> Option<Fault> {
        self.exceeded.take()
    }

    /// Starts another batch or group: earlier denials without consequences do not explain its failure.
    pub(crate) fn begin(&mut self) {
        self.exceeded = None;
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.memory_bytes.saturating_sub(current as u64).saturating_add(desired as u64);
        if total > self.memory_bytes_max || maximum.is_some_and(|m| desired > m) {
            let message =
                format!("needs {total} bytes of memory, the limit is {} (memory_bytes_max)", self.memory_bytes_max);
            self.exceeded.get_or_insert_with(|| Fault::new(Code::MemoryLimit, message));
            return Ok(false);
        }
        self.memory_bytes = total;
        Ok(true)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let limit = self.table_elements_max as usize;
        if desired > limit || maximum.is_some_and(|m| desired > m) {
            let message = format!("needs a table of {desired} elements, the limit is {limit} (table_elements_max)");
            self.exceeded.get_or_insert_with(|| Fault::new(Code::TableLimit, message));
            return Ok(false);
        }
        Ok(true)
    }
}
