use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::bindings::dense::{Binary, Step, Unary};

/// An element-wise function of tensors, for [`Tensor::map`](super::Tensor::map): an expression of [`input`]s, numbers
/// and operators.
///
/// ```
/// use sandbar_guest::dense::{Tensor, input};
///
/// # fn main() -> Result<(), sandbar_guest::dense::DenseError> {
/// let x = Tensor::new(&[4], &[-2.0_f64, -1.0, 1.0, 2.0])?;
/// let scale = Tensor::new(&[], &[10.0_f64])?;
/// let relu = input(0).max(0.0) * input(1);
/// assert_eq!(Tensor::map(&relu, &[&x, &scale])?.to_vec::<f64>()?, [0.0, 0.0, 10.0, 20.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Expression(Vec<Step>);

/// The value of a tensor, by its index from 0.
pub fn input(place: u8) -> Expression {
    Expression(vec![Step::Input(place)])
}

impl From<f64> for Expression {
    fn from(value: f64) -> Expression {
        Expression(vec![Step::Constant(value)])
    }
}

impl Expression {
    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    fn one(mut self, function: Unary) -> Expression {
        self.0.push(Step::One(function));
        self
    }

    fn two(mut self, function: Binary, other: impl Into<Expression>) -> Expression {
        self.0.extend(other.into().0);
        self.0.push(Step::Two(function));
        self
    }

    /// The absolute value.
    pub fn abs(self) -> Expression {
        self.one(Unary::Abs)
    }

    /// The largest integer that is not greater.
    pub fn floor(self) -> Expression {
        self.one(Unary::Floor)
    }

    /// The square root.
    pub fn sqrt(self) -> Expression {
        self.one(Unary::Sqrt)
    }

    /// The exponential.
    pub fn exp(self) -> Expression {
        self.one(Unary::Exp)
    }

    /// The natural logarithm.
    pub fn ln(self) -> Expression {
        self.one(Unary::Log)
    }

    /// The hyperbolic tangent.
    pub fn tanh(self) -> Expression {
        self.one(Unary::Tanh)
    }

    /// The smaller of two values.
    pub fn min(self, other: impl Into<Expression>) -> Expression {
        self.two(Binary::Min, other)
    }

    /// The larger of two values.
    pub fn max(self, other: impl Into<Expression>) -> Expression {
        self.two(Binary::Max, other)
    }

    /// A power; NaN for a negative base.
    pub fn pow(self, power: impl Into<Expression>) -> Expression {
        self.two(Binary::Pow, power)
    }

    /// 1 if the value is less than `than`, otherwise 0.
    pub fn less(self, than: impl Into<Expression>) -> Expression {
        self.two(Binary::Less, than)
    }

    /// `first` if the value is not 0, otherwise `second`.
    pub fn select(mut self, first: impl Into<Expression>, second: impl Into<Expression>) -> Expression {
        self.0.extend(first.into().0);
        self.0.extend(second.into().0);
        self.0.push(Step::Select);
        self
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $function:ident),*) => {$(
        impl<T: Into<Expression>> $trait<T> for Expression {
            type Output = Expression;

            fn $method(self, other: T) -> Expression {
                self.two(Binary::$function, other)
            }
        }

        impl $trait<Expression> for f64 {
            type Output = Expression;

            fn $method(self, other: Expression) -> Expression {
                Expression::from(self).two(Binary::$function, other)
            }
        }
    )*};
}

operators!(Add add Add, Sub sub Subtract, Mul mul Multiply, Div div Divide);

impl Neg for Expression {
    type Output = Expression;

    fn neg(self) -> Expression {
        self.one(Unary::Negate)
    }
}
