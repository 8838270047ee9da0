//! Runs the commands of a page.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use sandbar_tests::{Lab, host, workspace};

use crate::page::{Block, Label, Page};

/// Maximum time of one page. The first build of crates for this machine and for the sandbox takes most of it.
const PAGE_TIME_MAX: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Commands before the page's own: strict shell options, and replacements of what the test has done already or does at
/// a smaller scale.
const PRELUDE: &str = include_str!("prelude.sh");
/// For blocks with prompts: only the host can run, also behind commands that run it as another user or elsewhere.
const CONSOLE: &str = "\
PATH=/nothing
command_not_found_handle() { while read -r; do :; done; }
sudo() { while [[ $1 == -* ]]; do shift 2; done; \"$@\"; }
kubectl() { if [[ $1 == exec ]]; then shift 3; \"$@\"; fi; }
";
const LOOPBACK: &str = "127.0.0.1:";
/// Matches any text in output.
const ANY: char = '…';

/// Creates a folder with links to the checkout's files, as after a fresh clone.
pub fn fresh_clone() -> Lab {
    let lab = Lab::new();
    let ignored = fs::read_to_string(workspace().join(".gitignore")).unwrap();
    let ignored: Vec<&str> = ignored.lines().map(|line| line.trim_matches('/')).collect();
    for entry in fs::read_dir(workspace()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        if !name.starts_with('.') && !ignored.contains(&name.as_str()) {
            std::os::unix::fs::symlink(entry.path(), lab.path(&name)).unwrap();
        }
    }
    lab
}

/// Runs the commands of a page in one shell in a fresh clone, and compares their output with the page. `downloads` is a
/// folder with the files that the page fetches.
///
/// # Errors
/// Returns line, block and output of a command that fails, or of output that is missing.
pub fn run(page: &Page, lab: &Lab, downloads: &Path) -> Result<(), String> {
    if page.blocks(Label::Shell).next().is_none() {
        return Ok(());
    }
    let outputs = lab.path("tmp/outputs");
    fs::create_dir_all(&outputs).unwrap();
    let script = page.only(Label::Shell, |block| format!("exec >\"$OUTPUTS/{}\" 2>&1", block.line));
    let script = with_free_ports(&script, free_port);
    let ended = bash(lab, &page.name, &script, &[("OUTPUTS", &outputs), ("DOWNLOADS", downloads)]);
    let output_of = |block: &Block| fs::read_to_string(outputs.join(block.line.to_string()));
    if let Err(reason) = ended {
        // Blocks behind the failed one have no output.
        let failed = page.blocks(Label::Shell).filter(|block| output_of(block).is_ok()).last();
        let (line, text, output) = failed.map_or((0, "", String::new()), |block| {
            (block.line, block.text.as_str(), output_of(block).unwrap_or_default())
        });
        return Err(format!("{}:{line}: this block {reason}:\n{text}--- its output:\n{output}", page.name));
    }
    for pair in page.blocks.windows(2) {
        if let [Block { label: Label::Shell, .. }, Block { label: Label::Text, .. }] = pair {
            let output = output_of(&pair[0]).unwrap_or_default();
            shows(&pair[1].text, &output).map_err(|line| {
                let number = pair[1].line;
                format!(
                    "{}:{number}: `{line}` is not, or not there, in the output of the block above:\n{output}",
                    page.name
                )
            })?;
        }
    }
    Ok(())
}

/// Replaces each port of this machine in a script by a free one, since other tests or nodes may use them.
fn with_free_ports(script: &str, mut free: impl FnMut() -> u16) -> String {
    let mut ports = BTreeMap::new();
    let mut parts = script.split(LOOPBACK);
    let mut changed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (port, rest) = part.split_at(end);
        changed += LOOPBACK;
        if !port.is_empty() {
            changed += &ports.entry(port).or_insert_with(&mut free).to_string();
        }
        changed += rest;
    }
    changed
}

/// Returns a UDP port that is free now.
fn free_port() -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    socket.local_addr().expect("it is bound").port()
}

/// Parses the host's command lines in a block with prompts: appended `--help` makes the host check but not run them.
///
/// # Errors
/// Returns the host's message for a line that it rejects.
pub fn parse_console(page: &Page, lab: &Lab) -> Result<(), String> {
    let commands = |block: &Block| -> String {
        let mut is_continued = false;
        let mut commands = String::new();
        for line in block.text.lines() {
            let command = if is_continued { Some(line) } else { behind_prompt(line) };
            is_continued = command.is_some_and(|command| command.ends_with(['\\', '|']));
            commands.extend([command.unwrap_or_default(), "\n"]);
        }
        commands
    };
    for block in page.blocks(Label::Console) {
        let script =
            format!("{CONSOLE}host() {{ '{}' \"$@\" --help >/dev/null; }}\n{}", host().display(), commands(block));
        let outputs = lab.path("tmp/console");
        let script = format!("exec >'{}' 2>&1\n{script}", outputs.display());
        bash(lab, &page.name, &script, &[]).map_err(|reason| {
            let output = fs::read_to_string(&outputs).unwrap_or_default();
            format!("{}:{}: this block {reason}:\n{}--- the host says:\n{output}", page.name, block.line, block.text)
        })?;
    }
    Ok(())
}

