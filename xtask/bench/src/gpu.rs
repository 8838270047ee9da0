//! Dense operations on a GPU beside the processor's: on the first GPU of this machine, or on lavapipe where there is none.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::Seed;
use sandbar_dense::{Binary, Dtype, Grouped, Kind, Map, Op, Owned, Reduction, Spec, Step, Tensor, cpu};
use sandbar_gpu::{Adapter, Device, DeviceTensor, Stream};

use crate::Failure;
use crate::report::{Report, say};
use crate::timing::least;

/// Rows of a group, and its features.
const ROWS: u32 = 64;
const WIDTH: u32 = 8;
/// Set in a process that has the software driver.
const HERE: &str = "SANDBAR_BENCH_GPU";

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// For each figure.
    pub time: Duration,
    /// Groups of least squares on the device at once, and in all.
    pub fits: u32,
    pub all_fits: u32,
    /// Side of matrices.
    pub side: u32,
    /// Values of vectors.
    pub values: u32,
}

/// Measures in a process of its own: drivers stay in it, and the software one is found where a process begins.
pub fn run_apart(arguments: &[&str]) -> Result<(), Failure> {
    let status = Command::new(std::env::current_exe()?).arg("gpu").args(arguments).env(HERE, "1").status()?;
    if status.success() { Ok(()) } else { Err(format!("`gpu` ended with {status}").into()) }
}

/// Whether this is that process.
pub fn is_apart() -> bool {
    std::env::var_os(HERE).is_some()
}

pub fn run(report: Report, sizes: Sizes) -> Result<(), Failure> {
    let adapter = match Adapter::all().iter().position(|gpu| gpu.about().kind != Kind::Software) {
        Some(place) => Adapter::at(place)?,
        None => {
            sandbar_gpu::use_software()?;
            Adapter::at(0)?
        }
    };
    say(&format!("{}, {}", adapter.about().name, adapter.about().driver));
    let device = Arc::new(Device::open(&adapter, adapter.about().memory_bytes / 10 * 9)?);
    let mut bench = Bench { report, time: sizes.time, stream: Stream::new(device), random: Seed::new(1) };
    bench.stream.check_device()?;
    let costs = bench.stream.measure()?;
    report.value("gpu/copy", costs.memory_bytes_s / 1e9, "GB/s");
    bench.fits(sizes.fits, sizes.all_fits)?;
    let (side, values) = (sizes.side, sizes.values);
    let product = Op::Product { first_transposed: false, second_transposed: false };
    for dtype in [Dtype::F32, Dtype::F64, Dtype::F16] {
        let square = bench.floats(dtype, &[side, side])?;
        let operations = 2.0 * f64::from(side).powi(3);
        bench.op(
            &format!("gpu/product {side} {dtype}"),
            &product,
            &[square.clone(), square],
            operations / 1e9,
            "GFLOP/s",
        )?;
    }
    let stack = bench.floats(Dtype::F32, &[values / 1024, 32, 32])?;
    let operations = 2.0 * 32.0 * f64::from(values);
    bench.op("gpu/products of 32 x 32", &product, &[stack.clone(), stack], operations / 1e9, "GFLOP/s")?;
    let vector = bench.floats(Dtype::F32, &[values])?;
    let gigabytes = 4.0 * f64::from(values) / 1e9;
    let sum = Op::Reduce { with: Reduction::Sum, along: 0 };
    bench.op("gpu/sum", &sum, std::slice::from_ref(&vector), gigabytes, "GB/s")?;
    let scaled =
        vec![Step::Input(0), Step::Constant(2.0), Step::Two(Binary::Multiply), Step::Input(1), Step::Two(Binary::Add)];
    bench.op("gpu/a x + y", &Op::Map(Map::new(scaled)?), &[vector.clone(), vector], 3.0 * gigabytes, "GB/s")
}

struct Bench {
    report: Report,
    time: Duration,
    stream: Stream,
    random: Seed,
}

