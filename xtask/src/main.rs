//! `cargo xtask`: set-up, demo, tests, data and benchmarks behind one command.
//!
//! It depends on the standard library only, so that the first command on a fresh checkout starts in seconds. Progress goes
//! to stderr, results to stdout. Exit codes: 0 done, 1 a step failed, 2 the command line is invalid.

mod commands;
mod guests;
mod run;
mod setup;
mod test_runs;
mod workspace;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::run::{Failure, Result, report};
use crate::workspace::Workspace;

const HELP: &str = "\
Set-up, demo, tests, data and benchmarks of this checkout.

Usage: cargo xtask COMMAND [ARGUMENTS]

Commands:
  setup              make the wasm32-wasip2 target usable (with rustup, else built once from Debian's source packages);
                     fetch etcd and lavapipe (a Vulkan driver for the CPU) for tests if they are missing: Debian's
                     packages, unpacked into the cache folder; nothing is installed
  demo [-- ARGS]     set up, build, generate taxi data if missing, train a model per zone; passes ARGS to `host submit`
  test [-- ARGS]     set up, build the host and the guests, and run all tests, several test programs at once, and the
                     simulation of the network (tests/simulation). ARGS select tests, and build the same, so that one test
                     takes seconds: [-p CRATE] [--test PROGRAM] [NAME ...] [-- OPTIONS of test programs]
  hostile [OPTIONS]  run attacks drawn at random by several tenants beside a victim (tests/tests/process/attacks), and print
                     what the victim noticed: [--runs N] [--tenants N] [--seed N]; compare answers about things of others
                     and absent ones: [--tries N]; have tasks search for what others left in memory: [--marks N]
  lint               check formatting, clippy and the SDK's rustdoc (warnings are errors); cargo-deny if it is installed
  check              lint and test: both must pass before a change is merged
  data KIND ...      generate data: taxi DIR, housing FILE, csvs DIR, small FILE (see `data --help`)
  bench NAME ...     run a benchmark in release, with --json and --peers passed on (see `bench --help`)
  fuzz NAME ...      fuzz a boundary of the host (a target of tests/fuzz); needs cargo-fuzz
  help               print this text

Examples:
  cargo xtask demo
  cargo xtask demo -- --json
  cargo xtask test -- a_worker_that_does_not_read -- --nocapture
  cargo xtask test -- -p sandbar-core
  cargo xtask data taxi data/taxi --rows 7000000 --months 2
  cargo xtask hostile --runs 1000 --tenants 5 --seed 7
  cargo xtask bench training --json > training.json
  cargo xtask fuzz batch -- -max_total_time=60

Environment:
  CARGO_TARGET_DIR        folder for all builds (default: target)
  SANDBAR_DEBIAN_MIRROR   Debian mirror for `setup`
  SANDBAR_SEED            the only seed of random tests and simulations; SANDBAR_SEEDS: their number of seeds
  SANDBAR_ETCD            etcd program for tests, instead of the one in PATH or the fetched one
  SANDBAR_LAVAPIPE        folder of lavapipe for tests of GPU kernels, instead of the fetched one
  XDG_CACHE_HOME          `setup` fetches these to sandbar/etcd and sandbar/lavapipe in it (default: ~/.cache)
  TMPDIR                  folder where `setup` unpacks and builds, about 350 MB (default: /tmp)

Exit codes: 0 done, 1 a step failed, 2 the command line is invalid.
";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(format_args!("error: {failure}"));
            if let Failure::Usage(_) = failure {
                report("`cargo xtask --help` lists the commands");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn dispatch(arguments: &[OsString]) -> Result {
    let Some((command, rest)) = arguments.split_first() else {
        print(HELP);
        return Err(Failure::Usage("a command is missing".to_owned()));
    };
    let command = command.to_string_lossy();
    // `data` and `bench` pass `--help` on to programs that have their own help.
    let passes_help_on = matches!(command.as_ref(), "data" | "bench");
    if matches!(command.as_ref(), "help" | "--help" | "-h") || !passes_help_on && requests_help(rest) {
        print(HELP);
        return Ok(());
    }
    let workspace = Workspace::find();
    match command.as_ref() {
        "setup" => commands::no_arguments("setup", rest).and_then(|()| setup::setup_for_tests()),
        "demo" => commands::demo(&workspace, after_dashes("demo", rest)?),
        "test" => commands::test(&workspace, after_dashes("test", rest)?),
        "hostile" => commands::hostile(&workspace, rest),
        "lint" => commands::no_arguments("lint", rest).and_then(|()| commands::lint(&workspace)),
        "check" => commands::no_arguments("check", rest).and_then(|()| commands::check(&workspace)),
        "data" => commands::data(&workspace, rest),
        "bench" => commands::bench(&workspace, rest),
        "fuzz" => commands::fuzz(&workspace, rest),
        unknown => Err(Failure::Usage(format!("there is no command `{unknown}`"))),
    }
}

/// Returns the arguments after `--`; rejects arguments before it.
fn after_dashes<'a>(command: &str, arguments: &'a [OsString]) -> Result<&'a [OsString]> {
    match arguments.split_first() {
        None => Ok(&[]),
        Some((first, rest)) if first == OsStr::new("--") => Ok(rest),
        Some((first, _)) => Err(Failure::Usage(format!(
            "`{command}` takes arguments after `--` only: cargo xtask {command} -- {}",
            first.to_string_lossy()
        ))),
    }
}

/// Returns whether `--help` or `-h` precedes any `--`.
fn requests_help(arguments: &[OsString]) -> bool {
    let own = arguments.iter().take_while(|argument| *argument != OsStr::new("--"));
    own.into_iter().any(|argument| argument == "--help" || argument == "-h")
}

/// Prints `text`. A closed stdout (`| head`) is no error.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(command_line: &str) -> Vec<OsString> {
        command_line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn invalid_command_lines_exit_with_2() {
        for line in ["", "fly", "fuzz", "lint --fast", "setup now", "demo --json", "test sandbar-core"] {
            assert_eq!(dispatch(&args(line)).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn help_is_no_error() {
        for line in ["help", "--help", "-h", "demo --help", "lint -h"] {
            assert!(dispatch(&args(line)).is_ok(), "{line}");
        }
    }

    #[test]
    fn arguments_after_the_dashes_belong_to_the_child() {
        assert_eq!(after_dashes("test", &args("-- -p x --help")).unwrap(), args("-p x --help"));
        assert!(after_dashes("test", &[]).unwrap().is_empty());
        assert!(!requests_help(&args("-- --help")));
    }
}
