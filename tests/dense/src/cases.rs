//! Random operations with valid inputs.

use std::fmt;

use half::f16;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use sandbar_dense::{Binary, Dtype, GroupedOptions, Map, Op, OwnedValues, Reduction, Spec, Step, Unary};

/// Sizes of dimensions: zero, one, odd ones, and those around the size of a block.
const SIZES: [u32; 12] = [0, 1, 2, 3, 4, 5, 8, 16, 17, 31, 64, 70];
/// Long dimensions, combined with short ones: for operations cut into parts, and beyond the maximum grid.
const LONG: [u32; 4] = [257, 1025, 5003, 70_001];
const SHORT: [u32; 4] = [1, 2, 3, 9];
/// Sides of f16 matrices that matrix units are used for.
const LARGE: [u32; 5] = [64, 65, 72, 100, 130];

/// The random source.
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Creates a source from a seed.
    pub fn new(seed: u64) -> Random {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns a number from 0 to below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end as u64) as usize
    }

    fn is(&mut self, in_so_many: usize) -> bool {
        self.below(in_so_many) == 0
    }

    fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn size(&mut self) -> u32 {
        self.choose(&SIZES)
    }

    /// Returns sizes of dimensions, one of which is sometimes long.
    fn sizes<const N: usize>(&mut self) -> [u32; N] {
        if !self.is(12) {
            return [(); N].map(|()| self.size());
        }
        let long = self.below(N);
        let mut sizes = [(); N].map(|()| self.choose(&SHORT));
        sizes[long] = self.choose(&LONG);
        sizes
    }

    /// Returns a value from -2 to 2.
    fn value(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 51) as f64 - 2.0
    }
}

/// An operation with its inputs.
pub struct Case {
    /// Operation.
    pub op: Op,
    /// Inputs.
    pub inputs: Vec<(Spec, OwnedValues)>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<String> = self.inputs.iter().map(|(spec, _)| spec.to_string()).collect();
        write!(f, "{:?} of {}", self.op, inputs.join(", "))
    }
}

impl Case {
    /// Returns a random case with valid inputs.
    pub fn random(random: &mut Random) -> Case {
        let dtype = random.choose(&[Dtype::F16, Dtype::F32, Dtype::F32, Dtype::F64]);
        match random.below(12) {
            0 | 1 => product(random, dtype),
            2 => grouped(random),
            3 => solve(random, dtype),
            4 | 5 => map(random, dtype),
            6 | 7 => along(random, dtype),
            8 => {
                let [points, centres, width] = random.sizes();
                let centres = floats(random, dtype, &[centres.max(1), width]);
                let inputs = vec![floats(random, dtype, &[points, width]), centres];
                Case { op: Op::Nearest, inputs }
            }
            9 => {
                let ([features, rows], channels, bins) = (random.sizes(), random.choose(&[0, 1, 2, 3]), 5);
                let places = whole(random, &[features, rows], 7);
                Case { op: Op::Histogram { bins }, inputs: vec![places, floats(random, dtype, &[rows, channels])] }
            }
            10 => {
                let sizes = random.sizes::<2>();
                let to = random.choose(&[Dtype::F16, Dtype::F32, Dtype::F64]);
                let values = match random.is(4) {
                    true => whole(random, &sizes, 1 << 30),
                    false => any_floats(random, dtype, &sizes),
                };
                Case { op: Op::Convert(to), inputs: vec![values] }
            }
            _ => {
                let [rows, columns, places] = random.sizes();
                let places = whole(random, &[places], rows + 2);
                Case { op: Op::Take, inputs: vec![floats(random, dtype, &[rows, columns]), places] }
            }
        }
    }
}

/// Converts values to a type.
fn values(dtype: Dtype, values: impl Iterator<Item = f64>) -> OwnedValues {
    match dtype {
        Dtype::F16 => OwnedValues::F16(values.map(f16::from_f64).collect()),
        Dtype::F32 => OwnedValues::F32(values.map(|value| value as f32).collect()),
        Dtype::F64 => OwnedValues::F64(values.collect()),
        Dtype::U32 => OwnedValues::U32(values.map(|value| value as u32).collect()),
    }
}

