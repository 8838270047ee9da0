use crate::linear::LinearError;

/// Why a logistic model can't be fitted.
#[derive(Debug, thiserror::Error)]
pub enum LogisticError {
    /// A target that is neither 0 nor 1.
    #[error("the target is {value} in row {row}: it must be 0 or 1")]
    NotBinary {
        /// The first row at fault, from zero.
        row: usize,
        /// The value there.
        value: f64,
    },
    /// Targets that are all 0 or all 1.
    #[error("the target is {value} in all {rows} rows: there must be both 0 and 1")]
    OneClass {
        /// The one value.
        value: f64,
        /// Rows.
        rows: usize,
    },
    /// As for linear models.
    #[error(transparent)]
    Linear(#[from] LinearError),
    /// From linfa's own data-set handling.
    #[error(transparent)]
    Linfa(#[from] linfa::Error),
}
