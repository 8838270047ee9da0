//! Output of benchmarks.

use std::io::{self, Write};

use serde::Serialize;

/// A figure and its baseline of the same run.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Benchmark and measured quantity.
    pub name: String,
    /// Measured value.
    pub value: f64,
    /// Unit of the value. Less is better for `s`, `ms` and `µs`; more is better for rates.
    pub unit: &'static str,
    /// Name of the baseline.
    pub baseline: Option<String>,
    /// Value of the baseline, in the same unit.
    pub baseline_value: Option<f64>,
    /// Value divided by the baseline's.
    pub ratio: Option<f64>,
}

/// Prints each line at once: for people, or as one JSON object.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    json: bool,
}

impl Report {
    pub fn new(json: bool) -> Self {
        Report { json }
    }

    /// Prints a figure and its baseline.
    pub fn compare(&self, name: &str, value: f64, unit: &'static str, baseline: &str, baseline_value: f64) {
        self.print(&Line {
            name: name.to_owned(),
            value,
            unit,
            baseline: Some(baseline.to_owned()),
            baseline_value: Some(baseline_value),
            ratio: Some(value / baseline_value),
        });
    }

    /// Prints a figure without a baseline.
    pub fn value(&self, name: &str, value: f64, unit: &'static str) {
        self.print(&Line { name: name.to_owned(), value, unit, baseline: None, baseline_value: None, ratio: None });
    }

    fn print(&self, line: &Line) {
        let text = if self.json {
            serde_json::to_string(line).expect("numbers and texts are JSON")
        } else {
            let compared =
                line.baseline.as_ref().zip(line.baseline_value).zip(line.ratio).map(|((name, value), ratio)| {
                    format!("{:>12} {:<5} {ratio:>8.2} x  {name}", short(value), line.unit)
                });
            format!("{:<40} {:>12} {:<5} {}", line.name, short(line.value), line.unit, compared.unwrap_or_default())
        };
        // A closed stdout is no error.
        let _ = writeln!(io::stdout().lock(), "{}", text.trim_end());
    }
}

/// Formats a number with about four digits.
fn short(value: f64) -> String {
    let digits = 3 - (value.abs().max(1e-9).log10().floor() as i32).clamp(0, 3);
    format!("{value:.*}", digits as usize)
}

/// Prints a line of progress to stderr.
pub fn progress(line: &str) {
    let _ = writeln!(io::stderr().lock(), "bench: {line}");
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [(0.5, "0.500"), (12.345, "12.35"), (123.4, "123.4"), (650_000.4, "650000")] {
            assert_eq!(short(value), text);
        }
    }
}