fn tensor(dtype: Dtype, sizes: &[u32], all: impl Iterator<Item = f64>) -> (Spec, OwnedValues) {
    let spec = Spec::new(dtype, sizes).unwrap();
    (spec, values(dtype, all.take(spec.shape.count())))
}

fn floats(random: &mut Random, dtype: Dtype, sizes: &[u32]) -> (Spec, OwnedValues) {
    tensor(dtype, sizes, std::iter::repeat_with(|| random.value()))
}

/// Returns floats that are sometimes NaN or infinite.
fn any_floats(random: &mut Random, dtype: Dtype, sizes: &[u32]) -> (Spec, OwnedValues) {
    let often = random.choose(&[3, 100, 1_000_000]);
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e30, 5e4];
    tensor(
        dtype,
        sizes,
        std::iter::repeat_with(|| if random.is(often) { random.choose(&special) } else { random.value() }),
    )
}

fn whole(random: &mut Random, sizes: &[u32], end: u32) -> (Spec, OwnedValues) {
    tensor(Dtype::U32, sizes, std::iter::repeat_with(|| random.below(end as usize) as f64))
}

fn product(random: &mut Random, dtype: Dtype) -> Case {
    let [m, n, k] = match dtype == Dtype::F16 && random.is(3) {
        true => [(); 3].map(|()| random.choose(&LARGE)),
        false => random.sizes(),
    };
    let (first_transposed, second_transposed) = (random.is(2), random.is(2));
    let stacks: [&[u32]; 2] =
        random.choose(&[[&[], &[]], [&[3], &[3]], [&[2], &[]], [&[], &[4]], [&[0], &[]], [&[2, 3], &[2, 3]]]);
    let sizes = |stack: &[u32], rows, columns, is_turned| match is_turned {
        true => [stack, &[columns, rows]].concat(),
        false => [stack, &[rows, columns]].concat(),
    };
    let first = floats(random, dtype, &sizes(stacks[0], m, k, first_transposed));
    let second = floats(random, dtype, &sizes(stacks[1], k, n, second_transposed));
    Case { op: Op::Product { first_transposed, second_transposed }, inputs: vec![first, second] }
}

fn grouped(random: &mut Random) -> Case {
    let width = random.choose(&[0, 1, 2, 3, 8, 13]);
    let intercept = random.is(2);
    let mut offsets = vec![random.below(3) as f64];
    for _ in 0..random.choose(&[0, 1, 3, 40]) {
        // No rows, too few for a solution, or enough for a well-conditioned one.
        let rows = random.choose(&[0, 1, 4 * width as usize + 20, 300]);
        offsets.push(offsets[offsets.len() - 1] + rows as f64);
    }
    let (rows, count) = (offsets[offsets.len() - 1] as u32 + random.below(3) as u32, offsets.len() as u32);
    let far = random.choose(&[0.0, 1000.0]);
    let features = tensor(Dtype::F64, &[width, rows], std::iter::repeat_with(|| far + random.value()));
    let target = floats(random, Dtype::F64, &[rows]);
    // Offsets as pairs, with rows of no group between them.
    let offsets = match random.is(2) {
        true => tensor(Dtype::U32, &[count], offsets.into_iter()),
        false => {
            let pairs = offsets.windows(2).step_by(2).flatten().copied();
            tensor(Dtype::U32, &[count / 2, 2], pairs)
        }
    };
    let mut inputs = vec![features, target, offsets];
    if random.is(3) {
        inputs.push(tensor(Dtype::F64, &[rows], std::iter::repeat_with(|| (random.value() + 1.0).max(0.0))));
    }
    Case {
        op: Op::GroupedLeastSquares(GroupedOptions {
            intercept,
            ridge: random.choose(&[0.0, 0.0, 0.5]),
            pivot_min: random.choose(&[0.0, 1e-9]),
        }),
        inputs,
    }
}

