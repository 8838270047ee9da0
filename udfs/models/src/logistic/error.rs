use crate::linear::LinearError;

/// The error of fitting a logistic model.
#[derive(Debug, thiserror::Error)]
pub enum LogisticError {
    /// A target is neither 0 nor 1.
    #[error("the target is {value} in row {row}: it must be 0 or 1")]
    NotBinary {
        /// First such row, from zero.
        row: usize,
        /// Its value.
        value: f64,
    },
    /// All targets are 0, or all are 1.
    #[error("the target is {value} in all {rows} rows: there must be both 0 and 1")]
    OneClass {
        /// The value.
        value: f64,
        /// Number of rows.
        rows: usize,
    },
    /// An error of linear models.
    #[error(transparent)]
    Linear(#[from] LinearError),
    /// An error of linfa's data-set handling.
    #[error(transparent)]
    Linfa(#[from] linfa::Error),
}
