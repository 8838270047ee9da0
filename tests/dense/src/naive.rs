//! Reference implementations of operations in f64, with the magnitude of each value's summands.

use sandbar_dense::{Binary, GroupedOptions, Map, Op, Reduction, Spec, Step, Unary};

use crate::cases::Case;
use crate::wide;

/// Values, each with the magnitude of its summands.
pub type ReferenceValues = Vec<(f64, f64)>;

pub fn run(case: &Case) -> Vec<ReferenceValues> {
    let values: Vec<Vec<f64>> = case.inputs.iter().map(|(_, values)| wide(values)).collect();
    let specs: Vec<Spec> = case.inputs.iter().map(|(spec, _)| *spec).collect();
    let sizes: Vec<Vec<usize>> =
        specs.iter().map(|spec| spec.shape.sizes().iter().map(|size| *size as usize).collect()).collect();
    let outputs = case.op.outputs(&specs).unwrap();
    let out: Vec<usize> = outputs[0].shape.sizes().iter().map(|size| *size as usize).collect();
    match &case.op {
        Op::Product { first_transposed, second_transposed } => {
            let turned = [*first_transposed, *second_transposed];
            vec![product(&values, &sizes, turned, &out)]
        }
        Op::GroupedLeastSquares(options) => grouped(&values, (sizes[0][0], sizes[2].len() == 2), *options),
        Op::SolveCholesky | Op::SolveQr => vec![solve(&values, &sizes)],
        Op::Map(map) => vec![each(map, &values, &sizes, &out)],
        Op::Reduce { with, along } => {
            vec![lines(&values[0], &sizes[0], (*along).into()).iter().map(|line| reduce(line, *with)).collect()]
        }
        Op::Softmax => {
            vec![lines(&values[0], &sizes[0], sizes[0].len() - 1).iter().flat_map(|line| softmax(line)).collect()]
        }
        Op::LogSumExp => {
            vec![lines(&values[0], &sizes[0], sizes[0].len() - 1).iter().map(|line| log_sum_exp(line)).collect()]
        }
        Op::Nearest => nearest(&values, &sizes),
        Op::Histogram { bins } => vec![histogram(&values, &sizes, *bins as usize)],
        // A value out of range differs by as much as its type requires.
        Op::Convert(_) => vec![values[0].iter().map(|value| (*value, value.abs())).collect()],
        Op::Take => {
            let width = sizes[0][1];
            let places = values[1].iter().map(|place| *place as usize);
            let all = places.flat_map(|place| (0..width).map(move |column| (place, column)));
            let value = |(place, column)| if place < sizes[0][0] { values[0][place * width + column] } else { 0.0 };
            vec![all.map(value).map(|value| (value, value.abs())).collect()]
        }
    }
}

fn product(values: &[Vec<f64>], sizes: &[Vec<usize>], turned: [bool; 2], out: &[usize]) -> ReferenceValues {
    let [stack @ .., rows, columns] = out else { unreachable!() };
    let first = &sizes[0];
    let inner = if turned[0] { first[first.len() - 2] } else { first[first.len() - 1] };
    let element = |which: usize, stacked: usize, row: usize, column: usize| {
        let (all, rank) = (&sizes[which], sizes[which].len());
        let (rows, columns) = (all[rank - 2], all[rank - 1]);
        let (row, column) = if turned[which] { (column, row) } else { (row, column) };
        let stacked = if rank > 2 { stacked } else { 0 };
        values[which][(stacked * rows + row) * columns + column]
    };
    let mut found = Vec::new();
    for stacked in 0..stack.iter().product() {
        for (row, column) in (0..*rows).flat_map(|row| (0..*columns).map(move |column| (row, column))) {
            let parts = (0..inner).map(|k| element(0, stacked, row, k) * element(1, stacked, k, column));
            found.push(parts.fold((0.0, 0.0), |(sum, size), part| (sum + part, size + part.abs())));
        }
    }
    found
}

