//! Matrices.

/// A row-major matrix, or the transpose of one. Rows and columns are those in storage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    pub(super) values: &'a [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) is_transposed: bool,
}

impl<T> Matrix<'_, T> {
    /// Returns the rows and columns of the matrix after transposition.
    pub(super) fn sizes(&self) -> (usize, usize) {
        if self.is_transposed { (self.columns, self.rows) } else { (self.rows, self.columns) }
    }
}
