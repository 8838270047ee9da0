//! Dense operations on the first GPU of this machine, or on lavapipe if it has none, compared with the processor.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::Seed;
use sandbar_dense::{
    Binary, DeviceKind, Dtype, GroupedOptions, Map, Op, OwnedValues, Reduction, Spec, Step, Tensor, cpu,
};
use sandbar_gpu::{Adapter, Device, DeviceTensor, Stream};

use crate::failure::Failure;
use crate::jobs;
use crate::peers::Torch;
use crate::report::{Report, progress};
use crate::timing::{Effort, least};

/// Rows of a group.
const ROWS: u32 = 64;
/// Features of a group.
const WIDTH: u32 = 8;
/// Environment variable of the process that measures.
const MEASURING_PROCESS: &str = "SANDBAR_BENCH_GPU";

/// Sizes of the measured operations.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// Groups of one least-squares operation.
    fits: u32,
    /// Groups of one batch.
    batch: u32,
    /// Groups of all batches.
    all_fits: u32,
    /// Rows and columns of matrices.
    side: u32,
    /// Number of values of vectors.
    values: u32,
}

impl Sizes {
    fn new(is_brief: bool, kind: DeviceKind) -> Sizes {
        match (is_brief, kind) {
            (true, _) => Sizes { fits: 100, batch: 100, all_fits: 200, side: 64, values: 1 << 16 },
            (_, DeviceKind::Software) => {
                Sizes { fits: 10_000, batch: 10_000, all_fits: 1_000_000, side: 1024, values: 1 << 24 }
            }
            // Vectors of 1 GiB, larger than a GPU's caches.
            _ => Sizes { fits: 10_000, batch: 100_000, all_fits: 1_000_000, side: 8192, values: 1 << 28 },
        }
    }
}

/// Measures in a separate process: drivers stay loaded until the process ends, and the software driver is found only when
/// a process starts.
pub fn run_in_process() -> Result<(), Failure> {
    let status = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(MEASURING_PROCESS, "1")
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("benchmark `gpu` failed: {status}").into()) }
}

/// Returns whether this is the process that measures.
pub fn is_measuring_process() -> bool {
    std::env::var_os(MEASURING_PROCESS).is_some()
}

pub fn run(report: Report, effort: Effort, is_brief: bool, has_peers: bool) -> Result<(), Failure> {
    let adapter = match Adapter::all().iter().position(|gpu| gpu.about().kind != DeviceKind::Software) {
        Some(place) => Adapter::at(place)?,
        None => {
            sandbar_gpu::use_software()?;
            Adapter::at(0)?
        }
    };
    let kind = adapter.about().kind;
    progress(&format!("{}, {}", adapter.about().name, adapter.about().driver));
    let sizes = Sizes::new(is_brief, kind);
    let device = Arc::new(Device::open(&adapter, adapter.about().memory_bytes / 10 * 9)?);
    let (stream, random) = (Stream::new(device), Seed::new(1));
    let mut bench = Bench { report, time: effort.time, stream, random, measurements: Vec::new() };
    bench.stream.check_device()?;
    bench.products(sizes)?;
    bench.vectors(sizes)?;
    bench.fits(sizes)?;
    if has_peers {
        bench.peers(sizes)?;
    }
    drop(bench);
    jobs::on_devices(report, effort, kind == DeviceKind::Software)
}

struct Bench {
    report: Report,
    time: Duration,
    stream: Stream,
    random: Seed,
    measurements: Vec<Measurement>,
}

/// Measurement of an operation on the device.
struct Measurement {
    name: String,
    /// Work of one call, in `unit` times seconds.
    amount: f64,
    unit: &'static str,
    /// Calls per second.
    rate: f64,
}

type Values = (Spec, OwnedValues);

impl Bench {
    fn products(&mut self, Sizes { side, values, .. }: Sizes) -> Result<(), Failure> {
        let product = Op::Product { first_transposed: false, second_transposed: false };
        for dtype in [Dtype::F32, Dtype::F64, Dtype::F16] {
            let square = self.floats(dtype, &[side, side])?;
            let operations = 2.0 * f64::from(side).powi(3) / 1e9;
            self.op(
                &format!("gpu/product {side} {dtype}"),
                &product,
                &[square.clone(), square],
                operations,
                "GFLOP/s",
            )?;
        }
        let stack = self.floats(Dtype::F32, &[values / 1024, 32, 32])?;
        let operations = 2.0 * 32.0 * f64::from(values) / 1e9;
        self.op("gpu/products of 32 x 32", &product, &[stack.clone(), stack], operations, "GFLOP/s")
    }

    /// Measures memory-bound operations, compared with a copy.
    fn vectors(&mut self, Sizes { values, .. }: Sizes) -> Result<(), Failure> {
        let vector = self.floats(Dtype::F32, &[values])?;
        let gigabytes = 4.0 * f64::from(values) / 1e9;
        let (name, copy) = ("gpu/copy", Op::Map(Map::new(vec![Step::Input(0)])?));
        self.op(name, &copy, std::slice::from_ref(&vector), 2.0 * gigabytes, "GB/s")?;
        let (name, sum) = ("gpu/sum", Op::Reduce { with: Reduction::Sum, along: 0 });
        self.op(name, &sum, std::slice::from_ref(&vector), gigabytes, "GB/s")?;
        let scaled =
            [Step::Input(0), Step::Constant(2.0), Step::Two(Binary::Multiply), Step::Input(1), Step::Two(Binary::Add)];
        let (name, scaled) = ("gpu/a x + y", Op::Map(Map::new(scaled.to_vec())?));
        self.op(name, &scaled, &[vector.clone(), vector], 3.0 * gigabytes, "GB/s")?;
        let [.., copied, sum, scaled] = &self.measurements[..] else { return Ok(()) };
        for operation in [sum, scaled] {
            let value = operation.amount * operation.rate;
            self.report.compare(&operation.name, value, operation.unit, "a copy on it", copied.amount * copied.rate);
        }
        Ok(())
    }

