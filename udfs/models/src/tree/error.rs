/// The error of fitting, applying or decoding a tree or a forest.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TreeError {
    /// The data has no feature columns.
    #[error("the data has no feature columns: pass at least one")]
    NoFeatures,
    /// The data has no rows.
    #[error("the data has no rows: pass at least one")]
    NoRows,
    /// The data has more rows than a tree can index.
    #[error("the data has {rows} rows, the limit is {}: train on a sample", super::ROWS_MAX)]
    TooManyRows {
        /// Number of rows.
        rows: usize,
    },
    /// A column or the target has another length than the first column.
    #[error("{column} has {found} rows where {expected} are expected")]
    Ragged {
        /// The column.
        column: String,
        /// Length of the first column.
        expected: usize,
        /// Length of this column.
        found: usize,
    },
    /// A value is NaN or infinite.
    #[error("{column} is {value} in row {row}: drop or fill such rows before training")]
    NotFinite {
        /// The column.
        column: String,
        /// First such row, from zero.
        row: usize,
        /// Its value.
        value: f64,
    },
    /// A target is so large that its sums of squares could overflow.
    #[error("the target is {value:e} in row {row}, the limit is {:e}: rescale it", super::TARGET_MAGNITUDE_MAX)]
    TargetTooLarge {
        /// First such row, from zero.
        row: usize,
        /// Its value.
        value: f64,
    },
    /// A parameter is out of range.
    #[error("{name} is {value}, it must be {range}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// Its valid range.
        range: &'static str,
    },
    /// The data and the model differ in the number of features.
    #[error("the model was trained on {expected} features, the data has {found}")]
    Width {
        /// Number of features of the model.
        expected: usize,
        /// Number of features of the data.
        found: usize,
    },
    /// The bytes are not a tree or a forest.
    #[error("not a valid model: {0}")]
    Malformed(&'static str),
    /// An error of linfa's data-set handling.
    #[error(transparent)]
    Linfa(#[from] linfa::Error),
}