/// Returns the command behind a prompt, a word that ends in `$`.
fn behind_prompt(line: &str) -> Option<&str> {
    let (prompt, command) = line.split_once("$ ")?;
    (!prompt.contains(' ')).then_some(command)
}

/// Runs a script in a strict shell. All its processes have ended on return.
fn bash(lab: &Lab, name: &str, script: &str, variables: &[(&str, &Path)]) -> Result<(), String> {
    // Named after the page, so that the shell's messages name it.
    let script_path = lab.write(&format!("tmp/{}", name.replace('/', "-")), script);
    let prelude = lab.write("tmp/prelude.sh", PRELUDE);
    let mut bash = Command::new("bash");
    bash.args(["-c", ". \"$0\"; . \"$1\""]).args([&prelude, &script_path]).current_dir(lab.path(""));
    environment(&mut bash, lab);
    bash.envs(variables.iter().copied()).env("SANDBAR_DATA", host().with_file_name("sandbar-data"));
    bash.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let mut bash = bash.spawn().expect("bash starts");
    let group = Pid::from_raw(bash.id().cast_signed()).expect("a process has an id");
    let until = Instant::now() + PAGE_TIME_MAX;
    let status = loop {
        match bash.try_wait().expect("a child can be asked") {
            Some(status) => break Some(status),
            None if Instant::now() > until => break None,
            None => std::thread::sleep(POLL_INTERVAL),
        }
    };
    // Nodes that the page left running; they may have ended.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = bash.wait();
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("failed ({status})")),
        None => Err(format!("did not end within {PAGE_TIME_MAX:?}")),
    }
}

/// Sets the environment: a test's folders for the host, the built programs in `PATH`, and cargo's target folder.
pub fn environment(command: &mut Command, lab: &Lab) {
    for (name, value) in lab.command(&[]).get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let built = host().parent().expect("a program lies in a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(built.to_owned()).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(folders).expect("no folder has a colon"));
    command.env("CARGO_TARGET_DIR", target());
}

/// Returns the target folder of this test.
fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("a test knows where it is");
    exe.ancestors().nth(3).expect("cargo puts tests into TARGET/release/deps").to_owned()
}

/// Checks that output has all lines of `shown` in order. Returns the first missing one.
fn shows<'a>(shown: &'a str, output: &str) -> Result<(), &'a str> {
    let mut lines = output.lines();
    let mut expected = shown.lines().filter(|line| line.trim() != ANY.to_string());
    expected.find(|line| !lines.any(|printed| is_like(printed.trim_end(), line.trim_end()))).map_or(Ok(()), Err)
}

/// Returns whether a line matches `pattern`, in which `…` matches any text.
fn is_like(line: &str, pattern: &str) -> bool {
    let mut parts = pattern.split(ANY);
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        let found = if parts.peek().is_none() { rest.strip_suffix(part).map(|_| "") } else { behind(rest, part) };
        let Some(left) = found else { return false };
        rest = left;
    }
    true
}

fn behind<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    text.split_once(part).map(|(_, rest)| rest)
}

#[test]
fn ports_are_exchanged() {
    let script = "a 127.0.0.1:7411\nb 127.0.0.1:7412 127.0.0.1:7411, 127.0.0.1:$p";
    let mut last = 0;
    let next = || {
        last += 1;
        last
    };
    let changed = with_free_ports(script, next);
    assert_eq!(changed, "a 127.0.0.1:1\nb 127.0.0.1:2 127.0.0.1:1, 127.0.0.1:$p");
}

#[test]
fn output_is_compared_line_by_line() {
    for (shown, output, expected) in [
        ("b\n", "a\nb\nc\n", Ok(())),
        ("a\nc\n", "a\nb\nc\n", Ok(())),
        ("c\na\n", "a\nb\nc\n", Err("a")),
        ("a  \n", "a\n", Ok(())),
        ("b", "abc\n", Err("b")),
        ("took … s, … rows", "took 1.2 s, 12 rows\n", Ok(())),
        ("took … s", "took 1.2 ms\n", Err("took … s")),
        ("… rows", "no row\n", Err("… rows")),
        ("a…a", "a\n", Err("a…a")),
        ("a\n…\nb\n", "a\nb\n", Ok(())),
    ] {
        assert_eq!(shows(shown, output), expected, "{shown:?} in {output:?}");
    }
}

#[test]
fn commands_stand_behind_prompts() {
    for (line, expected) in [
        ("first$ host serve", Some("host serve")),
        ("$ host serve", Some("host serve")),
        ("job 4f3a9c costs 5$ a day", None),
        ("2026-11-26 INFO", None),
    ] {
        assert_eq!(behind_prompt(line), expected, "{line}");
    }
}