/// Solves the normal equations of the shifted and weighted rows by elimination.
fn grouped(values: &[Vec<f64>], (width, is_pairs): (usize, bool), options: GroupedOptions) -> Vec<ReferenceValues> {
    let (target, offsets, weights) = (&values[1], &values[2], values.get(3));
    let column = |j: usize, row: usize| if j < width { values[0][j * target.len() + row] } else { target[row] };
    let (mut coefficients, mut statuses) = (Vec::new(), Vec::new());
    // With pairs, the end of a group need not be the start of the next.
    let all = if is_pairs { offsets.chunks(2).collect::<Vec<_>>() } else { offsets.windows(2).collect() };
    for ends in all {
        let rows: Vec<usize> = (ends[0] as usize..ends[1] as usize).collect();
        let weight = |row: usize| weights.map_or(1.0, |weights| weights[row]);
        let total: f64 = rows.iter().map(|row| weight(*row)).sum();
        let used = rows.iter().filter(|row| weight(**row) > 0.0).count();
        let status = match used {
            0 => 1.0,
            _ if used < width + usize::from(options.intercept) && options.ridge == 0.0 && width > 0 => 2.0,
            _ => 0.0,
        };
        statuses.push((status, 0.0));
        if status != 0.0 {
            coefficients.extend(vec![(f64::NAN, 0.0); width + 1]);
            continue;
        }
        let mean = |j: usize| match options.intercept {
            true => rows.iter().map(|row| weight(*row) * column(j, *row)).sum::<f64>() / total,
            false => 0.0,
        };
        let means: Vec<f64> = (0..=width).map(mean).collect();
        let sum = |i: usize, j: usize| -> f64 {
            rows.iter().map(|row| weight(*row) * (column(i, *row) - means[i]) * (column(j, *row) - means[j])).sum()
        };
        let mut system: Vec<Vec<f64>> = (0..width)
            .map(|i| (0..=width).map(|j| sum(i, j) + if i == j { options.ridge } else { 0.0 }).collect())
            .collect();
        let found = eliminate(&mut system, 1);
        let at_means: f64 = found.iter().zip(&means).map(|(row, mean)| row[0] * mean).sum();
        // The distance of the columns from zero determines the error if no mean is subtracted.
        let far = means.iter().chain(&values[0]).fold(1.0_f64, |far, value| far.max(value.abs()));
        coefficients.extend(found.iter().map(|row| (row[0], 1e4 * far)));
        coefficients.push((if options.intercept { means[width] - at_means } else { 0.0 }, 1e4 * far * far));
    }
    vec![coefficients, statuses]
}

fn solve(values: &[Vec<f64>], sizes: &[Vec<usize>]) -> ReferenceValues {
    let ([stack, rows, unknowns], columns) = ([sizes[0][0], sizes[0][1], sizes[0][2]], sizes[1][2]);
    let mut all = Vec::new();
    for at in 0..stack {
        let element = |row: usize, column: usize| values[0][(at * rows + row) * unknowns + column];
        let right = |row: usize, column: usize| values[1][(at * rows + row) * columns + column];
        // Solves least squares by normal equations; for a well-conditioned square system this is its solution.
        let mut system: Vec<Vec<f64>> = (0..unknowns)
            .map(|i| {
                let left = (0..unknowns).map(|j| (0..rows).map(|row| element(row, i) * element(row, j)).sum());
                let right = (0..columns).map(|j| (0..rows).map(|row| element(row, i) * right(row, j)).sum());
                left.chain(right).collect()
            })
            .collect();
        all.extend(eliminate(&mut system, columns).into_iter().flatten().map(|value| (value, 10.0 + value.abs())));
    }
    all
}

/// Gauss-Jordan elimination with maximum pivots.
fn eliminate(system: &mut [Vec<f64>], right: usize) -> Vec<Vec<f64>> {
    let unknowns = system.len();
    for at in 0..unknowns {
        let pivot = (at..unknowns).max_by(|a, b| system[*a][at].abs().total_cmp(&system[*b][at].abs())).unwrap();
        system.swap(at, pivot);
        let row = system[at].clone();
        for (_, other) in system.iter_mut().enumerate().filter(|(other, _)| *other != at) {
            let times = other[at] / row[at];
            other.iter_mut().zip(&row).for_each(|(to, value)| *to -= times * value);
        }
    }
    let solved = system.iter().enumerate();
    solved.map(|(at, row)| row[unknowns..unknowns + right].iter().map(|value| value / row[at]).collect()).collect()
}

fn each(map: &Map, values: &[Vec<f64>], sizes: &[Vec<usize>], out: &[usize]) -> ReferenceValues {
    let columns = out[1];
    let input = |which: usize, at: usize| match sizes[which].as_slice() {
        [rows, count] if [*rows, *count] == [out[0], columns] => values[which][at],
        _ if values[which].len() == 1 => values[which][0],
        [count] if *count == columns => values[which][at % columns],
        _ => values[which][at / columns],
    };
    (0..out[0] * columns)
        .map(|at| {
            let (mut stack, mut size) = (Vec::new(), 1.0_f64);
            for step in map.steps() {
                let value = match *step {
                    Step::Input(which) => input(which.into(), at),
                    Step::Constant(value) => value,
                    Step::One(function) => one(function, stack.pop().unwrap()),
                    Step::Two(function) => {
                        let second = stack.pop().unwrap();
                        two(function, stack.pop().unwrap(), second)
                    }
                    Step::Select => {
                        let (third, second, first) = (stack.pop().unwrap(), stack.pop().unwrap(), stack.pop().unwrap());
                        if first == 0.0 { third } else { second }
                    }
                };
                size = size.max(value.abs());
                stack.push(value);
            }
            (stack[0], size * size)
        })
        .collect()
}

