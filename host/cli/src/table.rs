//! Text tables: columns as wide as their contents, with text aligned left and numbers right.

use crate::plain::plain;

/// Rows under a header.
#[derive(Debug)]
pub(crate) struct Columns {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

/// Maximum width of a cell, in characters: guests choose names.
const CELL_CHARS_MAX: usize = 60;

impl Columns {
    pub(crate) fn new(header: &[&'static str]) -> Columns {
        Columns { header: header.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| shortened(cell)).collect());
    }

    /// Returns the lines of the table.
    pub(crate) fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.header[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let is_number = |column: usize| {
            let mut cells = self.rows.iter().map(|row| row[column].as_str()).filter(|cell| *cell != NOTHING).peekable();
            cells.peek().is_some() && cells.all(is_amount)
        };
        let numbers: Vec<bool> = (0..self.header.len()).map(is_number).collect();
        let line = |cells: Vec<&str>| {
            let padded = cells.iter().zip(widths.iter().zip(&numbers)).map(|(cell, (width, number))| match number {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let header = line(self.header.clone());
        let rows = self.rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
        std::iter::once(header).chain(rows).collect()
    }
}

/// Returns whether a cell is a number, with or without a unit after a space.
fn is_amount(cell: &str) -> bool {
    let number = cell.split(' ').next().unwrap_or(cell);
    !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || ".,%/".contains(c))
}

/// Maximum number of characters of a program's path in a list.
const PROGRAM_CHARS_MAX: usize = 40;

/// Shortens a program's path at its start; its end distinguishes programs.
pub(crate) fn ending(program: &str) -> String {
    let over = program.chars().count().saturating_sub(PROGRAM_CHARS_MAX);
    if over == 0 { program.to_owned() } else { format!("…{}", program.chars().skip(over + 1).collect::<String>()) }
}

/// Text of an empty cell.
const NOTHING: &str = "-";

/// Formats an optional value.
pub(crate) fn cell<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| value.to_string())
}

/// Formats a guest's text as a cell of one line; the text of a panic has several.
fn shortened(cell: &str) -> String {
    // A row is one line, and its width counts visible characters.
    let cell: String = cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let cell = plain(&cell);
    match cell.char_indices().nth(CELL_CHARS_MAX) {
        Some(_) => cell.chars().take(CELL_CHARS_MAX - 1).chain(['…']).collect(),
        None => cell.into_owned(),
    }
}

/// Formats a duration in nanoseconds.
pub(crate) fn time(nanos: u64) -> String {
    const UNITS: [(&str, f64); 4] = [("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)];
    let nanos = nanos as f64;
    let (unit, size) = UNITS.into_iter().find(|(_, size)| nanos >= *size).unwrap_or(("ns", 1.0));
    match nanos / size {
        amount if amount >= 100.0 || size == 1.0 => format!("{amount:.0} {unit}"),
        amount => format!("{amount:.1} {unit}"),
    }
}

/// Formats a number of bytes.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.into_iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / size as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        for (nanos, expected) in
            [(0, "0 ns"), (999, "999 ns"), (1500, "1.5 µs"), (123_456_789, "123 ms"), (61_000_000_000, "61.0 s")]
        {
            assert_eq!(time(nanos), expected);
        }
        for (bytes, expected) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn text_stands_to_the_left_and_numbers_to_the_right() {
        let mut table = Columns::new(&["ID", "NAME", "BYTES"]);
        table.row(["3-1".into(), "a\nb".into(), "12 B".into()]);
        table.row(["3-10".into(), "x\n".repeat(100), "-".into()]);
        let mut reordered = Columns::new(&["NAME", "STATE"]);
        reordered.row(["a\u{202e}b".into(), "running".into()]);
        assert_eq!(reordered.text(), "NAME        STATE\na\\u{202e}b  running\n");
        let long = format!("{}x…", "x ".repeat(29));
        let expected = format!("ID    NAME{:58}BYTES\n3-1   a b{:60}12 B\n3-10  {long}      -\n", "", "");
        assert_eq!(table.text(), expected);
    }
}
