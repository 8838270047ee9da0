//! Functions of each value of some tensors: a few steps on a stack, which a device makes a kernel of.

use serde::{Deserialize, Serialize};

use crate::{DenseError, Shape};

/// Steps of a function at most.
pub const STEPS_MAX: usize = 64;
/// Values on its stack at most.
pub const STACK_MAX: usize = 16;

/// A function of one value of each input, in postfix: each step takes what it needs from a stack, and puts there what
/// comes of it. What is left in the end, one value, is the result.
///
/// Steps are those of IEEE 754 in the tensors' type, but for the accuracy of `Exp`, `Log`, `Tanh` and `Pow`, which is a
/// device's (a few units in the last place of f32), and that `Min` and `Max` of a value and NaN may be either.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Map(Vec<Step>);

/// A step of a function.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The value of an input, from 0.
    Input(u8),
    /// A number.
    Constant(f64),
    /// A function of the last value.
    One(Unary),
    /// A function of the last two.
    Two(Binary),
    /// Of the last three the second if the first is not 0, or else the third.
    Select,
}

/// A function of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "their names say it")]
pub enum Unary {
    Negate,
    Abs,
    Floor,
    Sqrt,
    Exp,
    Log,
    Tanh,
}

/// A function of two values, of which the one that came first is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "their names say it")]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Min,
    Max,
    /// NaN for a first value below 0.
    Pow,
    /// 1 or 0.
    Less,
}

/// How a tensor is stretched to a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stretch {
    /// It has that shape.
    Same,
    /// One value.
    Value,
    /// A row, the same for each.
    Row,
    /// A value for each row.
    Column,
}

impl Step {
    /// Values that it takes from the stack.
    fn takes(self) -> usize {
        match self {
            Step::Input(_) | Step::Constant(_) => 0,
            Step::One(_) => 1,
            Step::Two(_) => 2,
            Step::Select => 3,
        }
    }
}

impl Map {
    /// A function of these steps.
    ///
    /// # Errors
    /// [`DenseError::Operation`] when they are none: too many, or their values don't come out even.
    pub fn new(steps: Vec<Step>) -> Result<Map, DenseError> {
        let map = Map(steps);
        map.check(usize::MAX)?;
        Ok(map)
    }

    /// Its steps.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Whether it is a function of so many inputs.
    pub(crate) fn check(&self, inputs: usize) -> Result<(), DenseError> {
        let wrong = |why: String| DenseError::Operation { operation: "map", why };
        if self.0.len() > STEPS_MAX {
            return Err(wrong(format!("it has {} steps, {STEPS_MAX} may be", self.0.len())));
        }
        let mut stack = 0_usize;
        for (at, step) in self.0.iter().enumerate() {
            if let Step::Input(input) = step
                && usize::from(*input) >= inputs
            {
                return Err(wrong(format!("step {at} takes input {input}, and there are {inputs}")));
            }
            let left = stack.checked_sub(step.takes());
            stack = left.ok_or_else(|| wrong(format!("step {at} takes more values than there are")))? + 1;
            if stack > STACK_MAX {
                return Err(wrong(format!("at step {at} there are more than {STACK_MAX} values")));
            }
        }
        match stack {
            1 => Ok(()),
            left => Err(wrong(format!("it leaves {left} values, not one"))),
        }
    }

    /// The shape that inputs of these are stretched to: of the first to which all can be.
    pub(crate) fn shape(&self, inputs: &[Shape]) -> Option<Shape> {
        let takes_all = |to: &&Shape| inputs.iter().all(|shape| stretch(*shape, **to).is_some());
        inputs.iter().find(takes_all).copied()
    }
}

/// How a tensor is stretched to a shape, if it can be.
pub fn stretch(shape: Shape, to: Shape) -> Option<Stretch> {
    if shape == to {
        return Some(Stretch::Same);
    }
    if shape.count() == 1 {
        return Some(Stretch::Value);
    }
    match (shape.sizes(), to.sizes()) {
        ([columns], [.., of_to]) if columns == of_to => Some(Stretch::Row),
        ([rows @ .., 1], [of_to @ .., _]) if rows == of_to => Some(Stretch::Column),
        _ => None,
    }
}
