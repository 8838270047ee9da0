//! Runs of tests: cargo builds the test programs of the whole workspace, so that features are the same whatever is selected,
//! and several of them run at once. The output of each is in one piece.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::{
    Context as _, ExitDescription, Failure, Result, Seconds, capture, display, fail, not_started, report,
};
use crate::workspace::Workspace;

/// Time after which the running test programs are printed.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Tests to run.
#[derive(Debug, Default, PartialEq)]
pub struct Selection {
    /// Packages; all if none is named.
    packages: Vec<String>,
    /// Names of test programs; all if none is named.
    programs: Vec<String>,
    /// Parts of names of tests, and options of test programs.
    arguments: Vec<String>,
    /// Environment of the test programs, in addition to that of this process.
    variables: Vec<(&'static str, String)>,
}

impl Selection {
    /// Parses `[-p CRATE]... [--test PROGRAM]... [NAME]... [-- OPTIONS]`.
    ///
    /// # Errors
    /// Fails if an option is unknown.
    pub fn parse(arguments: &[OsString]) -> Result<Selection> {
        let mut selection = Selection::default();
        let mut arguments = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
        while let Some(argument) = arguments.next() {
            let (option, value) = match argument.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (option.to_owned(), Some(value.to_owned())),
                _ => (argument.clone(), None),
            };
            let list = match option.as_str() {
                "--" => {
                    selection.arguments.extend(arguments);
                    break;
                }
                "-p" | "--package" => &mut selection.packages,
                "--test" => &mut selection.programs,
                _ if argument.starts_with('-') => {
                    let message = format!(
                        "`test` has no option `{argument}`: it takes -p CRATE, --test PROGRAM and names of tests, and \
                         options of test programs after another `--`"
                    );
                    return Err(Failure::Usage(message));
                }
                _ => {
                    selection.arguments.push(argument);
                    continue;
                }
            };
            let value = value.or_else(|| arguments.next());
            list.push(value.ok_or_else(|| Failure::Usage(format!("`{option}` takes a name")))?);
        }
        Ok(selection)
    }

    /// Runs the tests with these environment variables.
    pub fn with_variables(mut self, variables: Vec<(&'static str, String)>) -> Selection {
        self.variables = variables;
        self
    }

    /// Returns whether it is all tests.
    pub fn is_all(&self) -> bool {
        *self == Selection::default()
    }

    fn selects(&self, program: &TestProgram) -> bool {
        (self.packages.is_empty() || self.packages.contains(&program.package))
            && (self.programs.is_empty() || self.programs.contains(&program.name))
    }
}

/// A test program that cargo has built.
#[derive(Debug, PartialEq)]
struct TestProgram {
    package: String,
    /// Name of the target.
    name: String,
    path: PathBuf,
    /// Folder of the package.
    folder: PathBuf,
}

impl TestProgram {
    /// Parses a message of cargo about a built artifact. Returns `None` for others.
    fn parse(message: &str) -> Option<TestProgram> {
        let profile = message.split_once("\"profile\":{")?.1.split_once('}')?.0;
        if !profile.contains("\"test\":true") {
            return None;
        }
        let path = PathBuf::from(string_field(message, "executable")?);
        let manifest = PathBuf::from(string_field(message, "manifest_path")?);
        // `…/folder#name@version`, or `…/name#version`.
        let id = string_field(message, "package_id")?;
        let (source, version) = id.rsplit_once('#')?;
        let package = match version.split_once('@') {
            Some((name, _)) => name,
            None => source.rsplit('/').next()?,
        };
        let target = message.split_once("\"target\":{")?.1;
        let (package, name) = (package.to_owned(), string_field(target, "name")?);
        Some(TestProgram { package, name, path, folder: manifest.parent()?.to_owned() })
    }

    /// Returns its name for people.
    fn label(&self) -> String {
        if self.name.replace('_', "-") == self.package {
            self.package.clone()
        } else {
            format!("{} {}", self.package, self.name)
        }
    }
}

/// Returns the value of a text field of a JSON object: the first of this name.
fn string_field(object: &str, name: &str) -> Option<String> {
    let (_, rest) = object.split_once(&format!("\"{name}\":\""))?;
    let mut value = String::new();
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => return Some(value),
            '\\' => value.push(characters.next()?),
            character => value.push(character),
        }
    }
}

/// Something to run: a test program, or the examples in the documentation.
struct Run {
    label: String,
    command: Command,
    log: PathBuf,
    /// Duration of its last run.
    last: Option<Duration>,
}

/// How a run ended.
struct Outcome {
    label: String,
    time: Duration,
    /// Numbers of tests that passed and failed.
    counts: [u64; 2],
    /// Names of failed tests.
    failed: Vec<String>,
    /// Why the program failed, if it did.
    failure: Option<String>,
}

