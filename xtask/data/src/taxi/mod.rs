//! Taxi trips in the shape of the yellow-cab files that New York City published in its older years.
//!
//! A trip's duration depends on the hidden locations of its two zones, on the pair (a river to cross, a highway to take) and
//! on the hour, with noise. Both zones follow Zipf's law, so that sizes of groups differ by two orders of magnitude. A few
//! values are missing, as in the real files.

mod city;
mod month;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use self::city::City;
use self::month::Month;
use crate::atomic_file::AtomicFile;

pub use self::city::ZONES;
pub use self::month::schema;

/// Maximum number of months: ten years of files.
pub const MONTHS_MAX: u32 = 120;

/// Writes `months` files of `rows` rows each into `folder`, from `yellow_tripdata_2019-01.parquet` on, and returns their
/// paths. No file appears before all are written. Calls `progress` with the month's name and the number of written rows
/// after each row group.
pub fn write(folder: &Path, rows: u64, months: u32, progress: &(dyn Fn(&str, u64) + Sync)) -> io::Result<Vec<PathBuf>> {
    if months > MONTHS_MAX {
        let message = format!("{months} months were requested, the maximum is {MONTHS_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let city = City::new();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(months as usize);
    let next = Mutex::new(0..months);
    let work = || -> io::Result<Vec<(u32, AtomicFile)>> {
        let mut written = Vec::new();
        loop {
            let taken = next.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
            let Some(index) = taken else {
                return Ok(written);
            };
            written.push((index, Month::new(index, rows).write(folder, &city, progress)?));
        }
    };
    let mut files = thread::scope(|scope| -> io::Result<Vec<(u32, AtomicFile)>> {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut files = Vec::new();
        for worker in workers {
            match worker.join() {
                Ok(written) => files.extend(written?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(files)
    })?;
    files.sort_by_key(|(index, _)| *index);
    files.into_iter().map(|(_, file)| file.commit()).collect()
}

#[cfg(test)]
mod tests;
