//! The commands of `cargo xtask`, each a list of steps.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::guests::{build_guests, find_guests};
use crate::run::{Failure, Result, Seconds, fail, report, run, run_own, run_quiet_stdout};
use crate::setup::{setup, setup_for_tests};
use crate::test_runs::{Selection, run_tests};
use crate::workspace::Workspace;

const NO_BUILD: &str = "The build failed; see the compiler's message above.";
const DEMO_JOB: &str = "examples/taxi.toml";
const DEMO_DATA: &str = "data/taxi";
/// Gives every zone a few hundred rows and is generated within a second.
const DEMO_ROWS: &str = "1000000";
const DEMO_MONTHS: &str = "2";

/// Sets up, builds, generates data and runs a job that trains models.
pub fn demo(workspace: &Workspace, job_args: &[OsString]) -> Result {
    let started = Instant::now();
    if !workspace.root.join(DEMO_JOB).is_file() {
        return fail(format!("{DEMO_JOB} is missing from this checkout: `git checkout -- examples` restores it"));
    }
    setup()?;
    run(&mut workspace.build_host(), NO_BUILD)?;
    let folder = workspace.root.join(DEMO_DATA);
    if !has_parquet(&folder) {
        let mut arguments = ["taxi", "--rows", DEMO_ROWS, "--months", DEMO_MONTHS].map(OsString::from).to_vec();
        arguments.push(folder.into_os_string());
        // The demo's stdout carries only the output of `host submit`.
        generate_data(workspace, &arguments, Stdio::from(io::stderr()))?;
    }
    let mut submit = Command::new(workspace.host());
    submit.args(["submit", DEMO_JOB]).args(job_args).current_dir(&workspace.root);
    submit.env("CARGO_TARGET_DIR", &workspace.target);
    run(&mut submit, "The job failed; the host's message above names the task, the limit and the remedy.")?;
    report(format_args!("the demo took {}", Seconds(started.elapsed())));
    Ok(())
}

/// Runs all tests of the workspace and the simulation of the network, or the tests that `test_args` select.
pub fn test(workspace: &Workspace, test_args: &[OsString]) -> Result {
    run_selection(workspace, &Selection::parse(test_args)?)
}

/// Options of `hostile`, and the variables that set them in the tests.
const HOSTILE_OPTIONS: [(&str, &str); 5] = [
    ("--runs", "SANDBAR_HOSTILE_RUNS"),
    ("--tenants", "SANDBAR_HOSTILE_TENANTS"),
    ("--tries", "SANDBAR_TRIES"),
    ("--marks", "SANDBAR_MARKS"),
    ("--seed", "SANDBAR_SEED"),
];
/// Attacks, tries, and tasks that leave marks, by default.
const HOSTILE_RUNS: &str = "1000";
const HOSTILE_TENANTS: &str = "5";
const HOSTILE_TRIES: &str = "10000";
const HOSTILE_MARKS: &str = "100000";

/// Runs attacks drawn at random by several tenants beside a victim, compares answers about what others have with those
/// about what does not exist, and has tasks search for marks of others.
pub fn hostile(workspace: &Workspace, arguments: &[OsString]) -> Result {
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let mut values = [Some(HOSTILE_RUNS), Some(HOSTILE_TENANTS), Some(HOSTILE_TRIES), Some(HOSTILE_MARKS), None]
        .map(|value| value.map(str::to_owned));
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let at = HOSTILE_OPTIONS.iter().position(|(option, _)| *option == argument);
        let usage = || {
            Failure::Usage(format!(
                "`hostile` takes --runs N, --tenants N, --tries N, --marks N and --seed N, not `{argument}`"
            ))
        };
        let value = arguments.next().filter(|value| value.parse::<u64>().is_ok());
        values[at.ok_or_else(usage)?] = Some(value.ok_or_else(usage)?);
    }
    let variables = HOSTILE_OPTIONS.iter().zip(values);
    let variables = variables.filter_map(|((_, variable), value)| Some((*variable, value?))).collect();
    // One after another, so that they do not slow each other.
    let tests = [
        "-p",
        "sandbar-tests",
        "--test",
        "process",
        "attacks::storm",
        "attacks::absence",
        "attacks::marks",
        "--",
        "--test-threads=1",
        "--nocapture",
    ];
    let selection = Selection::parse(&tests.map(OsString::from))?.with_variables(variables);
    run_selection(workspace, &selection)
}

fn run_selection(workspace: &Workspace, selection: &Selection) -> Result {
    setup_for_tests()?;
    // One build of all targets unifies features as the tests' build does, so that nothing is compiled twice.
    run(workspace.cargo().args(["build", "--release", "--workspace", "--all-targets"]), NO_BUILD)?;
    build_guests(workspace, &find_guests(workspace)?)?;
    run_tests(workspace, selection)?;
    // A selection of tests applies to this workspace only.
    if selection.is_all() { simulate(workspace) } else { Ok(()) }
}

/// Runs the simulation of the network: a separate workspace with its own compiler flags and target folder.
fn simulate(workspace: &Workspace) -> Result {
    run(
        workspace.simulation().args(["test", "--release"]),
        "The message above names the failed seed N: \
         `cd tests/simulation && SANDBAR_SEED=N cargo test --release -- --nocapture` replays it.",
    )
}

