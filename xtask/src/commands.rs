//! What the commands do, each as a list of steps.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::guests::{build_guests, find_guests};
use crate::run::{Failure, Result, Seconds, fail, run, run_own, run_quiet_stdout, say};
use crate::setup::{setup, setup_for_tests};
use crate::workspace::Workspace;

const NO_BUILD: &str = "It does not build; the compiler's message above says why.";
const DEMO_JOB: &str = "examples/taxi.toml";
const DEMO_DATA: &str = "data/taxi";
/// Enough rows for every zone to have a few hundred, few enough to be made in a second.
const DEMO_ROWS: &str = "1000000";
const DEMO_MONTHS: &str = "2";

/// One command with everything: set-up, build, data, and a job from start to models.
pub fn demo(workspace: &Workspace, job_args: &[OsString]) -> Result {
    let started = Instant::now();
    if !workspace.root.join(DEMO_JOB).is_file() {
        return fail(format!("{DEMO_JOB} is missing from this checkout: `git checkout -- examples` brings it back"));
    }
    setup()?;
    run(&mut workspace.build_host(), NO_BUILD)?;
    let folder = workspace.root.join(DEMO_DATA);
    if !has_parquet(&folder) {
        let mut arguments = ["taxi", "--rows", DEMO_ROWS, "--months", DEMO_MONTHS].map(OsString::from).to_vec();
        arguments.push(folder.into_os_string());
        // The demo's stdout is the host's.
        make_data(workspace, &arguments, Stdio::from(io::stderr()))?;
    }
    let mut submit = Command::new(workspace.host());
    submit.args(["submit", DEMO_JOB]).args(job_args).current_dir(&workspace.root);
    submit.env("CARGO_TARGET_DIR", &workspace.target);
    run(&mut submit, "The job did not finish; what the host printed above names the task, the limit and what to do.")?;
    say(format_args!("the demo took {}", Seconds(started.elapsed())));
    Ok(())
}

/// Runs every test of the workspace, and the simulation.
pub fn test(workspace: &Workspace, test_args: &[OsString]) -> Result {
    setup_for_tests()?;
    // Everything at once, and with the features that the tests are built with.
    run(workspace.cargo().args(["build", "--release", "--workspace", "--all-targets"]), NO_BUILD)?;
    build_guests(workspace, &find_guests(workspace)?)?;
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--release"]);
    if !names_a_package(test_args) {
        cargo.arg("--workspace");
    }
    let selects = !test_args.is_empty();
    run(cargo.args(test_args), "Run one test alone with `cargo xtask test -- -p CRATE NAME`.")?;
    // Tests that were selected are of this workspace.
    if selects { Ok(()) } else { simulate(workspace) }
}

/// Runs the simulation of the network, which is a workspace of its own. Built with flags of its own, in a folder of its own.
fn simulate(workspace: &Workspace) -> Result {
    run(
        workspace.simulation().args(["test", "--release"]),
        "It says which seed failed: `cd tests/simulation && SANDBAR_SEED=N cargo test --release -- --nocapture` replays it.",
    )
}

/// Formatting, lints, the SDK's documentation and, where the tool is installed, licences and advisories.
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
        say("cargo-deny is not installed, licences and advisories go unchecked (`cargo install cargo-deny`)");
        return Ok(());
    }
    run(
        workspace.cargo().args(["deny", "check"]),
        "deny.toml says which licences, sources and versions are allowed. Advisories are fetched from GitHub; \
         where it cannot be reached, `cargo deny check bans licenses sources` checks the rest.",
    )
}

/// Everything a change must pass.
pub fn check(workspace: &Workspace) -> Result {
    lint(workspace)?;
    test(workspace, &[])
}

/// Makes data.
pub fn data(workspace: &Workspace, arguments: &[OsString]) -> Result {
    make_data(workspace, arguments, Stdio::inherit())
}

fn make_data(workspace: &Workspace, arguments: &[OsString], stdout: Stdio) -> Result {
    // Beside the host, whose build has most of what it needs.
    run_quiet_stdout(workspace.build_host().args(["--package", "sandbar-data"]), NO_BUILD)?;
    run_own(
        Command::new(workspace.program("sandbar-data")).args(arguments).stdout(stdout),
        "`cargo xtask data --help` lists what can be made, and its options.",
    )
}

/// Runs a benchmark. Its stdout is the result, so it goes where ours goes.
pub fn bench(workspace: &Workspace, arguments: &[OsString]) -> Result {
    setup()?;
    run_quiet_stdout(workspace.build_host().args(["--package", "sandbar-bench"]), NO_BUILD)?;
    // What measures transfers between processes, of `host/wire` alone.
    let transfer = ["--package", "sandbar-wire", "--example", "transfer"];
    run_quiet_stdout(workspace.cargo().args(["build", "--release"]).args(transfer), NO_BUILD)?;
    run_own(
        Command::new(workspace.program("sandbar-bench")).args(arguments),
        "`cargo xtask bench --help` lists the benchmarks.",
    )
}

/// Looks for bytes that a boundary takes for what they are not, until it finds some or is stopped.
pub fn fuzz(workspace: &Workspace, arguments: &[OsString]) -> Result {
    let Some((name, rest)) = arguments.split_first() else {
        return Err(Failure::Usage("`fuzz` takes the name of a boundary, a program of tests/fuzz/targets".to_owned()));
    };
    if !has(workspace, "fuzz") {
        return fail("cargo-fuzz is not installed: `cargo install cargo-fuzz`; it needs a C++ compiler, too");
    }
    let mut cargo = workspace.cargo();
    // Without a sanitizer this compiler will do. All that it links is built for it, beside what else was built.
    cargo.args(["fuzz", "run", "--fuzz-dir", "tests/fuzz", "--sanitizer", "none", "--features", "libfuzzer"]);
    cargo.arg("--target-dir").arg(workspace.target.join("fuzz")).arg(name).args(rest);
    run(&mut cargo, "The bytes that it ended with are in tests/fuzz/artifacts; `cargo xtask fuzz NAME FILE` runs them.")
}

/// cargo ignores `-p` beside `--workspace`. What follows a second `--` is for the tests themselves.
fn names_a_package(test_args: &[OsString]) -> bool {
    let mut for_cargo = test_args.iter().map(|arg| arg.to_string_lossy()).take_while(|arg| arg != "--");
    for_cargo.any(|arg| arg.starts_with("--package") || arg.starts_with("-p"))
}

fn has_parquet(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().extension().is_some_and(|extension| extension == "parquet"))
}

/// Whether cargo has a subcommand that is installed apart.
fn has(workspace: &Workspace, subcommand: &str) -> bool {
    let mut asked = workspace.cargo();
    let status = asked.args([subcommand, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// For commands that take none.
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
    fn a_named_package_is_tested_alone() {
        for (line, expected) in [("-p a", true), ("--package=a x", true), ("x -- -p", false), ("", false)] {
            let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(names_a_package(&args), expected, "{line}");
        }
    }

    #[test]
    fn arguments_that_nobody_reads_are_refused() {
        assert!(no_arguments("lint", &[]).is_ok());
        assert_eq!(no_arguments("lint", &["--fast".into()]).unwrap_err().exit_code(), 2);
    }
}
