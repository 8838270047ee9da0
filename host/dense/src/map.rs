//! Element-wise functions of tensors, as short stack programs that devices compile to kernels.

use serde::{Deserialize, Serialize};

use crate::{DenseError, Shape};

/// Maximum number of steps of a function.
pub const STEPS_MAX: usize = 64;
/// Maximum number of values on the stack.
pub const STACK_MAX: usize = 16;

/// A function of one value of each input, in postfix: each step pops its operands from a stack and pushes its result.
/// The single remaining value is the result.
///
/// Steps follow IEEE 754 in the tensors' type, with two exceptions: the accuracy of `Exp`, `Log`, `Tanh` and `Pow` is
/// the device's (a few units in the last place of f32), and `Min` and `Max` of a value and NaN may return either.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Map(Vec<Step>);

/// A step of a function.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The value of the input with this index.
    Input(u8),
    /// A constant.
    Constant(f64),
    /// A function of the top value.
    One(Unary),
    /// A function of the top two values.
    Two(Binary),
    /// Pops three values: pushes the second if the first is not 0, else the third.
    Select,
}

/// A function of one value.
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

/// A function of two values; the first operand is the one that was pushed first.
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
    /// NaN if the first operand is below 0.
    Pow,
    /// 1 or 0.
    Less,
}

/// Broadcast of a tensor to a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broadcast {
    /// The shapes are equal.
    Same,
    /// One value for all.
    Value,
    /// The same row for all rows.
    Row,
    /// One value for each row.
    Column,
}

impl Step {
    /// Returns the number of values popped from the stack.
    fn arity(self) -> usize {
        match self {
            Step::Input(_) | Step::Constant(_) => 0,
            Step::One(_) => 1,
            Step::Two(_) => 2,
            Step::Select => 3,
        }
    }
}

impl Map {
    /// Creates a function.
    ///
    /// # Errors
    /// [`DenseError::Operation`] if it has too many steps, or does not leave exactly one value.
    pub fn new(steps: Vec<Step>) -> Result<Map, DenseError> {
        let map = Map(steps);
        map.check(usize::MAX)?;
        Ok(map)
    }

    /// Returns the steps.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Validates the function for a number of inputs.
    pub(crate) fn check(&self, inputs: usize) -> Result<(), DenseError> {
        let wrong = |why: String| DenseError::Operation { operation: "map", why };
        if self.0.len() > STEPS_MAX {
            return Err(wrong(format!("it has {} steps, the maximum is {STEPS_MAX}", self.0.len())));
        }
        let mut stack = 0_usize;
        for (at, step) in self.0.iter().enumerate() {
            if let Step::Input(input) = step
                && usize::from(*input) >= inputs
            {
                return Err(wrong(format!("step {at} takes input {input}, the number of inputs is {inputs}")));
            }
            let left = stack.checked_sub(step.arity());
            stack = left.ok_or_else(|| wrong(format!("step {at} takes more values than the stack holds")))? + 1;
            if stack > STACK_MAX {
                return Err(wrong(format!("step {at} leaves more than {STACK_MAX} values on the stack")));
            }
        }
        match stack {
            1 => Ok(()),
            left => Err(wrong(format!("it leaves {left} values, not one"))),
        }
    }

    /// Returns the first input shape to which all inputs can be broadcast.
    pub(crate) fn shape(&self, inputs: &[Shape]) -> Option<Shape> {
        let takes_all = |to: &&Shape| inputs.iter().all(|shape| broadcast(*shape, **to).is_some());
        inputs.iter().find(takes_all).copied()
    }
}

/// Returns how a shape is broadcast to another, if it can be.
pub fn broadcast(shape: Shape, to: Shape) -> Option<Broadcast> {
    if shape == to {
        return Some(Broadcast::Same);
    }
    if shape.count() == 1 {
        return Some(Broadcast::Value);
    }
    match (shape.sizes(), to.sizes()) {
        ([columns], [.., of_to]) if columns == of_to => Some(Broadcast::Row),
        ([rows @ .., 1], [of_to @ .., _]) if rows == of_to => Some(Broadcast::Column),
        _ => None,
    }
}