fn one(function: Unary, value: f64) -> f64 {
    match function {
        Unary::Negate => -value,
        Unary::Abs => value.abs(),
        Unary::Floor => value.floor(),
        Unary::Sqrt => value.sqrt(),
        Unary::Exp => value.exp(),
        Unary::Log => value.ln(),
        Unary::Tanh => value.tanh(),
    }
}

fn two(function: Binary, first: f64, second: f64) -> f64 {
    match function {
        Binary::Add => first + second,
        Binary::Subtract => first - second,
        Binary::Multiply => first * second,
        Binary::Divide => first / second,
        Binary::Min => first.min(second),
        Binary::Max => first.max(second),
        Binary::Pow => first.powf(second),
        Binary::Less => f64::from(u8::from(first < second)),
    }
}

/// Returns the values along a dimension, for each index of the others.
fn lines(values: &[f64], sizes: &[usize], along: usize) -> Vec<Vec<f64>> {
    let (before, size, behind): (usize, usize, usize) =
        (sizes[..along].iter().product(), sizes[along], sizes[along + 1..].iter().product());
    let firsts = (0..before).flat_map(|at| (0..behind).map(move |column| at * size * behind + column));
    firsts.map(|first| (0..size).map(|at| values[first + at * behind]).collect()).collect()
}

fn reduce(line: &[f64], with: Reduction) -> (f64, f64) {
    let (sum, size): (f64, f64) = (summed(line.iter().copied()), line.iter().map(|value| value.abs()).sum());
    let nan = line.iter().position(|value| value.is_nan());
    let largest = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = line.iter().copied().fold(f64::INFINITY, f64::min);
    let place = |element: f64| nan.or_else(|| line.iter().position(|value| *value == element)).unwrap_or(0) as f64;
    let unless_nan = |value: f64| if nan.is_some() { f64::NAN } else { value };
    match with {
        Reduction::Sum => (sum, size),
        Reduction::Mean => (sum / line.len() as f64, size / line.len() as f64),
        Reduction::Max => (unless_nan(largest), 0.0),
        Reduction::Min => (unless_nan(smallest), 0.0),
        Reduction::ArgMax => (place(largest), 0.0),
        Reduction::ArgMin => (place(smallest), 0.0),
    }
}

fn softmax(line: &[f64]) -> Vec<(f64, f64)> {
    let (largest, _) = reduce(line, Reduction::Max);
    let sum = summed(line.iter().map(|value| (value - largest).exp()));
    line.iter().map(|value| ((value - largest).exp() / sum, 1.0)).collect()
}

fn log_sum_exp(line: &[f64]) -> (f64, f64) {
    let (largest, _) = reduce(line, Reduction::Max);
    if largest.is_infinite() {
        return (largest, 0.0);
    }
    let sum = summed(line.iter().map(|value| (value - largest).exp()));
    (largest + sum.ln(), largest.abs() + 10.0)
}

fn nearest(values: &[Vec<f64>], sizes: &[Vec<usize>]) -> Vec<ReferenceValues> {
    let (points, centres, width) = (sizes[0][0], sizes[1][0], sizes[0][1]);
    let (mut places, mut squares) = (Vec::new(), Vec::new());
    for point in 0..points {
        let square = |centre| square(values, width, point, centre);
        let best = (1..centres).fold(0, |best, centre| if square(centre) < square(best) { centre } else { best });
        places.push((best as f64, 0.0));
        squares.push((square(best), square(best)));
    }
    vec![places, squares]
}

/// Returns the squared distance between a point and a centre.
pub fn square(values: &[Vec<f64>], width: usize, point: usize, centre: usize) -> f64 {
    summed((0..width).map(|k| (values[0][point * width + k] - values[1][centre * width + k]).powi(2)))
}

fn histogram(values: &[Vec<f64>], sizes: &[Vec<usize>], bins: usize) -> ReferenceValues {
    let (features, rows, channels) = (sizes[0][0], sizes[0][1], sizes[1][1]);
    let mut found = vec![(0.0, 0.0); features * bins * channels];
    for (feature, row) in (0..features).flat_map(|feature| (0..rows).map(move |row| (feature, row))) {
        let bin = values[0][feature * rows + row] as usize;
        for channel in (0..channels).filter(|_| bin < bins) {
            let (sum, size) = &mut found[(feature * bins + bin) * channels + channel];
            *sum += values[1][row * channels + channel];
            *size += values[1][row * channels + channel].abs();
        }
    }
    found
}

/// Returns a compensated sum for any number of values: Neumaier, *Rundungsfehleranalyse einiger Verfahren zur Summation
/// endlicher Summen* (1974).
fn summed(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost, mut plain) = (0.0_f64, 0.0, 0.0);
    for value in values {
        let next = sum + value;
        lost += if sum.abs() >= value.abs() { (sum - next) + value } else { (value - next) + sum };
        (sum, plain) = (next, plain + value);
    }
    // Infinities have no rounding error to compensate.
    if plain.is_finite() { sum + lost } else { plain }
}
