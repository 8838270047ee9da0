//! Native code beside guest functions.

use super::collect::Collectors;
use super::stored::StoredReaders;

/// Native code that a worker runs besides guest functions.
#[derive(Debug, Clone, Copy)]
pub struct NativeHandlers {
    /// Creates collectors of output.
    pub collectors: Collectors,
    /// Creates readers of stored inputs.
    pub readers: StoredReaders,
}
