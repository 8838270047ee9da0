//! How the rows of a block lie: one after another, each a cell for each word of
//! its key, and then one for each feature and the target.
//!
//! Most columns are whole numbers, or have few digits: then half the memory holds
//! them, and half of it has to be written and read.

use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};

/// How wide the cells of a block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Eight bytes: words, and numbers in double precision.
    Wide,
    /// Four bytes: what words have over `base`, and numbers that are the same in single precision.
    Narrow { base: u64 },
}

impl Layout {
    pub(super) fn cell_bytes(self) -> usize {
        match self {
            Layout::Wide => size_of::<u64>(),
            Layout::Narrow { .. } => size_of::<u32>(),
        }
    }
}

/// A cell of a row.
pub(super) trait Cell: ArrowNativeType {
    fn of_word(word: u64, base: u64) -> Self;
    fn of_number(number: f64) -> Self;
    /// From a narrow cell, of a word over `from`.
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

/// Numbers as narrow cells, if all are the same in single precision, -0.0 included.
pub(super) fn singles(numbers: &[f64]) -> Option<Vec<u32>> {
    let mut lost = 0;
    // No early exit: a loop without one is made of vector instructions.
    let single = |number: &f64| {
        let single = *number as f32;
        lost |= f64::from(single).to_bits() ^ number.to_bits();
        single.to_bits()
    };
    let cells = numbers.iter().map(single).collect();
    (lost == 0).then_some(cells)
}

/// The cells of memory that is zero or was written as cells.
pub(super) fn cells_mut<C: Cell>(memory: &mut [u64]) -> &mut [C] {
    // SAFETY: cells are `u64` or `u32`: any bytes are one, and eight bytes are whole cells, aligned.
    unsafe { memory.align_to_mut().1 }
}

/// Rows as cells.
pub(super) fn cells<C: Cell>(rows: &Buffer) -> ScalarBuffer<C> {
    ScalarBuffer::new(rows.clone(), 0, rows.len() / size_of::<C>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_numbers_come_back() {
        let exact = [0.0, -0.0, 1.0, -3.5, 16_777_216.0, f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE) / 4.0];
        assert_eq!(singles(&[]), Some(Vec::new()));
        let cells = singles(&exact).expect("singles");
        for (number, cell) in exact.into_iter().zip(cells) {
            assert_eq!(cell, u32::of_number(number));
            assert_eq!(cell.number().to_bits(), number.to_bits());
            assert_eq!(u64::of_narrow_number(cell), number.to_bits());
        }
        for number in [0.1, 16_777_217.0, f64::MAX, 1e-300, f64::from_bits(0x7ff8_5361_6e64_6e75)] {
            assert_eq!(singles(&[1.0, number]), None, "{number}");
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
