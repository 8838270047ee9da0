use super::TreeError;

/// The most rows a tree is grown on: its nodes, fewer than twice as many, are indexed with 32 bits.
pub const ROWS_MAX: usize = 1 << 31;

/// The largest magnitude of a target: with at most [`ROWS_MAX`] rows no sum of squares overflows below it.
pub const TARGET_MAGNITUDE_MAX: f64 = 2.582_249_878_086_908_6e120;

/// Values this close are one value, to a split (scikit-learn's `FEATURE_THRESHOLD`).
pub(super) const SEPARATION_MIN: f64 = 1e-7;

/// A checked data set with every feature sorted once; what trees are grown from.
///
/// Building it costs a sort per feature, growing a tree from it only linear passes, so trees, forests and parameter
/// searches over the same data should share one. Takes up to 16 bytes a cell; growing a tree takes 16 bytes a cell more.
#[derive(Debug, Clone)]
pub struct TrainingSet {
    pub(super) features: Vec<SortedFeature>,
    pub(super) target: Vec<f64>,
}

/// One feature in ascending order.
#[derive(Debug, Clone)]
pub(super) struct SortedFeature {
    /// The distinct values, ascending: a rank is an index into it.
    pub(super) values: Vec<f64>,
    /// `rank << 32 | row`, ascending by rank, rows of one rank in their own order.
    pub(super) order: Vec<u64>,
    /// Whether some neighbouring values are within [`SEPARATION_MIN`], so that ranks alone cannot tell values apart.
    pub(super) crowded: bool,
}

impl TrainingSet {
    /// Checks and sorts `columns` (each a feature, all of the target's length) and `target`.
    ///
    /// # Errors
    /// [`TreeError::NoFeatures`], [`TreeError::NoRows`], [`TreeError::TooManyRows`], [`TreeError::Ragged`],
    /// [`TreeError::NotFinite`], [`TreeError::TargetTooLarge`].
    pub fn new(columns: &[&[f64]], target: &[f64]) -> Result<Self, TreeError> {
        let expected = columns.first().ok_or(TreeError::NoFeatures)?.len();
        check_rows(expected)?;
        for (index, column) in columns.iter().enumerate() {
            check_column(|| format!("feature {index}"), column, expected)?;
        }
        check_column(|| "the target".to_owned(), target, expected)?;
        if let Some(row) = target.iter().position(|value| value.abs() > TARGET_MAGNITUDE_MAX) {
            return Err(TreeError::TargetTooLarge { row, value: target[row] });
        }
        let mut scratch = [Vec::new(), Vec::new()];
        let features = columns.iter().map(|column| SortedFeature::new(column, &mut scratch)).collect();
        Ok(Self { features, target: target.to_vec() })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.target.len()
    }

    /// Feature columns.
    pub fn features(&self) -> usize {
        self.features.len()
    }
}

impl SortedFeature {
    fn new(column: &[f64], scratch: &mut [Vec<(u64, u32)>; 2]) -> Self {
        sort(column, scratch);
        let mut values = Vec::new();
        let mut order = Vec::with_capacity(column.len());
        let mut last = None;
        for &(bits, row) in &scratch[0] {
            if last != Some(bits) {
                values.push(from_ordered_bits(bits));
                last = Some(bits);
            }
            order.push((values.len() as u64 - 1) << 32 | u64::from(row));
        }
        let crowded = values.windows(2).any(|pair| !separated(pair[0], pair[1]));
        Self { values, order, crowded }
    }
}

/// Puts the values of a column, as ordered bits with their rows, in ascending order into the first of `scratch`, rows of
/// equal values in their own order: a radix sort, byte by byte from the lowest. Most bytes of most columns (of whole
/// numbers, of money) are the same throughout, and cost nothing.
fn sort(column: &[f64], scratch: &mut [Vec<(u64, u32)>; 2]) {
    let mut counts = [[0u32; 256]; 8];
    let [sorted, other] = scratch;
    sorted.clear();
    sorted.extend((0..).zip(column).map(|(row, &value)| (to_ordered_bits(value), row)));
    for &(bits, _) in sorted.iter() {
        bits.to_le_bytes().into_iter().zip(&mut counts).for_each(|(byte, counts)| counts[usize::from(byte)] += 1);
    }
    other.resize(column.len(), (0, 0));
    for (place, counts) in counts.iter_mut().enumerate() {
        if counts.iter().any(|count| *count as usize == column.len()) {
            continue;
        }
        let mut starts = 0;
        for count in counts.iter_mut() {
            starts += std::mem::replace(count, starts);
        }
        for &entry in sorted.iter() {
            let start = &mut counts[usize::from(entry.0.to_le_bytes()[place])];
            other[*start as usize] = entry;
            *start += 1;
        }
        std::mem::swap(sorted, other);
    }
}

/// Whether a split may fall between `low` and `high`.
#[inline]
pub(super) fn separated(low: f64, high: f64) -> bool {
    high > low + SEPARATION_MIN
}

pub(super) fn check_rows(rows: usize) -> Result<(), TreeError> {
    match rows {
        0 => Err(TreeError::NoRows),
        1..=ROWS_MAX => Ok(()),
        _ => Err(TreeError::TooManyRows { rows }),
    }
}

fn check_column(what: impl Fn() -> String, column: &[f64], expected: usize) -> Result<(), TreeError> {
    if column.len() != expected {
        return Err(TreeError::Ragged { what: what(), expected, found: column.len() });
    }
    match column.iter().position(|value| !value.is_finite()) {
        Some(row) => Err(TreeError::NotFinite { what: what(), row, value: column[row] }),
        None => Ok(()),
    }
}

/// A bijection from finite floats to integers that keeps their order (with negative zero before zero).
fn to_ordered_bits(value: f64) -> u64 {
    let bits = value.to_bits();
    bits ^ (((bits as i64 >> 63) as u64) | 1 << 63)
}

fn from_ordered_bits(bits: u64) -> f64 {
    f64::from_bits(bits ^ (((!bits as i64 >> 63) as u64) | 1 << 63))
}