fn solve(random: &mut Random, dtype: Dtype) -> Case {
    // The error of solving in f16 is too large.
    let dtype = if dtype == Dtype::F16 { Dtype::F32 } else { dtype };
    let (unknowns, columns, stack) =
        (random.choose(&[0, 1, 2, 5, 16, 33]), random.choose(&[0, 1, 3]), random.choose(&[0, 1, 4]));
    let is_cholesky = random.is(2);
    let rows = if is_cholesky { unknowns } else { unknowns + random.choose(&[0, 1, 20]) };
    let n = unknowns as usize;
    // A well-conditioned matrix with a large diagonal, symmetric for Cholesky.
    let mut all = vec![0.0; stack as usize * rows as usize * n];
    for system in all.chunks_exact_mut((rows as usize * n).max(1)) {
        for (at, value) in system.iter_mut().enumerate() {
            *value = random.value() + if at / n == at % n { 3.0 * f64::from(unknowns) } else { 0.0 };
        }
        for at in (0..system.len()).filter(|at| is_cholesky && at / n > at % n) {
            system[at] = system[at % n * n + at / n];
        }
    }
    let systems = tensor(dtype, &[stack, rows, unknowns], all.into_iter());
    let right = floats(random, dtype, &[stack, rows, columns]);
    Case { op: if is_cholesky { Op::SolveCholesky } else { Op::SolveQr }, inputs: vec![systems, right] }
}

fn map(random: &mut Random, dtype: Dtype) -> Case {
    let [rows, columns] = random.sizes();
    let shapes: [&[u32]; 4] = [&[rows, columns], &[columns], &[rows, 1], &[]];
    let count = 1 + random.below(4);
    let mut inputs = vec![floats(random, dtype, shapes[0])];
    inputs.extend((1..count).map(|_| {
        let shape = random.choose(&shapes);
        floats(random, dtype, shape)
    }));
    // The condition of a selection has the same bits on every device.
    let chooses = [Step::Input(0), Step::Constant(0.5), Step::Two(Binary::Less), Step::Input(0), Step::Constant(-1.0)];
    let (mut steps, mut stack) = match random.is(3) {
        true => ([&chooses[..], &[Step::Select]].concat(), 1),
        false => (vec![Step::Input(0)], 1),
    };
    for _ in 0..random.below(12) {
        let step = match random.below(4) {
            0 if stack < 4 => Step::Input(random.below(count) as u8),
            1 if stack < 4 => Step::Constant((random.value() * 8.0).round() / 4.0),
            2 if stack >= 2 => {
                Step::Two(random.choose(&[Binary::Add, Binary::Subtract, Binary::Multiply, Binary::Min, Binary::Max]))
            }
            _ => Step::One(random.choose(&[Unary::Negate, Unary::Abs, Unary::Tanh])),
        };
        stack = match step {
            Step::Input(_) | Step::Constant(_) => stack + 1,
            Step::Two(_) => stack - 1,
            _ => stack,
        };
        steps.push(step);
    }
    steps.extend((1..stack).map(|_| Step::Two(Binary::Add)));
    // Keeps arguments away from steep parts of these functions.
    match random.below(4) {
        0 => steps.extend([Step::One(Unary::Tanh), Step::One(Unary::Exp)]),
        at @ (1 | 2) => steps.extend([
            Step::One(Unary::Abs),
            Step::Constant(1.0),
            Step::Two(Binary::Add),
            Step::One(if at == 1 { Unary::Sqrt } else { Unary::Log }),
        ]),
        _ => {}
    }
    Case { op: Op::Map(Map::new(steps).unwrap()), inputs }
}

fn along(random: &mut Random, dtype: Dtype) -> Case {
    let rank = 1 + random.below(3);
    let sizes = &random.sizes::<3>()[..rank];
    let reductions =
        [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min, Reduction::ArgMax, Reduction::ArgMin];
    let (with, along) = (random.choose(&reductions), random.below(sizes.len()));
    let is_place = matches!(with, Reduction::ArgMax | Reduction::ArgMin);
    let op = match random.below(4) {
        0 => Op::Softmax,
        1 => Op::LogSumExp,
        _ if is_place && sizes[along] == 0 => Op::Softmax,
        _ => Op::Reduce { with, along: along as u8 },
    };
    Case { op, inputs: vec![any_floats(random, dtype, sizes)] }
}
