//! Row layouts of a block. Rows are contiguous: the cells of the key, then a cell for each feature and the target.
//!
//! Most columns have integers or numbers of few digits, which fit half the memory and halve the bytes written and read.
//! Rows of a few integers in narrow ranges, such as ids, counts and seconds, are packed into one word each.

use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};

/// Layout of a block's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowLayout {
    /// Eight-byte cells: key words, and numbers in double precision.
    Wide,
    /// Four-byte cells: key words minus `base`, and numbers that single precision represents exactly.
    Narrow { base: u64 },
    /// One word per row.
    Packed(Packing),
}

impl RowLayout {
    /// Returns the bytes of a row of `cells` cells.
    pub(super) fn row_bytes(self, cells: usize) -> usize {
        match self {
            RowLayout::Wide => cells * size_of::<u64>(),
            RowLayout::Narrow { .. } => cells * size_of::<u32>(),
            RowLayout::Packed(packing) => packing.row_bytes,
        }
    }
}

/// Maximum cells of a packed row.
pub(super) const FIELDS_MAX: usize = 6;

/// Bit layout of a packed row. Key fields come first, in the lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packing {
    /// Four or eight.
    row_bytes: usize,
    cells: usize,
    fields: [PackedField; FIELDS_MAX],
}

/// Field of a packed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PackedField {
    /// Value of zero bits: a key word, or a 32-bit integer in two's complement.
    pub(super) base: u64,
    /// Width in bits, at most 32. A single-precision number takes all 32.
    pub(super) bits: u32,
    /// Whether the field is a single-precision number.
    pub(super) is_float: bool,
    shift: u32,
}

impl Packing {
    /// Returns the packing of these fields, if a row is then smaller than with narrow cells.
    pub(super) fn new(fields: &[PackedField]) -> Option<Packing> {
        let mut packing = Packing { row_bytes: 0, cells: fields.len(), fields: [PackedField::default(); FIELDS_MAX] };
        let mut shift = 0;
        for (to, field) in packing.fields.get_mut(..fields.len())?.iter_mut().zip(fields) {
            if field.bits > u32::BITS || (field.is_float && field.bits < u32::BITS) {
                return None;
            }
            *to = PackedField { shift, ..*field };
            shift += field.bits;
        }
        packing.row_bytes = if shift <= u32::BITS { size_of::<u32>() } else { size_of::<u64>() };
        (shift <= u64::BITS && packing.row_bytes < fields.len() * size_of::<u32>()).then_some(packing)
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the fields of a row.
    pub(super) fn fields(&self) -> &[PackedField] {
        &self.fields[..self.cells]
    }
}

impl PackedField {
    /// Returns a field for words or integers from `base` to `max`, which must not be smaller.
    pub(super) fn of_range(base: u64, max: u64) -> PackedField {
        let bits = u64::BITS - max.wrapping_sub(base).leading_zeros();
        PackedField { base, bits, is_float: false, shift: 0 }
    }

    /// Returns a field for single-precision numbers.
    pub(super) fn of_floats() -> PackedField {
        PackedField { base: 0, bits: u32::BITS, is_float: true, shift: 0 }
    }

    /// Packs narrow key cells, which are relative to `from`, into rows.
    pub(super) fn put_words<R: PackedRow>(self, cells: &[u32], from: u64, rows: &mut [R]) {
        let (mask, over) = (self.mask(), from.wrapping_sub(self.base) as u32);
        // The word of a null is arbitrary.
        self.put(cells, rows, |cell| cell.wrapping_add(over) & mask);
    }

    /// Packs narrow number cells into rows.
    pub(super) fn put_numbers<R: PackedRow>(self, cells: &[u32], rows: &mut [R]) {
        if self.is_float {
            self.put(cells, rows, |cell| cell);
        } else {
            let base = self.base as i32;
            self.put(cells, rows, |cell| int_of(cell).wrapping_sub(base) as u32);
        }
    }

    #[inline]
    fn put<R: PackedRow>(self, cells: &[u32], rows: &mut [R], bits: impl Fn(u32) -> u32) {
        rows.iter_mut().zip(cells).for_each(|(row, cell)| *row = row.with(bits(*cell), self.shift));
    }

    #[inline]
    fn mask(self) -> u32 {
        (1_u64 << self.bits).wrapping_sub(1) as u32
    }

