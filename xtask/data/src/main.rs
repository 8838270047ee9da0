//! `sandbar-data`: writes generated data and prints the paths of the files.

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use sandbar_data::{csvs, housing, small, taxi};

const HELP: &str = "\
Generates data: the same arguments give the same bytes. Prints the paths of the files.

Usage: sandbar-data KIND PATH [OPTIONS]

Kinds:
  taxi FOLDER      taxi trips: one Parquet file per month, the first is yellow_tripdata_2019-01.parquet
      --rows N             rows of each month (default 1000000)
      --months M           number of months (default 2, at most 120)
  housing FILE     20640 districts with eight features and their median house value: CSV
  csvs FOLDER      many small files, each of points on a line with noise: CSV
      --files N            number of files (default 10000)
      --rows R             rows of each file (default 10)
  small FILE       many small interleaved groups, each of points on a plane with noise: Parquet
      --groups N           number of groups (default 100000)
      --rows-per-group R   rows of each group (default 10)

Examples:
  sandbar-data taxi data/taxi --rows 7000000 --months 2
  sandbar-data housing data/housing.csv
  sandbar-data csvs data/csvs --files 10000
  sandbar-data small data/small.parquet --groups 1000000 --rows-per-group 10

Exit codes: 0 done, 1 the data could not be written, 2 the command line is invalid.
";

/// Parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Help,
    Taxi { folder: PathBuf, rows: u64, months: u32 },
    Housing { file: PathBuf },
    Csvs { folder: PathBuf, files: u64, rows: u64 },
    Small { file: PathBuf, groups: u64, rows_per_group: u64 },
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let request = match parse(&arguments) {
        Ok(request) => request,
        Err(message) => {
            log(&format!("error: {message}; `--help` lists the kinds of data and their options"));
            return ExitCode::from(2);
        }
    };
    let started = Instant::now();
    match generate(request, started) {
        Ok(files) => {
            let mut out = io::stdout().lock();
            for file in files {
                // A closed stdout is no error: the files exist.
                let _ = writeln!(out, "{}", file.display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            log(&format!("error: {error}"));
            ExitCode::from(1)
        }
    }
}

fn generate(request: Request, started: Instant) -> io::Result<Vec<PathBuf>> {
    let seconds = || started.elapsed().as_secs_f64();
    match request {
        Request::Help => {
            let _ = io::stdout().write_all(HELP.as_bytes());
            Ok(Vec::new())
        }
        Request::Taxi { folder, rows, months } => {
            let progress =
                |month: &str, done: u64| log(&format!("taxi {month}: {done} of {rows} rows, {:.1} s", seconds()));
            taxi::write(&folder, rows, months, &progress)
        }
        Request::Housing { file } => {
            let path = housing::write(&file)?;
            log(&format!("housing: {} rows, {:.1} s", housing::ROWS, seconds()));
            Ok(vec![path])
        }
        Request::Csvs { folder, files, rows } => {
            let progress = |done: u64| log(&format!("csvs: {done} of {files} files, {:.1} s", seconds()));
            Ok(vec![csvs::write(&folder, files, rows, &progress)?])
        }
        Request::Small { file, groups, rows_per_group } => {
            let rows = groups.saturating_mul(rows_per_group);
            let progress = |done: u64| log(&format!("small: {done} of {rows} rows, {:.1} s", seconds()));
            Ok(vec![small::write(&file, groups, rows_per_group, &progress)?])
        }
    }
}

fn parse(arguments: &[String]) -> Result<Request, String> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(Request::Help);
    }
    let (kind, rest) = arguments.split_first().ok_or("the kind of data is missing")?;
    match kind.as_str() {
        "taxi" => {
            let (folder, [rows, months]) = path_and_numbers(rest, [("--rows", 1_000_000), ("--months", 2)])?;
            let months = u32::try_from(months).ok().filter(|months| *months <= taxi::MONTHS_MAX);
            let months = months.ok_or(format!("--months: at most {}", taxi::MONTHS_MAX))?;
            Ok(Request::Taxi { folder, rows, months })
        }
        "housing" => {
            let (file, []) = path_and_numbers(rest, [])?;
            Ok(Request::Housing { file })
        }
        "csvs" => {
            let (folder, [files, rows]) = path_and_numbers(rest, [("--files", 10_000), ("--rows", 10)])?;
            if files > csvs::FILES_MAX || rows > csvs::ROWS_MAX {
                let (files, rows) = (csvs::FILES_MAX, csvs::ROWS_MAX);
                return Err(format!("--files, --rows: at most {files} files of {rows} rows"));
            }
            Ok(Request::Csvs { folder, files, rows })
        }
        "small" => {
            let defaults = [("--groups", 100_000), ("--rows-per-group", 10)];
            let (file, [groups, rows_per_group]) = path_and_numbers(rest, defaults)?;
            if groups.checked_mul(rows_per_group).is_none_or(|rows| rows > small::ROWS_MAX) {
                return Err(format!("--groups times --rows-per-group: at most {} rows", small::ROWS_MAX));
            }
            Ok(Request::Small { file, groups, rows_per_group })
        }
        unknown => Err(format!("there is no kind `{unknown}` of data")),
    }
}

/// Parses one path, and options that each take a whole number of at least 1: `--rows 5` or `--rows=5`.
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
                return Err(format!("`{argument}` is a second path, only one is accepted"));
            }
            continue;
        }
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument.as_str(), None),
        };
        let known = options.iter().position(|(option, _)| *option == name);
        let index = known.ok_or(format!("there is no option `{name}` for this kind of data"))?;
        let value = value.or_else(|| arguments.next().map(String::as_str)).ok_or(format!("{name} needs a number"))?;
        let number = value.replace('_', "").parse().ok().filter(|number| *number > 0);
        numbers[index] = number.ok_or(format!("{name} needs a whole number of at least 1, not `{value}`"))?;
    }
    Ok((path.ok_or("the path to write to is missing")?, numbers))
}

/// Writes one line of progress to stderr. A closed stderr is ignored.
fn log(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn valid_command_lines_are_parsed() {
        let taxi = |rows, months| Request::Taxi { folder: "d".into(), rows, months };
        for (line, expected) in [
            ("taxi d", taxi(1_000_000, 2)),
            ("taxi --rows 7_000_000 d --months=3", taxi(7_000_000, 3)),
            ("housing f.csv", Request::Housing { file: "f.csv".into() }),
            ("csvs d --files=7", Request::Csvs { folder: "d".into(), files: 7, rows: 10 }),
            ("small f --groups 5", Request::Small { file: "f".into(), groups: 5, rows_per_group: 10 }),
            ("taxi --help", Request::Help),
        ] {
            assert_eq!(parsed(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn errors_name_the_invalid_argument() {
        for (line, named) in [
            ("", "kind"),
            ("taxi", "path"),
            ("cars d", "cars"),
            ("taxi d e", "`e`"),
            ("taxi d --rows", "--rows"),
            ("taxi d --rows 0", "at least 1"),
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
