use std::borrow::Cow;

use super::{ROWS_MAX, TARGET_MAGNITUDE_MAX, TreeError};

/// Values at most this far apart are equal for a split (scikit-learn's `FEATURE_THRESHOLD`).
pub(super) const SEPARATION_MIN: f64 = 1e-7;

/// A checked data set with every feature sorted once, for growing trees.
///
/// Building it costs a sort per feature; growing a tree from it costs only linear passes. Trees, forests and parameter
/// searches over the same data should share one. It takes up to 16 bytes per cell; growing a tree takes as many more.
#[derive(Debug, Clone)]
pub struct TrainingSet {
    pub(super) features: Vec<SortedFeature>,
    pub(super) target: Vec<f64>,
}

/// One feature in ascending order.
#[derive(Debug, Clone)]
pub(super) struct SortedFeature {
    /// The distinct values, ascending. A rank is an index into them.
    pub(super) values: Vec<f64>,
    rows: Rows,
    /// Whether some neighbouring values are within [`SEPARATION_MIN`], so that different ranks do not imply separable
    /// values.
    pub(super) crowded: bool,
}

/// The rows of a feature, in one of two representations.
#[derive(Debug, Clone)]
enum Rows {
    /// `rank << 32 | row`, ascending by rank, then by row.
    Order(Vec<u64>),
    /// The rank of each row.
    Ranks(Vec<u32>),
}

impl TrainingSet {
    /// Checks and sorts `columns` (one per feature, each as long as the target) and `target`.
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
        let mut features: Vec<_> = columns.iter().map(|column| SortedFeature::new(column, &mut scratch)).collect();
        if features.len() > 1 {
            // With several features, each tree uses the order; with one, the ranks.
            features.iter_mut().for_each(SortedFeature::convert_to_order);
        }
        Ok(Self { features, target: target.to_vec() })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.target.len()
    }

    /// Number of features.
    pub fn features(&self) -> usize {
        self.features.len()
    }
}

impl SortedFeature {
    fn new(column: &[f64], scratch: &mut [Vec<(u64, u32)>; 2]) -> Self {
        if let Some((values, ranks)) = ranks_of_whole(column) {
            return Self { values, rows: Rows::Ranks(ranks), crowded: false };
        }
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
        Self { values, rows: Rows::Order(order), crowded }
    }

    /// `rank << 32 | row`, ascending by rank, then by row.
    pub(super) fn order(&self) -> Cow<'_, [u64]> {
        let ranks = match &self.rows {
            Rows::Order(order) => return order.into(),
            Rows::Ranks(ranks) => ranks,
        };
        let mut places = vec![0u32; self.values.len()];
        ranks.iter().for_each(|rank| places[*rank as usize] += 1);
        starts(&mut places);
        let mut order = vec![0; ranks.len()];
        for (row, &rank) in (0..).zip(ranks) {
            let place = &mut places[rank as usize];
            order[*place as usize] = u64::from(rank) << 32 | row;
            *place += 1;
        }
        order.into()
    }

    /// Converts the rows to the ordered representation.
    fn convert_to_order(&mut self) {
        let converted = match self.order() {
            Cow::Owned(order) => Some(order),
            Cow::Borrowed(_) => None,
        };
        if let Some(order) = converted {
            self.rows = Rows::Order(order);
        }
    }

    /// The rank of each row.
    pub(super) fn ranks(&self) -> Cow<'_, [u32]> {
        let order = match &self.rows {
            Rows::Order(order) => order,
            Rows::Ranks(ranks) => return ranks.into(),
        };
        let mut ranks = vec![0; order.len()];
        order.iter().for_each(|entry| ranks[*entry as u32 as usize] = (entry >> 32) as u32);
        ranks.into()
    }
}