    /// Extracts the key word of a row.
    #[inline]
    pub(super) fn word<R: PackedRow>(self, row: R) -> u64 {
        self.base.wrapping_add(u64::from(row.bits(self.shift) & self.mask()))
    }

    /// Extracts the numbers of rows.
    pub(super) fn numbers<R: PackedRow>(self, rows: &[R], to: &mut [f64]) {
        let (mask, base) = (self.mask(), self.base as i32);
        let both = to.iter_mut().zip(rows);
        if self.is_float {
            both.for_each(|(to, row)| *to = row.bits(self.shift).number());
        } else {
            both.for_each(|(to, row)| *to = f64::from(base.wrapping_add((row.bits(self.shift) & mask) as i32)));
        }
    }
}

/// Row packed into one word.
pub(super) trait PackedRow: BlockWord {
    /// Returns the row with `bits` added at `shift`.
    fn with(self, bits: u32, shift: u32) -> Self;
    /// Returns the bits from `shift` on. `shift` must be smaller than the width of the word.
    fn bits(self, shift: u32) -> u32;
}

impl PackedRow for u32 {
    #[inline]
    fn with(self, bits: u32, shift: u32) -> u32 {
        self | bits.wrapping_shl(shift)
    }

    #[inline]
    fn bits(self, shift: u32) -> u32 {
        self.wrapping_shr(shift)
    }
}

impl PackedRow for u64 {
    #[inline]
    fn with(self, bits: u32, shift: u32) -> u64 {
        self | u64::from(bits).wrapping_shl(shift)
    }

    #[inline]
    fn bits(self, shift: u32) -> u32 {
        self.wrapping_shr(shift) as u32
    }
}

/// In single precision all numbers from this one to twice as much are integers with consecutive bits. Adding a small
/// number to the middle of that range rounds it to one of them, without a conversion or a range check.
const INT_LIMIT: f32 = 8_388_608.0;
/// Moves numbers from `-INT_LIMIT / 2` to less than `INT_LIMIT / 2` into that range.
const ROUNDING_OFFSET: f32 = INT_LIMIT * 1.5;

/// Returns the integer in a narrow cell, which must be within the range of [`int_range`].
#[inline]
fn int_of(cell: u32) -> i32 {
    (f32::from_bits(cell) + ROUNDING_OFFSET).to_bits().wrapping_sub(ROUNDING_OFFSET.to_bits()) as i32
}

/// Returns the range of narrow cells of finite numbers, if all are integers from `-INT_LIMIT / 2` to less than
/// `INT_LIMIT / 2`, and none is -0.0. Without cells returns (`i32::MAX`, `i32::MIN`).
pub(super) fn int_range(cells: &[u32]) -> Option<(i32, i32)> {
    /// Cells that vector instructions compare at once.
    const LANES: usize = 8;
    let (mut least, mut max, mut lost) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES], [0; LANES]);
    let (chunks, rest) = cells.as_chunks::<LANES>();
    let Some(first) = cells.first() else { return Some((i32::MAX, i32::MIN)) };
    let mut last = [*first; LANES];
    last[..rest.len()].copy_from_slice(rest);
    for chunk in chunks.iter().chain([&last]) {
        for i in 0..LANES {
            let number = f32::from_bits(chunk[i]);
            lost[i] |= ((number + ROUNDING_OFFSET) - ROUNDING_OFFSET).to_bits() ^ chunk[i];
            least[i] = if number < least[i] { number } else { least[i] };
            max[i] = if number > max[i] { number } else { max[i] };
        }
    }
    let least = least.into_iter().fold(f32::INFINITY, f32::min);
    let max = max.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let small = -INT_LIMIT / 2.0 <= least && max < INT_LIMIT / 2.0;
    (small && lost == [0; LANES]).then_some((least as i32, max as i32))
}

/// Word of a block. Every bit pattern is valid.
pub(super) trait BlockWord: ArrowNativeType {}

impl BlockWord for u32 {}
impl BlockWord for u64 {}

/// Cell of a row.
pub(super) trait Cell: BlockWord {
    fn of_word(word: u64, base: u64) -> Self;
    fn of_number(number: f64) -> Self;
    /// Converts a narrow cell, whose word is relative to `from`.
    fn of_narrow_word(cell: u32, from: u64, base: u64) -> Self;
    fn of_narrow_number(cell: u32) -> Self;
    fn word(self, base: u64) -> u64;
    fn number(self) -> f64;
}

