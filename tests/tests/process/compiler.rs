//! The process that compiles user components.

use std::fs::File;
use std::io::Read as _;
use std::process::{Command, Stdio};

use sandbar_tests::{component, host};
use sandbar_worker::COMPILER_ARGUMENT;

use crate::lifecycle::until;

#[test]
fn the_compiler_is_confined_before_it_reads_a_component() {
    let mut compiler = Command::new(host().with_file_name("host-worker"))
        .arg(COMPILER_ARGUMENT)
        .stdin(Stdio::from(File::open(component("udfs/taxi")).unwrap()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The compiler blocks on its answer, which is larger than a pipe's buffer.
    let threads = format!("/proc/{}/task", compiler.id());
    let walls = || -> Vec<String> {
        let status = |thread| std::fs::read_to_string(thread).unwrap_or_default();
        let line = |status: String| status.lines().find(|line| line.starts_with("Seccomp:")).map(str::to_owned);
        let threads = std::fs::read_dir(&threads).unwrap();
        threads.filter_map(|thread| line(status(thread.unwrap().path().join("status")))).collect()
    };
    until("each of its threads is confined", || {
        let walls = walls();
        !walls.is_empty() && walls.iter().all(|wall| wall == "Seccomp:\t2")
    });
    assert!(compiler.try_wait().unwrap().is_none(), "the compiler ended early");
    let mut output = Vec::new();
    compiler.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    assert!(compiler.wait().unwrap().success());
    assert!(output.len() > 100_000, "{} bytes", output.len());
}
