/// The error of fitting or decoding a linear model.
#[derive(Debug, thiserror::Error)]
pub enum LinearError {
    /// The group has no rows to train on.
    #[error("the data has no rows to train on: pass at least one")]
    NoRows,
    /// The target and the features have different lengths.
    #[error("the target has {found} rows where the features have {expected}")]
    Ragged {
        /// Rows of the features.
        expected: usize,
        /// Rows of the target.
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
    /// Squares or products of finite values overflow.
    #[error("sums of squares overflow: rescale features and target to magnitudes below 1e150")]
    TooLarge,
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
    /// The bytes are not a linear model.
    #[error("not a valid model: {0}")]
    Malformed(&'static str),
    /// An error of linfa's coordinate descent.
    #[error(transparent)]
    ElasticNet(#[from] linfa_elasticnet::ElasticNetError),
    /// An error of linfa's data-set handling.
    #[error(transparent)]
    Linfa(#[from] linfa::Error),
}
