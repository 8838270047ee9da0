//! Dense operations on a GPU beside the processor's: on the first GPU of this machine, or on lavapipe where there is none.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::Seed;
use sandbar_dense::{
    Binary, DeviceKind, Dtype, GroupedOptions, Map, Op, OwnedValues, Reduction, Spec, Step, Tensor, cpu,
};
use sandbar_gpu::{Adapter, Device, DeviceTensor, Stream};

use crate::peers::Torch;
use crate::report::{Report, say};
use crate::timing::{Effort, least};
use crate::{Failure, jobs};

/// Rows of a group, and its features.
const ROWS: u32 = 64;
const WIDTH: u32 = 8;
/// Set in a process that has the software driver.
const HERE: &str = "SANDBAR_BENCH_GPU";

/// How much is done.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// Groups of least squares at once, then as a batch, and in all of these.
    fits: u32,
    batch: u32,
    all_fits: u32,
    /// Side of matrices.
    side: u32,
    /// Values of vectors.
    values: u32,
}

impl Sizes {
    fn new(is_brief: bool, kind: DeviceKind) -> Sizes {
        match (is_brief, kind) {
            (true, _) => Sizes { fits: 100, batch: 100, all_fits: 200, side: 64, values: 1 << 16 },
            (_, DeviceKind::Software) => {
                Sizes { fits: 10_000, batch: 10_000, all_fits: 1_000_000, side: 1024, values: 1 << 24 }
            }
            // Vectors of 1 GiB: what is kept near a GPU's processors is less.
            _ => Sizes { fits: 10_000, batch: 100_000, all_fits: 1_000_000, side: 8192, values: 1 << 28 },
        }
    }
}

/// Measures in a process of its own: drivers stay in it, and the software one is found where a process begins.
pub fn run_apart() -> Result<(), Failure> {
    let status = Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(HERE, "1").status()?;
    if status.success() { Ok(()) } else { Err(format!("`gpu` ended with {status}").into()) }
}

/// Whether this is that process.
pub fn is_apart() -> bool {
    std::env::var_os(HERE).is_some()
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
    say(&format!("{}, {}", adapter.about().name, adapter.about().driver));
    let sizes = Sizes::new(is_brief, kind);
    let device = Arc::new(Device::open(&adapter, adapter.about().memory_bytes / 10 * 9)?);
    let (stream, random) = (Stream::new(device), Seed::new(1));
    let mut bench = Bench { report, time: effort.time, stream, random, measured: Vec::new() };
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
    measured: Vec<Measured>,
}

/// A figure of an operation.
struct Measured {
    name: String,
    /// Of its unit, by the call.
    amount: f64,
    unit: &'static str,
    /// Calls a second.
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

    /// What memory bounds, beside a copy.
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
        let [.., copied, sum, scaled] = &self.measured[..] else { return Ok(()) };
        for of in [sum, scaled] {
            let copied = copied.amount * copied.rate;
            self.report.compare(&of.name, of.amount * of.rate, of.unit, "a copy on it", copied);
        }
        Ok(())
    }

    /// The same by PyTorch, and with that by cuBLAS where the GPU is NVIDIA's; where it has none, on the processor.
    fn peers(&self, Sizes { fits, side, values, .. }: Sizes) -> Result<(), Failure> {
        let torch = Torch::find()?;
        for peer in torch.measure(side, values, fits, [ROWS, WIDTH], self.time)? {
            let ours = self.measured.iter().find(|of| of.name == peer.figure);
            let ours = ours.ok_or_else(|| format!("{} is no figure of ours", peer.figure))?;
            let (value, theirs) = (ours.amount * ours.rate, ours.amount / peer.seconds);
            self.report.compare(&ours.name, value, ours.unit, &peer.peer, theirs);
        }
        Ok(())
    }

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
        Ok((spec, OwnedValues::from_bytes(dtype, &bytes)))
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
        self.report.compare(name, amount / device, unit, "one processor", amount / processor);
        self.measured.push(Measured { name: name.to_owned(), amount, unit, rate: 1.0 / device });
        Ok(())
    }

    /// So many groups: features, target, and where they begin.
    fn groups(&mut self, groups: u32) -> Result<[Values; 3], Failure> {
        let rows = groups * ROWS;
        let columns = self.floats(Dtype::F64, &[WIDTH, rows])?;
        let target = self.floats(Dtype::F64, &[rows])?;
        let offsets = OwnedValues::U32((0..=groups).map(|at| at * ROWS).collect());
        Ok([columns, target, (Spec::new(Dtype::U32, &[groups + 1])?, offsets)])
    }

    /// Least squares of many groups, with values brought to the device and what comes of them brought back.
    fn fits(&mut self, Sizes { fits, batch, all_fits, .. }: Sizes) -> Result<(), Failure> {
        let op = Op::GroupedLeastSquares(GroupedOptions { intercept: true, ridge: 0.0, pivot_min: 0.0 });
        let mut inputs = self.groups(fits)?;
        let name = |groups: u32| format!("gpu/{groups} fits of {ROWS} x {WIDTH}");
        self.op(&name(fits), &op, &inputs, f64::from(fits), "/s")?;
        if batch > fits {
            inputs = self.groups(batch)?;
            self.op(&name(batch), &op, &inputs, f64::from(batch), "/s")?;
        }
        // Batch after batch, from the processor's memory and back.
        let mut found = vec![0; (batch * (WIDTH + 1) * 8) as usize];
        let batches = all_fits.div_ceil(batch);
        let begun = Instant::now();
        for _ in 0..batches {
            let there = self.there(&inputs)?;
            let made = self.stream.run(&op, &there.iter().collect::<Vec<_>>())?;
            self.stream.download(&made[0], 0, &mut found)?;
        }
        let moved = f64::from(batches * batch) / begun.elapsed().as_secs_f64();
        let here: Vec<Tensor<'_>> =
            inputs.iter().map(|(spec, values)| Tensor::new(*spec, values.values())).collect::<Result<_, _>>()?;
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for processor in 0..processors {
                let (here, op) = (&here, &op);
                scope.spawn(move || {
                    for _ in (processor..batches).step_by(processors as usize) {
                        black_box(cpu::run(op, here).expect("it takes them"));
                    }
                });
            }
        });
        let processor = f64::from(batches * batch) / begun.elapsed().as_secs_f64();
        let name = format!("gpu/{} fits in batches, to it and back", batches * batch);
        self.report.compare(&name, moved, "/s", &format!("{processors} processors"), processor);
        Ok(())
    }
}