/// Builds the test programs of the workspace, and runs those that are selected.
///
/// # Errors
/// Fails if the build or a test fails, or no test is selected.
pub fn run_tests(workspace: &Workspace, selection: &Selection) -> Result {
    let programs = build(workspace)?;
    let logs = workspace.target.join("test-logs");
    fs::create_dir_all(&logs).context(format_args!("create {}", logs.display()))?;
    let times = Times::read(&workspace.target);
    let mut runs: Vec<Run> = Vec::new();
    for program in programs.into_iter().filter(|program| selection.selects(program)) {
        let label = program.label();
        let mut command = Command::new(&program.path);
        command.args(&selection.arguments).current_dir(&program.folder).envs(selection.variables.iter().cloned());
        // As cargo does.
        command.env("CARGO_MANIFEST_DIR", &program.folder).env("CARGO_PKG_NAME", &program.package);
        let log = logs.join(format!("{}.log", label.replace([' ', '/'], "-")));
        runs.push(Run { last: times.duration(&label), label, command, log });
    }
    if runs.is_empty() {
        let message =
            "no test program is selected: the crates are in `cargo metadata`, the programs in their folders `tests`";
        return Err(Failure::Usage(message.to_owned()));
    }
    if selection.packages.is_empty() && selection.programs.is_empty() {
        let mut command = workspace.cargo();
        command.args(["test", "--release", "--workspace", "--doc", "--"]).args(&selection.arguments);
        let label = "examples in the documentation".to_owned();
        runs.push(Run { last: times.duration(&label), label, command, log: logs.join("doc.log") });
    }
    set_library_path(workspace, &mut runs)?;
    // The longest first, so that none is left over at the end. What was never run may be long.
    runs.sort_by_key(|run| std::cmp::Reverse(run.last.unwrap_or(Duration::MAX)));
    let started = Instant::now();
    let outcomes = run_all(runs, selection.is_all());
    let times = times.with(&outcomes);
    times.write(&workspace.target);
    summarize(&outcomes, started.elapsed(), &logs)
}

/// Builds the test programs.
fn build(workspace: &Workspace) -> Result<Vec<TestProgram>> {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--release", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    cargo.stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| not_started(&cargo, &error))?;
    if !output.status.success() {
        return fail(format!("`{}` {}", display(&cargo), ExitDescription(output.status)));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages.lines().filter_map(TestProgram::parse).collect())
}

/// Lets tests of procedural macros find the compiler's libraries.
fn set_library_path(workspace: &Workspace, runs: &mut [Run]) -> Result {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let libraries = capture(rustc.args(["--print", "target-libdir"]).current_dir(&workspace.root))?;
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let own = PathBuf::from(libraries.trim());
    let all = std::iter::once(own).chain(std::env::split_paths(&before));
    let all = std::env::join_paths(all).map_err(|error| Failure::Step(format!("LD_LIBRARY_PATH: {error}")))?;
    runs.iter_mut().for_each(|run| _ = run.command.env("LD_LIBRARY_PATH", &all));
    Ok(())
}

/// Runs all, as many at once as there are processors.
fn run_all(runs: Vec<Run>, is_quiet: bool) -> Vec<Outcome> {
    let total = runs.len();
    let at_once = thread::available_parallelism().map_or(1, |count| count.get()).min(total);
    let waiting = Mutex::new(VecDeque::from(runs));
    let running = Mutex::new(BTreeMap::new());
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(run) = next else { return };
                    let label = run.label.clone();
                    running.lock().unwrap_or_else(PoisonError::into_inner).insert(label.clone(), Instant::now());
                    let outcome = run_one(run, is_quiet);
                    running.lock().unwrap_or_else(PoisonError::into_inner).remove(&label);
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                }
            });
        }
        let mut reported = Instant::now();
        loop {
            thread::sleep(Duration::from_millis(50));
            let done = outcomes.lock().unwrap_or_else(PoisonError::into_inner).len();
            if done == total {
                return;
            }
            if reported.elapsed() >= REPORT_INTERVAL {
                reported = Instant::now();
                let running = running.lock().unwrap_or_else(PoisonError::into_inner);
                let names = running.iter().map(|(name, since)| format!("{name} ({})", Seconds(since.elapsed())));
                let names: Vec<String> = names.collect();
                report(format_args!("{done} of {total} test programs have run; now: {}", names.join(", ")));
            }
        }
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one, and prints its output if it fails or `is_quiet` is false.
fn run_one(run: Run, is_quiet: bool) -> Outcome {
    let Run { label, mut command, log, .. } = run;
    let started = Instant::now();
    let status = File::create(&log).and_then(|file| {
        let errors = file.try_clone()?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors).status()
    });
    let time = started.elapsed();
    let failure = match status {
        Ok(status) if status.success() => None,
        Ok(status) => Some(ExitDescription(status).to_string()),
        Err(error) => Some(format!("can't be run: {error}")),
    };
    let bytes = fs::read(&log).unwrap_or_default();
    let output = String::from_utf8_lossy(&bytes);
    let counts = counts(&output);
    if failure.is_some() || !is_quiet && counts != [0, 0] {
        report(format_args!("{label}: its output:\n{output}"));
    }
    let result = failure.clone().unwrap_or_else(|| format!("{} passed", counts[0]));
    if counts != [0, 0] || failure.is_some() {
        report(format_args!("{label}: {result} in {}", Seconds(time)));
    }
    Outcome { label, time, counts, failed: failed_tests(&output), failure }
}