impl Cell for u64 {
    #[inline]
    fn of_word(word: u64, _base: u64) -> u64 {
        word
    }

    #[inline]
    fn of_number(number: f64) -> u64 {
        number.to_bits()
    }

    #[inline]
    fn of_narrow_word(cell: u32, from: u64, _base: u64) -> u64 {
        cell.word(from)
    }

    #[inline]
    fn of_narrow_number(cell: u32) -> u64 {
        cell.number().to_bits()
    }

    #[inline]
    fn word(self, _base: u64) -> u64 {
        self
    }

    #[inline]
    fn number(self) -> f64 {
        f64::from_bits(self)
    }
}

impl Cell for u32 {
    #[inline]
    fn of_word(word: u64, base: u64) -> u32 {
        word.wrapping_sub(base) as u32
    }

    #[inline]
    fn of_number(number: f64) -> u32 {
        (number as f32).to_bits()
    }

    #[inline]
    fn of_narrow_word(cell: u32, from: u64, base: u64) -> u32 {
        cell.wrapping_add(from.wrapping_sub(base) as u32)
    }

    #[inline]
    fn of_narrow_number(cell: u32) -> u32 {
        cell
    }

    #[inline]
    fn word(self, base: u64) -> u64 {
        base.wrapping_add(u64::from(self))
    }

    #[inline]
    fn number(self) -> f64 {
        f64::from(f32::from_bits(self))
    }
}

/// Converts numbers to narrow cells, if single precision represents all of them exactly, -0.0 included.
pub(super) fn to_f32_cells(numbers: &[f64]) -> Option<Vec<u32>> {
    let mut lost = 0;
    // Without an early exit the loop is vectorised.
    let single = |number: &f64| {
        let single = *number as f32;
        lost |= f64::from(single).to_bits() ^ number.to_bits();
        single.to_bits()
    };
    let cells = numbers.iter().map(single).collect();
    (lost == 0).then_some(cells)
}

/// Views memory as cells or as packed rows.
pub(super) fn cells_mut<C: BlockWord>(memory: &mut [u64]) -> &mut [C] {
    // SAFETY: the target is `u64` or `u32`, for which every bit pattern is valid, and eight aligned bytes are whole
    // cells.
    unsafe { memory.align_to_mut().1 }
}

