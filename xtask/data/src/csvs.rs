//! Many small CSV files, for training a model per file.
//!
//! The rows of a file lie on its own line, `y = a x + b`, with noise.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::atomic_file::with_path;
use crate::random::{mix, normal, seed_of, unit};

const SEED: u64 = 0x63_73_76_73;

/// Maximum number of files of a folder.
pub const FILES_MAX: u64 = 1_000_000;

/// Maximum number of rows of a file.
pub const ROWS_MAX: u64 = 1_000_000;

/// Returns the line of a file: `[a, b]`, each in -5..5. Tests compare models with it.
pub fn line(file: u64) -> [f64; 2] {
    let seed = seed_of(&[SEED, file]);
    [1, 2].map(|i| 10.0 * unit(mix(seed ^ i)) - 5.0)
}

/// Writes the files `000000.csv`, … into a folder, each completely or not at all. Calls `progress` with the number of
/// written files at intervals.
pub fn write(folder: &Path, files: u64, rows: u64, progress: &dyn Fn(u64)) -> io::Result<PathBuf> {
    fs::create_dir_all(folder).map_err(|error| with_path(folder, error))?;
    // All files share one temporary name, so that the next writer overwrites what a killed writer left.
    let partial = folder.join(".partial");
    for file in 0..files {
        let path = folder.join(format!("{file:06}.csv"));
        let written = fs::write(&partial, text(file, rows)).and_then(|()| fs::rename(&partial, &path));
        written.map_err(|error| with_path(&path, error))?;
        if (file + 1).is_multiple_of(10_000) || file + 1 == files {
            progress(file + 1);
        }
    }
    Ok(folder.to_owned())
}

fn text(file: u64, rows: u64) -> String {
    let [a, b] = line(file);
    let mut text = "x,y\n".to_owned();
    for row in 0..rows {
        let seed = mix(seed_of(&[SEED, file]) ^ mix(row));
        let x = 2.0 * unit(mix(seed ^ 1)) - 1.0;
        // Writing to a `String` never fails.
        let _ = writeln!(text, "{x:.6},{:.6}", a * x + b + 0.1 * normal(mix(seed ^ 2)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic_file::test_folder::TestFolder;

    #[test]
    fn each_file_has_rows_of_its_line() {
        let folder = TestFolder::new("csvs");
        write(&folder.join("a"), 100, 10, &|_| ()).unwrap();
        assert_eq!(fs::read_dir(folder.join("a")).unwrap().count(), 100);
        for file in [0, 7, 99] {
            let read = fs::read_to_string(folder.join("a").join(format!("{file:06}.csv"))).unwrap();
            assert_eq!(read, text(file, 10));
            let [a, b] = line(file);
            let pairs = read.lines().skip(1).map(|line| line.split_once(',').unwrap());
            let pairs: Vec<(f64, f64)> = pairs.map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap())).collect();
            assert_eq!(pairs.len(), 10);
            assert!(pairs.iter().all(|(x, y)| (a * x + b - y).abs() < 0.6), "{pairs:?}");
        }
    }
}
