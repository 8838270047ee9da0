/// Why a linear model can't be fitted, or bytes are not one.
#[derive(Debug, thiserror::Error)]
pub enum LinearError {
    /// Nothing to train on.
    #[error("the data has no rows to train on: pass at least one")]
    NoRows,
    /// The target has another length than the features.
    #[error("the target has {found} rows where the features have {expected}")]
    Ragged {
        /// Rows of the features.
        expected: usize,
        /// Rows of the target.
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
    /// Finite values whose squares or products are not.
    #[error("sums of squares overflow: rescale features and target to magnitudes below 1e150")]
    TooLarge,
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
    /// Serialised bytes that are not a linear model.
    #[error("not a valid model: {0}")]
    Malformed(&'static str),
    /// From linfa's coordinate descent.
    #[error(transparent)]
    ElasticNet(#[from] linfa_elasticnet::ElasticNetError),
    /// From linfa's own data-set handling.
    #[error(transparent)]
    Linfa(#[from] linfa::Error),
}