    /// Compares the same operations with PyTorch: cuBLAS on an NVIDIA GPU, the processor without one.
    fn peers(&self, Sizes { fits, side, values, .. }: Sizes) -> Result<(), Failure> {
        let torch = Torch::find()?;
        for peer in torch.measure(side, values, fits, [ROWS, WIDTH], self.time)? {
            let own = self.measurements.iter().find(|own| own.name == peer.figure);
            let own = own.ok_or_else(|| format!("xtask/bench/gpu.py measures an unknown figure: {}", peer.figure))?;
            let (value, baseline) = (own.amount * own.rate, own.amount / peer.seconds);
            self.report.compare(&own.name, value, own.unit, &peer.peer, baseline);
        }
        Ok(())
    }

    fn floats(&mut self, dtype: Dtype, sizes: &[u32]) -> Result<Values, Failure> {
        let spec = Spec::new(dtype, sizes)?;
        let values = (0..spec.shape.count()).map(|_| self.random.below(1 << 20) as f32 / 1e6);
        let values: Vec<f32> = values.collect();
        let bytes: Vec<u8> = match dtype {
            Dtype::F64 => values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect(),
            // Numbers with these exponent bits are between 0.5 and 1.
            Dtype::F16 => {
                values.iter().flat_map(|value| (0x3800 | (value * 1000.0) as u16 & 0x3ff).to_le_bytes()).collect()
            }
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        Ok((spec, OwnedValues::from_bytes(dtype, &bytes)))
    }

    fn upload(&mut self, inputs: &[Values]) -> Result<Vec<DeviceTensor>, Failure> {
        let mut tensors = Vec::new();
        for (spec, values) in inputs {
            let tensor = self.stream.tensor(*spec)?;
            self.stream.write(&tensor, 0, values.values().bytes())?;
            tensors.push(tensor);
        }
        Ok(tensors)
    }

    /// Measures an operation of `amount` whose inputs are on the device, compared with one processor.
    fn op(&mut self, name: &str, op: &Op, inputs: &[Values], amount: f64, unit: &'static str) -> Result<(), Failure> {
        let on_device = self.upload(inputs)?;
        let on_device: Vec<&DeviceTensor> = on_device.iter().collect();
        let stream = &mut self.stream;
        let device = least(self.time, || {
            stream.run(op, &on_device).expect("the device accepts the operation");
            stream.wait().expect("the device is not lost");
        });
        let tensors: Vec<Tensor<'_>> =
            inputs.iter().map(|(spec, values)| Tensor::new(*spec, values.values())).collect::<Result<_, _>>()?;
        let processor = least(self.time, || drop(black_box(cpu::run(op, &tensors).expect("valid operation"))));
        self.report.compare(name, amount / device, unit, "one processor", amount / processor);
        self.measurements.push(Measurement { name: name.to_owned(), amount, unit, rate: 1.0 / device });
        Ok(())
    }

    /// Generates `groups` groups: features, target, and the groups' row offsets.
    fn groups(&mut self, groups: u32) -> Result<[Values; 3], Failure> {
        let rows = groups * ROWS;
        let columns = self.floats(Dtype::F64, &[WIDTH, rows])?;
        let target = self.floats(Dtype::F64, &[rows])?;
        let offsets = OwnedValues::U32((0..=groups).map(|at| at * ROWS).collect());
        Ok([columns, target, (Spec::new(Dtype::U32, &[groups + 1])?, offsets)])
    }

    /// Measures least squares of many groups, including the copies to and from the device.
    fn fits(&mut self, Sizes { fits, batch, all_fits, .. }: Sizes) -> Result<(), Failure> {
        let op = Op::GroupedLeastSquares(GroupedOptions { intercept: true, ridge: 0.0, pivot_min: 0.0 });
        let mut inputs = self.groups(fits)?;
        let name = |groups: u32| format!("gpu/{groups} fits of {ROWS} x {WIDTH}");
        self.op(&name(fits), &op, &inputs, f64::from(fits), "/s")?;
        if batch > fits {
            inputs = self.groups(batch)?;
            self.op(&name(batch), &op, &inputs, f64::from(batch), "/s")?;
        }
        // One batch after another, from the processor's memory and back.
        let mut coefficients = vec![0; (batch * (WIDTH + 1) * 8) as usize];
        let batches = all_fits.div_ceil(batch);
        let started = Instant::now();
        for _ in 0..batches {
            let on_device = self.upload(&inputs)?;
            let outputs = self.stream.run(&op, &on_device.iter().collect::<Vec<_>>())?;
            self.stream.download(&outputs[0], 0, &mut coefficients)?;
        }
        let moved = f64::from(batches * batch) / started.elapsed().as_secs_f64();
        let tensors: Vec<Tensor<'_>> =
            inputs.iter().map(|(spec, values)| Tensor::new(*spec, values.values())).collect::<Result<_, _>>()?;
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let started = Instant::now();
        std::thread::scope(|scope| {
            for processor in 0..processors {
                let (tensors, op) = (&tensors, &op);
                scope.spawn(move || {
                    for _ in (processor..batches).step_by(processors as usize) {
                        black_box(cpu::run(op, tensors).expect("valid operation"));
                    }
                });
            }
        });
        let processor = f64::from(batches * batch) / started.elapsed().as_secs_f64();
        let name = format!("gpu/{} fits in batches, to it and back", batches * batch);
        self.report.compare(&name, moved, "/s", &format!("{processors} processors"), processor);
        Ok(())
    }
}