type Values = (Spec, Owned);

impl Bench {
    fn floats(&mut self, dtype: Dtype, sizes: &[u32]) -> Result<Values, Failure> {
        let spec = Spec::new(dtype, sizes)?;
        let values = (0..spec.shape.count()).map(|_| self.random.below(1 << 20) as f32 / 1e6);
        let values: Vec<f32> = values.collect();
        // As bytes of the type.
        let bytes: Vec<u8> = match dtype {
            Dtype::F64 => values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect(),
            // A number of these bits is between 0.5 and 1.
            Dtype::F16 => {
                values.iter().flat_map(|value| (0x3800 | (value * 1000.0) as u16 & 0x3ff).to_le_bytes()).collect()
            }
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        Ok((spec, Owned::from_bytes(dtype, &bytes)))
    }

    fn there(&mut self, inputs: &[Values]) -> Result<Vec<DeviceTensor>, Failure> {
        let mut there = Vec::new();
        for (spec, values) in inputs {
            let tensor = self.stream.tensor(*spec)?;
            self.stream.write(&tensor, 0, values.values().bytes())?;
            there.push(tensor);
        }
        Ok(there)
    }

    /// An operation whose inputs are on the device, and which takes so much, beside the processor's.
    fn op(&mut self, name: &str, op: &Op, inputs: &[Values], amount: f64, unit: &'static str) -> Result<(), Failure> {
        let there = self.there(inputs)?;
        let there: Vec<&DeviceTensor> = there.iter().collect();
        let stream = &mut self.stream;
        let device = least(self.time, || {
            stream.run(op, &there).expect("the device does it");
            stream.wait().expect("it is there");
        });
        let here: Vec<Tensor<'_>> =
            inputs.iter().map(|(spec, values)| Tensor::new(*spec, values.values())).collect::<Result<_, _>>()?;
        let processor = least(self.time, || drop(black_box(cpu::run(op, &here).expect("it takes them"))));
        self.report.compare(name, amount / device, unit, "the processor", amount / processor);
        Ok(())
    }

    /// Least squares of many groups, with values brought to the device and what comes of them brought back.
    fn fits(&mut self, groups: u32, all: u32) -> Result<(), Failure> {
        let rows = groups * ROWS;
        let columns = self.floats(Dtype::F64, &[WIDTH, rows])?;
        let target = self.floats(Dtype::F64, &[rows])?;
        let offsets = (Spec::new(Dtype::U32, &[groups + 1])?, Owned::U32((0..=groups).map(|at| at * ROWS).collect()));
        let op = Op::GroupedLeastSquares(Grouped { intercept: true, ridge: 0.0, pivot_min: 0.0 });
        let inputs = [columns, target, offsets];
        let name = format!("gpu/{groups} fits of {ROWS} x {WIDTH}");
        self.op(&name, &op, &inputs, f64::from(groups), "/s")?;
        // Batch after batch, from the processor's memory and back.
        let mut found = vec![0; (groups * (WIDTH + 1) * 8) as usize];
        let batches = all.div_ceil(groups);
        let begun = std::time::Instant::now();
        for _ in 0..batches {
            let there = self.there(&inputs)?;
            let made = self.stream.run(&op, &there.iter().collect::<Vec<_>>())?;
            self.stream.download(&made[0], 0, &mut found)?;
        }
        let moved = f64::from(batches * groups) / begun.elapsed().as_secs_f64();
        let here: Vec<Tensor<'_>> =
            inputs.iter().map(|(spec, values)| Tensor::new(*spec, values.values())).collect::<Result<_, _>>()?;
        let begun = std::time::Instant::now();
        for _ in 0..batches {
            black_box(cpu::run(&op, &here)?);
        }
        let processor = f64::from(batches * groups) / begun.elapsed().as_secs_f64();
        let name = format!("gpu/{} fits in batches, to it and back", batches * groups);
        self.report.compare(&name, moved, "/s", "the processor", processor);
        Ok(())
    }
}