/// Views rows as cells or as packed rows.
pub(super) fn cells<C: BlockWord>(rows: &Buffer) -> ScalarBuffer<C> {
    ScalarBuffer::new(rows.clone(), 0, rows.len() / size_of::<C>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_numbers_come_back() {
        let exact = [0.0, -0.0, 1.0, -3.5, 16_777_216.0, f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE) / 4.0];
        assert_eq!(to_f32_cells(&[]), Some(Vec::new()));
        let cells = to_f32_cells(&exact).expect("to_f32_cells");
        for (number, cell) in exact.into_iter().zip(cells) {
            assert_eq!(cell, u32::of_number(number));
            assert_eq!(cell.number().to_bits(), number.to_bits());
            assert_eq!(u64::of_narrow_number(cell), number.to_bits());
        }
        for number in [0.1, 16_777_217.0, f64::MAX, 1e-300, f64::from_bits(0x7ff8_5361_6e64_6e75)] {
            assert_eq!(to_f32_cells(&[1.0, number]), None, "{number}");
        }
    }

    #[test]
    fn small_whole_numbers_are_known() {
        let cells = |numbers: &[f64]| to_f32_cells(numbers).expect("to_f32_cells");
        let many: Vec<f64> = (-20..300).map(f64::from).collect();
        for (numbers, expected) in [
            (&[][..], Some((i32::MAX, i32::MIN))),
            (&[0.0], Some((0, 0))),
            (&[5.0, -3.0, 4_194_303.0], Some((-3, 4_194_303))),
            (&[-4_194_304.0], Some((-4_194_304, -4_194_304))),
            (&many, Some((-20, 299))),
            (&many[..27], Some((-20, 6))),
            (&[-0.0], None),
            (&[1.0, 0.5], None),
            (&[4_194_304.0], None),
            (&[-4_194_305.0], None),
            (&[16_777_216.0], None),
        ] {
            assert_eq!(int_range(&cells(numbers)), expected, "{numbers:?}");
        }
    }

    #[test]
    fn packed_rows_come_back() {
        // Keys and their base; for each value column its range, or `None` for any numbers; bytes of a row.
        type Case<'a> = (&'a [u64], u64, &'a [Option<(i32, i32)>], usize);
        let cases: [Case<'_>; 7] = [
            (&[7, 8, 9], 7, &[Some((0, 1)), Some((-5, 500))], 4),
            (&[u64::MAX - 1, u64::MAX], u64::MAX - 9, &[Some((3, 3)), Some((-4_194_304, 4_194_303))], 4),
            (&[0, 1 << 20], 0, &[Some((0, 100)), Some((0, 86_400))], 8),
            (&[0, 255], 0, &[None, Some((-1, 1))], 8),
            (&[], 0, &[Some((0, 0)), Some((0, 9))], 4),
            (&[], 0, &[None, Some((0, 9)), Some((0, 9))], 8),
            (&[1, 2], 1, &[Some((0, 1)), Some((0, 2)), Some((0, 3)), Some((0, 4)), Some((-1, 0))], 4),
        ];
        for (keys, base, columns, bytes) in cases {
            let word = |value: i32| i64::from(value) as u64;
            let key = keys.iter().max().map(|max| PackedField::of_range(base, *max));
            let field_of = |range: &Option<(i32, i32)>| {
                range.map_or(PackedField::of_floats(), |(least, max)| PackedField::of_range(word(least), word(max)))
            };
            let fields: Vec<_> = key.into_iter().chain(columns.iter().map(field_of)).collect();
            let packing = Packing::new(&fields).expect("a packing");
            assert_eq!(packing.row_bytes(), bytes, "{columns:?}");
            let values: Vec<Vec<f64>> = columns
                .iter()
                .map(|range| range.map_or(vec![0.25, -1e9], |(least, max)| vec![f64::from(least), f64::from(max)]))
                .collect();
            if bytes == 4 {
                come_back::<u32>(packing, keys, base, &values);
            } else {
                come_back::<u64>(packing, keys, base, &values);
            }
        }
    }

    fn come_back<R: PackedRow + Default>(packing: Packing, keys: &[u64], base: u64, values: &[Vec<f64>]) {
        let (of_key, of_values) = packing.fields().split_at(usize::from(!keys.is_empty()));
        let mut rows = vec![R::default(); 2];
        // As in a batch, words are relative to another base.
        let from = base.wrapping_sub(3);
        let narrow: Vec<u32> = keys.iter().take(2).map(|key| u32::of_word(*key, from)).collect();
        of_key.iter().for_each(|field| field.put_words(&narrow, from, &mut rows));
        for (field, values) in of_values.iter().zip(values) {
            field.put_numbers(&to_f32_cells(values).expect("to_f32_cells"), &mut rows);
        }
        for (row, key) in rows.iter().zip(keys) {
            assert_eq!(of_key[0].word(*row), *key);
        }
        for (field, values) in of_values.iter().zip(values) {
            let mut numbers = [0.0; 2];
            field.numbers(&rows, &mut numbers);
            assert_eq!(numbers[..], values[..]);
        }
    }

    #[test]
    fn incompressible_fields_are_not_packed() {
        let bits = |bits: u32| PackedField::of_range(0, (1_u64 << bits) - 1);
        for (fields, packed) in [
            (&[bits(32), bits(32)][..], false),
            (&[bits(16), bits(16)], true),
            (&[bits(32), bits(32), bits(0)], true),
            (&[bits(32), bits(32), bits(1)], false),
            (&[bits(33), bits(1), bits(1)], false),
            (&[PackedField { bits: 31, ..PackedField::of_floats() }, bits(1)], false),
            (&[bits(1); FIELDS_MAX], true),
            (&[bits(1); FIELDS_MAX + 1], false),
            (&[], false),
        ] {
            assert_eq!(Packing::new(fields).is_some(), packed, "{fields:?}");
        }
    }

    #[test]
    fn words_come_back() {
        for base in [0, 1 << 63, u64::MAX - 7] {
            for word in [base, base + 7] {
                let cell = u32::of_word(word, base);
                assert_eq!(cell.word(base), word);
                assert_eq!(u64::of_narrow_word(cell, base, 0), word);
                assert_eq!(u32::of_narrow_word(cell, base, base.wrapping_sub(9)), cell + 9);
            }
        }
    }
}