/// Computes the distinct values and the rank of each row, for integers with a range of at most the number of rows: by
/// table lookup, without a sort. None for other columns. Negative zero does not count as an integer, because its rows
/// come before those of zero.
fn ranks_of_whole(column: &[f64]) -> Option<(Vec<f64>, Vec<u32>)> {
    let (mut low, mut high, mut whole) = (i32::MAX, i32::MIN, true);
    for value in column {
        let number = *value as i32;
        low = low.min(number);
        high = high.max(number);
        whole &= f64::from(number).to_bits() == value.to_bits();
    }
    let span = usize::try_from(i64::from(high) - i64::from(low) + 1).ok()?;
    if !whole || span > column.len() {
        return None;
    }
    let mut ranks: Vec<u32> = column.iter().map(|value| (*value as i32).abs_diff(low)).collect();
    let mut there = vec![false; span];
    ranks.iter().for_each(|above| there[*above as usize] = true);
    let mut values = Vec::new();
    let mut rank_of = vec![0; span];
    for (above, rank) in rank_of.iter_mut().enumerate().filter(|(above, _)| there[*above]) {
        *rank = values.len() as u32;
        values.push(f64::from(low) + above as f64);
    }
    ranks.iter_mut().for_each(|above| *above = rank_of[*above as usize]);
    Some((values, ranks))
}

/// Converts counts to start positions.
fn starts(counts: &mut [u32]) {
    let mut start = 0;
    for count in counts {
        start += std::mem::replace(count, start);
    }
}

/// Sorts a column into the first of `scratch`, as ordered bits with their rows, ascending, then by row. A radix sort,
/// from the lowest byte on. In most columns (integers, amounts of money) most bytes are constant and cost nothing.
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
        starts(counts);
        for &entry in sorted.iter() {
            let start = &mut counts[usize::from(entry.0.to_le_bytes()[place])];
            other[*start as usize] = entry;
            *start += 1;
        }
        std::mem::swap(sorted, other);
    }
}

/// Returns whether a split can fall between `low` and `high`.
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

fn check_column(name: impl Fn() -> String, column: &[f64], expected: usize) -> Result<(), TreeError> {
    if column.len() != expected {
        return Err(TreeError::Ragged { column: name(), expected, found: column.len() });
    }
    match column.iter().position(|value| !value.is_finite()) {
        Some(row) => Err(TreeError::NotFinite { column: name(), row, value: column[row] }),
        None => Ok(()),
    }
}

/// An order-preserving bijection from finite floats to integers (negative zero precedes zero).
fn to_ordered_bits(value: f64) -> u64 {
    let bits = value.to_bits();
    bits ^ (((bits as i64 >> 63) as u64) | 1 << 63)
}

fn from_ordered_bits(bits: u64) -> f64 {
    f64::from_bits(bits ^ (((!bits as i64 >> 63) as u64) | 1 << 63))
}

#[cfg(test)]
mod tests {
    use super::super::Draws;
    use super::*;

    /// Distinct values and order, by a comparison sort.
    fn sorted(column: &[f64]) -> (Vec<u64>, Vec<u64>) {
        let mut rows: Vec<(u64, u64)> = (0..).zip(column).map(|(row, v)| (to_ordered_bits(*v), row)).collect();
        rows.sort_unstable();
        let mut values: Vec<u64> = rows.iter().map(|(bits, _)| *bits).collect();
        values.dedup();
        let rank = |bits| values.binary_search(&bits).unwrap() as u64;
        let order = rows.iter().map(|(bits, row)| rank(*bits) << 32 | row).collect();
        (values, order)
    }

    #[test]
    fn every_column_is_in_order() {
        let mut draws = Draws::stream(11, 0);
        let mut number = |below: u32, unit: f64, above: f64| (f64::from(draws.below(below)) - above) * unit;
        for (below, unit, above, sorts) in [
            (1, 1.0, 0.0, false),
            (300, 1.0, 0.0, false),
            (300, 1.0, 150.0, false),
            (300, 1.0, -2_147_483_347.0, false),
            (300, 1.0, 2_147_483_648.0, false),
            (300, 1.0, -2_147_483_400.0, true),
            (300, 0.25, 0.0, true),
            (30, -1.0, 0.0, true),
            (1_000_000, 1.0, 0.0, true),
        ] {
            let column: Vec<f64> = (0..1_000).map(|_| number(below, unit, above)).collect();
            let feature = SortedFeature::new(&column, &mut [Vec::new(), Vec::new()]);
            let name = format!("{below} {unit} {above}");
            assert_eq!(matches!(feature.rows, Rows::Order(_)), sorts, "{name}");
            let (values, order) = sorted(&column);
            assert_eq!(feature.values.iter().map(|v| to_ordered_bits(*v)).collect::<Vec<_>>(), values, "{name}");
            assert_eq!(*feature.order(), order, "{name}");
            let ranks = feature.ranks();
            assert!(order.iter().all(|entry| u64::from(ranks[*entry as u32 as usize]) == entry >> 32), "{name}");
        }
    }
}
