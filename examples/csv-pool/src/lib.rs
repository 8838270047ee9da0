//! A model for each of many files: a pool of tasks with a limited number of calls in flight. Malformed files are
//! reported, the others are trained.
//!
//! ```text
//! cargo xtask data csvs data/csvs --files 10000
//! host submit examples/csv-pool --arg files=@data/csvs
//! ```

use models::linear::LinearParams;
use sandbar_guest::prelude::*;

/// Maximum number of reported failures.
const SHOWN: usize = 10;

/// A line, and the number of rows that it was fitted to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Line {
    slope: f64,
    intercept: f64,
    rows: usize,
}

/// Summary of all files.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Summary {
    models: usize,
    rows: usize,
    mean_slope: f64,
    failed: usize,
    /// The first failures.
    failures: Vec<String>,
}

/// Fits a line to the pairs of a file: a header, followed by lines of `x,y`.
#[task]
fn fit(file: File) -> Result<Line, String> {
    let bytes = file.bytes().map_err(|e| e.to_string())?;
    let text = std::str::from_utf8(&bytes).map_err(|e| e.to_string())?;
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()).skip(1) {
        let pair = line.split_once(',').and_then(|(x, y)| Some((x.parse().ok()?, y.parse().ok()?)));
        let (of_x, of_y): (f64, f64) = pair.ok_or_else(|| format!("line {number} is not a pair of numbers: {line}"))?;
        x.push(of_x);
        y.push(of_y);
    }
    let model = LinearParams::default().fit_features(Features::new(&x, x.len(), x.len(), 1), &y);
    let model = model.map_err(|e| e.to_string())?;
    Ok(Line { slope: model.coefficients()[0], intercept: model.intercept(), rows: x.len() })
}

/// Sixteen files per call, since each takes less than a millisecond.
#[task]
fn main(files: Files, chunksize: Option<usize>) -> Summary {
    let models = fit::pool().chunksize(chunksize.unwrap_or(16)).progress("training").imap(&files);
    let mut summary = Summary { models: 0, rows: 0, mean_slope: 0.0, failed: 0, failures: Vec::new() };
    // Results arrive in the order of the files, failures included.
    for (file, model) in files.iter().zip(models) {
        match model {
            Ok(line) => {
                summary.models += 1;
                summary.rows += line.rows;
                summary.mean_slope += (line.slope - summary.mean_slope) / summary.models as f64;
            }
            Err(error) => {
                summary.failed += 1;
                if summary.failures.len() < SHOWN {
                    summary.failures.push(format!("{}: {}", file.name(), error.fault));
                }
            }
        }
    }
    summary
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sandbar_guest::testing;

    use super::*;

    #[test]
    fn each_file_has_its_line_or_its_error() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: String, text: String| fs::write(folder.path().join(name), text).unwrap();
        for file in 0..50 {
            write(format!("{file:03}.csv"), format!("x,y\n0,1\n1,{}\n2,{}\n", 1 + file, 1 + 2 * file));
        }
        write("007.csv".to_owned(), "x,y\n1;2\n".to_owned());
        write("049.csv".to_owned(), "x,y\n".to_owned());
        let paths = (0..50).map(|file| folder.path().join(format!("{file:03}.csv")));
        for chunksize in [1, 16] {
            let arguments = serde_json::json!({ "files": testing::files(paths.clone()), "chunksize": chunksize });
            let summary: Summary = testing::run("main", &arguments.to_string()).unwrap();
            assert_eq!((summary.models, summary.rows, summary.failed), (48, 144, 2));
            let mean = ((0..50).sum::<i32>() - 7 - 49) as f64 / 48.0;
            assert!((summary.mean_slope - mean).abs() < 1e-9, "{summary:?}");
            assert!(summary.failures[0].contains("007.csv: line 2 is not a pair of numbers: 1;2"), "{summary:?}");
            assert!(summary.failures[1].contains("049.csv: "), "{summary:?}");
        }
    }
}
