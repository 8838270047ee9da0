//! Element-wise functions, evaluated block by block: each step processes a whole block.

use super::real::Real;
use crate::DenseError;
use crate::map::{Binary, Broadcast, Map, STACK_MAX, Step, Unary};
use crate::steps::Steps;

/// Values per block: a stack of blocks fits the first-level cache.
const BLOCK: usize = 128;

/// An input of a function, and how its values are broadcast to the output's.
#[derive(Clone, Copy)]
pub(super) struct MapInput<'a, T> {
    pub(super) values: &'a [T],
    pub(super) broadcast: Broadcast,
}

/// Evaluates a function. `columns` is the size of the output's last dimension.
pub(super) fn map<T: Real>(
    map: &Map,
    inputs: &[MapInput<'_, T>],
    columns: usize,
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    let mut stack = [[T::zero(); BLOCK]; STACK_MAX];
    for (at, out) in out.chunks_mut(BLOCK).enumerate() {
        steps.next(BLOCK * map.steps().len())?;
        let first = at * BLOCK;
        let mut top = 0;
        for step in map.steps() {
            match *step {
                Step::Input(input) => {
                    load(inputs[usize::from(input)], first, columns, &mut stack[top][..out.len()]);
                    top += 1;
                }
                Step::Constant(value) => {
                    stack[top].fill(T::from_f64(value));
                    top += 1;
                }
                Step::One(function) => one(function, &mut stack[top - 1]),
                Step::Two(function) => {
                    let (first, second) = stack.split_at_mut(top - 1);
                    two(function, &mut first[top - 2], &second[0]);
                    top -= 1;
                }
                Step::Select => {
                    let (first, others) = stack.split_at_mut(top - 2);
                    for (first, (second, third)) in first[top - 3].iter_mut().zip(others[0].iter().zip(&others[1])) {
                        *first = if *first == T::zero() { *third } else { *second };
                    }
                    top -= 2;
                }
            }
        }
        out.copy_from_slice(&stack[0][..out.len()]);
    }
    Ok(())
}

/// Loads the broadcast values of an input for the output's values from `first` on.
fn load<T: Real>(input: MapInput<'_, T>, first: usize, columns: usize, to: &mut [T]) {
    let values = input.values;
    match input.broadcast {
        Broadcast::Same => to.copy_from_slice(&values[first..first + to.len()]),
        Broadcast::Value => to.fill(values[0]),
        Broadcast::Row => {
            let all = values.iter().cycle().skip(first % columns);
            to.iter_mut().zip(all).for_each(|(to, value)| *to = *value);
        }
        Broadcast::Column => to.iter_mut().enumerate().for_each(|(at, to)| *to = values[(first + at) / columns]),
    }
}

fn one<T: Real>(function: Unary, values: &mut [T]) {
    let each = |values: &mut [T], op: fn(T) -> T| values.iter_mut().for_each(|value| *value = op(*value));
    match function {
        Unary::Negate => each(values, |value| -value),
        Unary::Abs => each(values, T::abs),
        Unary::Floor => each(values, T::floor),
        Unary::Sqrt => each(values, T::sqrt),
        Unary::Exp => each(values, T::exp),
        Unary::Log => each(values, T::ln),
        Unary::Tanh => each(values, T::tanh),
    }
}

fn two<T: Real>(function: Binary, first: &mut [T], second: &[T]) {
    let each = |first: &mut [T], op: fn(T, T) -> T| {
        first.iter_mut().zip(second).for_each(|(first, second)| *first = op(*first, *second));
    };
    match function {
        Binary::Add => each(first, |first, second| first + second),
        Binary::Subtract => each(first, |first, second| first - second),
        Binary::Multiply => each(first, |first, second| first * second),
        Binary::Divide => each(first, |first, second| first / second),
        Binary::Min => each(first, T::min),
        Binary::Max => each(first, T::max),
        Binary::Pow => each(first, |first, power| if first < T::zero() { T::nan() } else { first.powf(power) }),
        Binary::Less => each(first, |first, second| if first < second { T::one() } else { T::zero() }),
    }
}