/// Checks formatting, lints, the SDK's documentation and, if cargo-deny is installed, licences and advisories.
pub fn lint(workspace: &Workspace) -> Result {
    run(workspace.cargo().args(["fmt", "--all", "--check"]), "`cargo fmt --all` formats the code.")?;
    run(
        workspace.cargo().args(["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        "Clippy's messages above say what to change; an `allow` needs a `reason`.",
    )?;
    run(workspace.simulation().args(["fmt", "--check"]), "`cargo fmt` in tests/simulation formats the code.")?;
    run(
        workspace.simulation().args(["clippy", "--release", "--all-targets", "--", "-D", "warnings"]),
        "Clippy's messages above say what to change; an `allow` needs a `reason`.",
    )?;
    run(
        workspace
            .cargo()
            .args(["doc", "--release", "--package", "sandbar-guest", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings"),
        "rustdoc's messages above say what to change in guest-sdk.",
    )?;
    if !has(workspace, "deny") {
        report("cargo-deny is not installed: licences and advisories are not checked (`cargo install cargo-deny`)");
        return Ok(());
    }
    run(
        workspace.cargo().args(["deny", "check"]),
        "deny.toml lists the allowed licences, sources and versions. Advisories are fetched from GitHub; \
         without access to it, `cargo deny check bans licenses sources` checks the rest.",
    )
}

/// Runs all checks that a change must pass.
pub fn check(workspace: &Workspace) -> Result {
    lint(workspace)?;
    test(workspace, &[])
}

/// Generates data.
pub fn data(workspace: &Workspace, arguments: &[OsString]) -> Result {
    generate_data(workspace, arguments, Stdio::inherit())
}

fn generate_data(workspace: &Workspace, arguments: &[OsString], stdout: Stdio) -> Result {
    // Built together with the host, so that both share one set of features of their dependencies.
    run_quiet_stdout(workspace.build_host().args(["--package", "sandbar-data"]), NO_BUILD)?;
    run_own(
        Command::new(workspace.program("sandbar-data")).args(arguments).stdout(stdout),
        "`cargo xtask data --help` lists the kinds of data and their options.",
    )
}

/// Runs a benchmark. Its stdout is the result and is inherited.
pub fn bench(workspace: &Workspace, arguments: &[OsString]) -> Result {
    setup()?;
    let build = |more: &[&str]| {
        let mut cargo = workspace.build_host();
        run_quiet_stdout(cargo.args(["--package", "sandbar-bench"]).args(more), NO_BUILD)
    };
    build(&[])?;
    // Built of the same packages, so that nothing else is compiled again.
    let without_walls = ["--features", "sandbar-worker-program/without-walls", "--bin", "host-worker-without-walls"];
    // The example of `host/wire` that measures transfers between processes.
    let transfer = ["--package", "sandbar-wire", "--example", "transfer"];
    let selects = |names: &[&str]| arguments.iter().any(|argument| names.iter().any(|name| argument == name));
    if selects(&["walls"]) {
        build(&without_walls)?;
    }
    if selects(&["transfer", "broadcast", "all"]) {
        run_quiet_stdout(workspace.cargo().args(["build", "--release"]).args(transfer), NO_BUILD)?;
    }
    run_own(
        Command::new(workspace.program("sandbar-bench")).args(arguments),
        "`cargo xtask bench --help` lists the benchmarks.",
    )
}

/// Fuzzes one boundary until it fails or is stopped.
pub fn fuzz(workspace: &Workspace, arguments: &[OsString]) -> Result {
    let Some((name, rest)) = arguments.split_first() else {
        return Err(Failure::Usage("`fuzz` takes the name of a target in tests/fuzz/targets".to_owned()));
    };
    if !has(workspace, "fuzz") {
        return fail("cargo-fuzz is not installed: `cargo install cargo-fuzz` (it also needs a C++ compiler)");
    }
    let mut cargo = workspace.cargo();
    // Without a sanitizer, the stable compiler suffices. All crates are built with libFuzzer's flags, in a separate folder.
    cargo.args(["fuzz", "run", "--fuzz-dir", "tests/fuzz", "--sanitizer", "none", "--features", "libfuzzer"]);
    cargo.arg("--target-dir").arg(workspace.target.join("fuzz")).arg(name).args(rest);
    run(&mut cargo, "tests/fuzz/artifacts holds the input that failed; `cargo xtask fuzz NAME FILE` runs it again.")
}

fn has_parquet(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().extension().is_some_and(|extension| extension == "parquet"))
}

/// Returns whether a cargo subcommand that is installed separately is available.
fn has(workspace: &Workspace, subcommand: &str) -> bool {
    let mut cargo = workspace.cargo();
    let status = cargo.args([subcommand, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Rejects arguments of a command that takes none.
pub fn no_arguments(command: &str, arguments: &[OsString]) -> Result {
    match arguments.first() {
        None => Ok(()),
        Some(unexpected) => Err(Failure::Usage(format!("`{command}` takes no {}", unexpected.to_string_lossy()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_attacks_are_numbers() {
        let workspace = Workspace::find();
        for line in [&["--runs"][..], &["--runs", "x"], &["--fast", "1"], &["7"]] {
            let line: Vec<OsString> = line.iter().map(OsString::from).collect();
            assert_eq!(hostile(&workspace, &line).unwrap_err().exit_code(), 2, "{line:?}");
        }
    }

    #[test]
    fn arguments_of_a_command_without_any_are_refused() {
        assert!(no_arguments("lint", &[]).is_ok());
        assert_eq!(no_arguments("lint", &["--fast".into()]).unwrap_err().exit_code(), 2);
    }
}
