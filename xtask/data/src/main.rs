//! `sandbar-data`: writes made data, and prints the paths of the files it wrote.

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use sandbar_data::{csvs, housing, small, taxi};

const HELP: &str = "\
Makes data: the same arguments give the same bytes. Prints the paths of the files written.

Usage: sandbar-data KIND PATH [OPTIONS]

Kinds:
  taxi FOLDER      taxi trips, a Parquet file a month, from yellow_tripdata_2019-01.parquet on
      --rows N             rows of each month (default 1000000)
      --months M           how many months (default 2, at most 120)
  housing FILE     20640 districts with eight features and their median house value, CSV
  csvs FOLDER      many small files of noisy lines, CSV
      --files N            how many files (default 10000)
      --rows R             rows of each (default 10)
  small FILE       many small groups of noisy planes, interleaved, Parquet
      --groups N           how many groups (default 100000)
      --rows-per-group R   rows of each (default 10)

Examples:
  sandbar-data taxi data/taxi --rows 7000000 --months 2
  sandbar-data housing data/housing.csv
  sandbar-data csvs data/csvs --files 10000
  sandbar-data small data/small.parquet --groups 1000000 --rows-per-group 10

Exit codes: 0 done, 1 the data could not be written, 2 the command line makes no sense.
";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
enum Job {
    Help,
    Taxi { folder: PathBuf, rows: u64, months: u32 },
    Housing { file: PathBuf },
    Csvs { folder: PathBuf, files: u64, rows: u64 },
    Small { file: PathBuf, groups: u64, rows_per_group: u64 },
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let job = match parse(&arguments) {
        Ok(job) => job,
        Err(message) => {
            say(&format!("error: {message}; `--help` says what can be made"));
            return ExitCode::from(2);
        }
    };
    let started = Instant::now();
    match make(job, started) {
        Ok(files) => {
            let mut out = io::stdout().lock();
            for file in files {
                // A reader that went away is no error: the files are there.
                let _ = writeln!(out, "{}", file.display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::from(1)
        }
    }
}

fn make(job: Job, started: Instant) -> io::Result<Vec<PathBuf>> {
    let seconds = || started.elapsed().as_secs_f64();
    match job {
        Job::Help => {
            let _ = io::stdout().write_all(HELP.as_bytes());
            Ok(Vec::new())
        }
        Job::Taxi { folder, rows, months } => {
            let progress =
                |month: &str, done: u64| say(&format!("taxi {month}: {done} of {rows} rows, {:.1} s", seconds()));
            taxi::write(&folder, rows, months, &progress)
        }
        Job::Housing { file } => {
            let path = housing::write(&file)?;
            say(&format!("housing: {} rows, {:.1} s", housing::ROWS, seconds()));
            Ok(vec![path])
        }
        Job::Csvs { folder, files, rows } => {
            let progress = |done: u64| say(&format!("csvs: {done} of {files} files, {:.1} s", seconds()));
            Ok(vec![csvs::write(&folder, files, rows, &progress)?])
        }
        Job::Small { file, groups, rows_per_group } => {
            let rows = groups.saturating_mul(rows_per_group);
            let progress = |done: u64| say(&format!("small: {done} of {rows} rows, {:.1} s", seconds()));
            Ok(vec![small::write(&file, groups, rows_per_group, &progress)?])
        }
    }
}

fn parse(arguments: &[String]) -> Result<Job, String> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(Job::Help);
    }
    let (kind, rest) = arguments.split_first().ok_or("say what to make")?;
    match kind.as_str() {
        "taxi" => {
            let (folder, [rows, months]) = path_and_numbers(rest, [("--rows", 1_000_000), ("--months", 2)])?;
            let months = u32::try_from(months).ok().filter(|months| *months <= taxi::MONTHS_MAX);
            let months = months.ok_or(format!("--months: at most {} months are made", taxi::MONTHS_MAX))?;
            Ok(Job::Taxi { folder, rows, months })
        }
        "housing" => {
            let (file, []) = path_and_numbers(rest, [])?;
            Ok(Job::Housing { file })
        }
        "csvs" => {
            let (folder, [files, rows]) = path_and_numbers(rest, [("--files", 10_000), ("--rows", 10)])?;
            if files > csvs::FILES_MAX || rows > csvs::ROWS_MAX {
                let (files, rows) = (csvs::FILES_MAX, csvs::ROWS_MAX);
                return Err(format!("--files, --rows: at most {files} files of {rows} rows are made"));
            }
            Ok(Job::Csvs { folder, files, rows })
        }
        "small" => {
            let defaults = [("--groups", 100_000), ("--rows-per-group", 10)];
            let (file, [groups, rows_per_group]) = path_and_numbers(rest, defaults)?;
            if groups.checked_mul(rows_per_group).is_none_or(|rows| rows > small::ROWS_MAX) {
                return Err(format!("--groups times --rows-per-group: at most {} rows are made", small::ROWS_MAX));
            }
            Ok(Job::Small { file, groups, rows_per_group })
        }
        unknown => Err(format!("`{unknown}` is nothing that can be made")),
    }
}

/// One path, and options that each take a whole number from 1 up: `--rows 5` or `--rows=5`.
fn path_and_numbers<const N: usize>(
    arguments: &[String],
    options: [(&str, u64); N],
) -> Result<(PathBuf, [u64; N]), String> {
    let mut numbers = options.map(|(_, default)| default);
    let mut path = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if !argument.starts_with('-') {
            if path.replace(PathBuf::from(argument)).is_some() {
                return Err(format!("`{argument}` is one path too many"));
            }
            continue;
        }
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument.as_str(), None),
        };
        let known = options.iter().position(|(option, _)| *option == name);
        let index = known.ok_or(format!("`{name}` is no option here"))?;
        let value = value.or_else(|| arguments.next().map(String::as_str)).ok_or(format!("{name} needs a number"))?;
        let number = value.replace('_', "").parse().ok().filter(|number| *number > 0);
        numbers[index] = number.ok_or(format!("{name} needs a whole number from 1 up, not `{value}`"))?;
    }
    Ok((path.ok_or("say where to write it")?, numbers))
}

/// One line of talk. A closed stderr is no reason to stop working.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Job, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn sensible_command_lines_are_understood() {
        let taxi = |rows, months| Job::Taxi { folder: "d".into(), rows, months };
        for (line, expected) in [
            ("taxi d", taxi(1_000_000, 2)),
            ("taxi --rows 7_000_000 d --months=3", taxi(7_000_000, 3)),
            ("housing f.csv", Job::Housing { file: "f.csv".into() }),
            ("csvs d --files=7", Job::Csvs { folder: "d".into(), files: 7, rows: 10 }),
            ("small f --groups 5", Job::Small { file: "f".into(), groups: 5, rows_per_group: 10 }),
            ("taxi --help", Job::Help),
        ] {
            assert_eq!(parsed(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn others_are_refused_by_name() {
        for (line, named) in [
            ("", "what"),
            ("taxi", "where"),
            ("cars d", "cars"),
            ("taxi d e", "`e`"),
            ("taxi d --rows", "--rows"),
            ("taxi d --rows 0", "from 1"),
            ("taxi d --rows many", "`many`"),
            ("taxi d --months 121", "120"),
            ("housing f --rows 5", "--rows"),
            ("csvs d --files 1000001", "at most"),
            ("small f --groups 18446744073709551615", "at most"),
        ] {
            let message = parsed(line).unwrap_err();
            assert!(message.contains(named), "{line}: {message}");
        }
    }
}
