//! Options of grouping.

/// Options of grouping.
#[derive(Debug, Clone)]
pub struct Grouping {
    /// Key columns, whose values together identify a group: numbers, booleans, strings, binaries, dates, times or
    /// decimals. Without keys all rows are one group.
    pub keys: Vec<String>,
    /// Feature columns: numbers, booleans, dates (as days) and timestamps (as seconds).
    pub features: Vec<String>,
    /// Target column, of the same types as features.
    pub target: String,
    /// Whether the file is part of the key.
    pub per_file: bool,
    /// Fraction of each group's rows for testing, in [0, 1), rounded up. Groups of two or more rows keep at least one
    /// training row, and at least one test row unless the fraction is 0.
    pub test: f64,
    /// Seed that, with the group's key, determines the test rows.
    pub seed: u64,
    /// Minimum rows of a group; smaller groups are skipped.
    pub min_rows: u32,
    /// Approximate bytes of a work unit. A larger group is a unit of its own.
    pub unit_bytes: usize,
}

impl Default for Grouping {
    fn default() -> Self {
        Grouping {
            keys: Vec::new(),
            features: Vec::new(),
            target: String::new(),
            per_file: false,
            test: 0.25,
            seed: 0,
            min_rows: 1,
            unit_bytes: 4 << 20,
        }
    }
}