/// Returns the numbers of tests that passed and failed, from lines like `test result: ok. 3 passed; 0 failed; …`.
fn counts(output: &str) -> [u64; 2] {
    let mut counts = [0; 2];
    for line in output.lines().filter(|line| line.starts_with("test result: ")) {
        for (count, word) in counts.iter_mut().zip([" passed", " failed"]) {
            let number = line.split_once(word).and_then(|(before, _)| before.rsplit(' ').next());
            *count += number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    counts
}

/// Returns the names of failed tests, from lines like `test name ... FAILED`.
fn failed_tests(output: &str) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    output.lines().filter_map(name).collect()
}

/// Prints the passed and failed test programs.
fn summarize(outcomes: &[Outcome], time: Duration, logs: &Path) -> Result {
    let sum = |which: usize| -> u64 { outcomes.iter().map(|outcome| outcome.counts[which]).sum() };
    let (passed, failed, programs) = (sum(0), sum(1), outcomes.len());
    let count = format!("{passed} tests passed and {failed} failed, of {programs} programs, in {}", Seconds(time));
    report(&count);
    let mut lines = Vec::new();
    for outcome in outcomes {
        if let Some(failure) = &outcome.failure {
            lines.push(format!("{} {failure}", outcome.label));
            lines.extend(outcome.failed.iter().map(|name| format!("    {name}")));
        }
    }
    if !lines.is_empty() {
        return fail(format!(
            "tests failed; their output is above, and in {}:\n{}\n`cargo xtask test -- NAME` runs one test alone.",
            logs.display(),
            lines.join("\n")
        ));
    }
    if passed == 0 {
        return Err(Failure::Usage("no test has this name".to_owned()));
    }
    Ok(())
}

/// Durations of the last runs, by label. They are kept in the target folder.
struct Times(BTreeMap<String, Duration>);

impl Times {
    fn path(target: &Path) -> PathBuf {
        target.join("test-times")
    }

    fn read(target: &Path) -> Times {
        let text = fs::read_to_string(Times::path(target)).unwrap_or_default();
        let parse = |line: &str| {
            let (milliseconds, label) = line.split_once(' ')?;
            Some((label.to_owned(), Duration::from_millis(milliseconds.parse().ok()?)))
        };
        Times(text.lines().filter_map(parse).collect())
    }

    fn duration(&self, label: &str) -> Option<Duration> {
        self.0.get(label).copied()
    }

    fn with(mut self, outcomes: &[Outcome]) -> Times {
        self.0.extend(outcomes.iter().map(|outcome| (outcome.label.clone(), outcome.time)));
        self
    }

    /// Writes them. They only serve the order of the next run.
    fn write(&self, target: &Path) {
        let lines = self.0.iter().map(|(label, time)| format!("{} {label}\n", time.as_millis()));
        let _ = fs::write(Times::path(target), lines.collect::<String>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Selection> {
        Selection::parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn selections_are_parsed() {
        let selected = |packages: &[&str], programs: &[&str], arguments: &[&str]| {
            let [packages, programs, arguments] =
                [packages, programs, arguments].map(|all| all.iter().map(|one| (*one).to_owned()).collect());
            Selection { packages, programs, arguments, variables: Vec::new() }
        };
        for (line, expected) in [
            ("", selected(&[], &[], &[])),
            ("-p a --package b --package=c", selected(&["a", "b", "c"], &[], &[])),
            ("--test=x name -- --nocapture", selected(&[], &["x"], &["name", "--nocapture"])),
        ] {
            assert_eq!(parse(line).unwrap(), expected, "{line}");
        }
        for line in ["--lib", "-p", "--no-fail-fast x"] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
        assert!(parse("").unwrap().is_all() && !parse("x").unwrap().is_all());
    }

    #[test]
    fn test_programs_are_found_in_messages_of_cargo() {
        let message = |id: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/w/a b/Cargo.toml","target":{{"kind":["test"],"name":"x","test":true}},"profile":{{"opt_level":"3","test":{test}}},"executable":"/t/x-\"1"}}"#
            )
        };
        for (id, package) in [("path+file:///w/a#0.1.0", "a"), ("path+file:///w/host/a#sandbar-a@0.1.0", "sandbar-a")] {
            let program = TestProgram::parse(&message(id, true)).unwrap();
            let expected = TestProgram {
                package: package.to_owned(),
                name: "x".to_owned(),
                path: PathBuf::from("/t/x-\"1"),
                folder: PathBuf::from("/w/a b"),
            };
            assert_eq!(program, expected);
            assert_eq!(program.label(), format!("{package} x"));
        }
        assert_eq!(TestProgram::parse(&message("path+file:///w/a#0.1.0", false)), None);
        assert_eq!(TestProgram::parse(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn outputs_are_counted() {
        let output = "test a ... ok\ntest b::c ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n\
                      test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured";
        assert_eq!((counts(output), failed_tests(output)), ([4, 1], vec!["b::c".to_owned()]));
        assert_eq!((counts(""), failed_tests("test x ... ok")), ([0, 0], vec![]));
    }
}
