//! Record syntax of a file.

use super::csv::CsvSyntax;
use super::json;

/// Record syntax of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Syntax {
    Csv(CsvSyntax),
    Json,
}

impl Syntax {
    /// Returns whether lines that start with `byte` are skipped.
    pub(super) fn skips(self, byte: u8) -> bool {
        matches!(self, Syntax::Csv(csv) if csv.comment == Some(byte))
    }

    /// Decodes an escaped value.
    pub(super) fn unescape(self, text: &[u8], to: &mut Vec<u8>) -> Result<(), &'static str> {
        match self {
            Syntax::Csv(csv) => {
                csv.unescape(text, to);
                Ok(())
            }
            Syntax::Json => json::unescape(text, to),
        }
    }
}
