//! `host gpu`: the GPUs of this machine.

use std::process::ExitCode;

use sandbar_node::{GpuCosts, GpuProfile, machine};
use serde::Serialize;

use crate::args::GpuCommand;
use crate::error::CliError;
use crate::output;
use crate::table::{Columns, cell, size};

pub(crate) async fn run(command: GpuCommand) -> Result<ExitCode, CliError> {
    let GpuCommand::List { json, software_gpu } = command;
    let options = machine::GpuOptions { is_software: software_gpu, ..machine::GpuOptions::default() };
    // Measurements are written there.
    machine::cache_folder()?;
    let gpus = machine::gpus(options)?;
    let all = match &gpus {
        Some(gpus) => {
            gpus.measure_again().await.map_err(|e| CliError::Failed(format!("can't query the GPU drivers: {e}")))?
        }
        None => &[],
    };
    let usable = match &gpus {
        Some(gpus) => gpus.usable().await,
        None => Vec::new(),
    };
    if json {
        output::json(&GpuList::new(all, &usable))?;
    } else if all.is_empty() {
        output::message("no Vulkan driver reports a GPU (--software-gpu uses a driver that computes on the CPU)");
    } else {
        output::print(&table(all, &usable))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A GPU as JSON.
#[derive(Serialize)]
struct GpuList<'a> {
    gpus: Vec<Gpu<'a>>,
}

#[derive(Serialize)]
struct Gpu<'a> {
    /// Whether jobs use it.
    is_used: bool,
    #[serde(flatten)]
    about: &'a sandbar_node::GpuInfo,
    costs: Option<GpuCosts>,
}

impl<'a> GpuList<'a> {
    fn new(all: &'a [GpuProfile], usable: &[usize]) -> GpuList<'a> {
        let gpu = |(place, gpu): (usize, &'a GpuProfile)| Gpu {
            is_used: usable.contains(&place),
            about: &gpu.about,
            costs: gpu.costs,
        };
        GpuList { gpus: all.iter().enumerate().map(gpu).collect() }
    }
}

fn table(all: &[GpuProfile], usable: &[usize]) -> String {
    let header = ["gpu", "kind", "used", "memory", "GB/s", "up", "down", "f32 GFLOP/s", "f64", "f16", "driver"];
    let mut columns = Columns::new(&header);
    for (place, GpuProfile { about, costs, .. }) in all.iter().enumerate() {
        let rate = |field: fn(&GpuCosts) -> f64| {
            let rate = costs.as_ref().map(field).filter(|rate| *rate > 0.0);
            cell(rate.map(|rate| format!("{:.1}", rate / 1e9)))
        };
        let used = match &about.refused {
            Some(why) => format!("no: {why}"),
            None if usable.contains(&place) => "yes".to_owned(),
            None => "no: not a GPU".to_owned(),
        };
        columns.row([
            about.name.clone(),
            about.kind.to_string(),
            used,
            size(about.memory_bytes),
            rate(|costs| costs.memory_bytes_s),
            rate(|costs| costs.up_bytes_s),
            rate(|costs| costs.down_bytes_s),
            rate(|costs| costs.f32_operations_s),
            rate(|costs| costs.f64_operations_s),
            rate(|costs| costs.f16_operations_s),
            about.driver.clone(),
        ]);
    }
    columns.text()
}
