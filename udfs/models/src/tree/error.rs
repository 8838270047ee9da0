/// Why a tree or a forest could not be fitted, applied or read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TreeError {
    /// There is no column to split on.
    #[error("the data has no feature columns: pass at least one")]
    NoFeatures,
    /// There is no row to learn from.
    #[error("the data has no rows: pass at least one")]
    NoRows,
    /// More rows than a tree can index.
    #[error("the data has {rows} rows, the limit is {}: train on a sample", super::ROWS_MAX)]
    TooManyRows {
        /// Rows given.
        rows: usize,
    },
    /// A column or the target has another length than the first column.
    #[error("{what} has {found} rows where {expected} are expected")]
    Ragged {
        /// The column at fault.
        what: String,
        /// Rows of the first column.
        expected: usize,
        /// Rows of the column at fault.
        found: usize,
    },
    /// A NaN or an infinity.
    #[error("{what} is {value} in row {row}: drop or fill such rows before training")]
    NotFinite {
        /// The column at fault.
        what: String,
        /// Its first row at fault, from zero.
        row: usize,
        /// The value there.
        value: f64,
    },
    /// A target so large that its sums of squares could overflow.
    #[error("the target is {value:e} in row {row}, the limit is {:e}: rescale it", super::TARGET_MAGNITUDE_MAX)]
    TargetTooLarge {
        /// The first row at fault, from zero.
        row: usize,
        /// The value there.
        value: f64,
    },
    /// A parameter outside its range.
    #[error("{name} is {value}, it must be {range}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// Data with another number of columns than the model was trained on.
    #[error("the model was trained on {expected} features, the data has {found}")]
    Width {
        /// Features of the model.
        expected: usize,
        /// Features of the data.
        found: usize,
    },
    /// Serialised bytes that are not a tree or a forest.
    #[error("not a valid model: {0}")]
    Malformed(&'static str),
    /// From linfa's own data-set handling.
    #[error(transparent)]
    Linfa(#[from] linfa::Error),
}
