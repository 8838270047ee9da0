//! Limits of the machine: descriptors, disks, memory, missing folders. A job works within them, or names the limit and
//! the remedy; no output stays half written.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use rustix::process::{Resource, Rlimit, setrlimit};
use sandbar_tests::{CommandOutput, Lab, Running, component};

const SOME_ROWS: &str = "k,x,y\na,1,2\na,2,4\na,3,6\na,4,8\nb,1,1\nb,2,2\nb,3,3\nb,4,4\n";

fn job(lab: &Lab, input: &str, output: &str) {
    let models = component("udfs/models");
    let text = format!(
        "[input]\npaths = [{input:?}]\n[train]\ngroup_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\ntest = 0.0\n\
         min_rows = 1\nmodels = [{{ udf = \"{}#linear\" }}]\n[output]\npath = {output:?}\n",
        models.display()
    );
    lab.write("job.toml", text);
}

/// Writes a CSV file of more than 1 MiB with `groups` groups of four rows.
fn many_rows(lab: &Lab, groups: usize) {
    let mut rows = "k,x,y\n".to_owned();
    for k in 0..groups {
        // Numbers with many digits.
        (0..4).for_each(|x| rows += &format!("{k},{x}.{k}7,{}\n", f64::from(x) + 1.0 / (k as f64 + 3.0)));
    }
    lab.write("many.csv", rows);
}

/// Runs the host with a resource limit that it can't raise.
fn limited(lab: &Lab, arguments: &[&str], resource: Resource, max: u64) -> CommandOutput {
    let mut command = lab.command(arguments);
    limit(&mut command, resource, max);
    Running::new(command).wait()
}

/// Sets a hard resource limit for the command.
pub(crate) fn limit(command: &mut Command, resource: Resource, max: u64) {
    // SAFETY: the closure makes one system call, which is allowed between `fork` and `exec`.
    unsafe {
        command.pre_exec(move || {
            let max = Some(max);
            setrlimit(resource, Rlimit { current: max, maximum: max }).map_err(io::Error::from)
        })
    };
}

#[test]
fn few_descriptors() {
    let lab = Lab::new();
    for file in 0..300 {
        lab.write(&format!("many/{file:03}.csv"), format!("k,x,y\n{},1,2\n{0},2,4\n", file % 5));
    }
    job(&lab, "many", "out.parquet");
    for max in [1024, 256, 64, 32] {
        let ended = limited(&lab, &["submit", "job.toml", "--json", "-q", "--workers", "2"], Resource::Nofile, max);
        let json = ended.expect_code(0).json();
        assert_eq!((json["rows"].as_u64(), json["groups"].as_u64()), (Some(600), Some(5)), "{max} descriptors: {json}");
        // A program's node opens more descriptors at once.
        if max >= 64 {
            let program = format!("{}#pools", component("tests/programs/tasks").display());
            let arguments = ["--arg", "count=100", "--arg", "chunksize=10", "--workers", "2", "-q"];
            limited(&lab, &[&["submit", &program], &arguments[..]].concat(), Resource::Nofile, max).expect_code(0);
        }
    }
    // A limit that is too low gives an error with the reason.
    limited(&lab, &["submit", "job.toml", "-q", "--workers", "2"], Resource::Nofile, 12)
        .expect_code(1)
        .expect_stderr(&["Too many open files", "may open 12 files", "ulimit -Hn"]);
}

/// Runs the host with the folder `disk` as a file system of `size`. Returns how it ended and the files left there, or
/// `None` with a message if this user can't mount.
fn on_a_small_disk(
    lab: &Lab,
    size: &str,
    environment: &[(&str, &str)],
    arguments: &[&str],
) -> Option<(CommandOutput, Vec<String>)> {
    const SCRIPT: &str = "mount -t tmpfs -o size=$1 tmpfs disk || exit 99; shift; \"$@\"; code=$?; \
                          (cd disk && find . ! -type d | sort) > left; exit $code";
    std::fs::create_dir_all(lab.path("disk")).expect("a folder");
    let host = lab.command(arguments);
    let mut command = Command::new("unshare");
    // Users other than root need a user namespace.
    let is_root = rustix::process::geteuid().is_root();
    command.arg(if is_root { "-m" } else { "-rm" }).args(["sh", "-c", SCRIPT, "sh", size]);
    command.arg(host.get_program()).args(host.get_args()).current_dir(lab.path(""));
    for (name, value) in host.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
    command.envs(environment.iter().map(|(name, folder)| (name, lab.path(folder))));
    let ended = Running::new(command).wait();
    if ended.status.code() == Some(99) || (ended.status.code() == Some(1) && ended.stderr.contains("unshare: ")) {
        sandbar_tests::print_line(format_args!("not tested: this user can mount nothing: {}", ended.stderr.trim()));
        return None;
    }
    let left = std::fs::read_to_string(lab.path("left")).expect("what is left");
    Some((ended, left.lines().map(str::to_owned).collect()))
}

#[test]
fn full_disks() {
    let lab = Lab::new();
    many_rows(&lab, 50_000);
    let run = |size: &str, environment: &[(&str, &str)], arguments: &[&str]| {
        on_a_small_disk(&lab, size, environment, &[&["submit", "job.toml", "-q"], arguments].concat())
    };
    job(&lab, "many.csv", "disk/models.parquet");
    let Some((ended, left)) = run("64k", &[], &[]) else { return };
    ended.expect_code(1).expect_stderr(&["can't write disk/models.parquet", "No space left on device"]);
    assert!(left.is_empty(), "{left:?}");

    job(&lab, "many.csv", "out.parquet");
    let Some((ended, _)) = run("1m", &[("TMPDIR", "disk")], &["--memory", "1MiB"]) else { return };
    ended.expect_code(1).expect_stderr(&["can't spill rows to", "No space left on device", "set TMPDIR"]);
    assert!(!lab.path("out.parquet").exists());

    lab.write("some.csv", SOME_ROWS);
    job(&lab, "some.csv", "out.parquet");
    let Some((ended, left)) = run("100k", &[("XDG_CACHE_HOME", "disk")], &[]) else { return };
    ended.expect_code(1).expect_stderr(&["the cache folder", "No space left on device", "set XDG_CACHE_HOME"]);
    assert!(!left.iter().any(|path| path.contains("/.")), "partial files: {left:?}");
}

#[test]
fn a_full_state_folder_does_not_turn_success_into_failure() {
    let lab = Lab::new();
    let program = format!("{}#tree", component("tests/programs/tasks").display());
    let arguments = ["submit", &program, "--arg", "depth=3", "--arg", "width=4", "--arg", "steps=10", "-q"];
    for size in ["4k", "8k", "12k", "16k", "20k"] {
        let Some((ended, left)) = on_a_small_disk(&lab, size, &[("XDG_STATE_HOME", "disk")], &arguments) else {
            return;
        };
        let ended = ended.expect_code(0);
        assert_eq!(ended.stdout.trim(), "64", "{size}");
        assert!(!left.iter().any(|path| path.contains("/.") || path.ends_with(".new")), "{size}: {left:?}");
        if !left.iter().any(|path| path.ends_with("/job.json")) {
            ended.expect_stderr(&["warning: "]);
        }
    }
}

#[test]
fn folders_that_are_not_there() {
    let lab = Lab::new();
    many_rows(&lab, 50_000);
    job(&lab, "many.csv", "out.parquet");
    let absent = lab.path("absent");
    // A job without temporary files needs no temporary folder.
    let mut command = lab.command(&["submit", "job.toml", "--json", "-q"]);
    command.env("TMPDIR", &absent).env("XDG_CACHE_HOME", lab.path("cache"));
    Running::new(command).wait().expect_code(0);
    std::fs::remove_file(lab.path("out.parquet")).expect("it was written");
    let mut command = lab.command(&["submit", "job.toml", "-q", "--memory", "1MiB"]);
    command.env("TMPDIR", &absent);
    let named = absent.display().to_string();
    Running::new(command).wait().expect_code(1).expect_stderr(&[&named, "set TMPDIR to a writable folder"]);
    // A home folder is not needed either.
    let mut command = lab.command(&["submit", "job.toml", "--json", "-q"]);
    command.env_clear().env("TMPDIR", lab.path("tmp"));
    Running::new(command).wait().expect_code(0);
}

#[test]
fn names_with_brackets_and_blanks() {
    let lab = Lab::new();
    for name in
        ["[1].csv", "with space/ünï 'q'/a b.csv", "with space/ünï 'q'/[1].csv", "with space/ünï 'q'/back\\slash.csv"]
    {
        lab.write(name, SOME_ROWS);
    }
    job(&lab, "with space", "out.parquet");
    let rows = |arguments: &[&str]| {
        let json = lab.host(&[&["submit", "job.toml", "--json", "-q"], arguments].concat()).expect_code(0).json();
        json["rows"].as_u64()
    };
    assert_eq!(rows(&[]), Some(24));
    assert_eq!(rows(&["--input", "[1].csv"]), Some(8));
    assert_eq!(rows(&["--input", "with space/ünï 'q'/[1].csv"]), Some(8));
    assert_eq!(rows(&["--input", "with space/*/a b.csv"]), Some(8));
}

/// A control group with a memory limit. Dropping it removes it.
struct MemoryGroup(std::path::PathBuf);

impl MemoryGroup {
    /// Returns `None` with a message if this user can't create one.
    fn new(bytes: u64) -> Option<MemoryGroup> {
        let name = format!("sandbar-test-{}-{bytes}", std::process::id());
        let tried = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (parent, limit) in tried {
            let folder = std::path::Path::new(parent).join(&name);
            if std::path::Path::new(parent).join("cgroup.procs").exists() && std::fs::create_dir(&folder).is_ok() {
                let group = MemoryGroup(folder);
                if std::fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                    return Some(group);
                }
            }
        }
        sandbar_tests::print_line(format_args!(
            "not tested: this user can make no control groups with a limit of memory"
        ));
        None
    }

    fn run(&self, mut command: Command) -> CommandOutput {
        let mut processes =
            File::options().write(true).open(self.0.join("cgroup.procs")).expect("the group's processes");
        // SAFETY: the closure makes one system call, which is allowed between `fork` and `exec`.
        unsafe { command.pre_exec(move || processes.write_all(b"0")) };
        Running::new(command).wait()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Processes of the group may still be ending.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

#[test]
fn a_control_groups_memory_is_enough() {
    let Some(group) = MemoryGroup::new(400 << 20) else { return };
    let lab = Lab::new();
    let program = format!("{}#holds", component("tests/programs/objects").display());
    // Twice the available memory.
    let arguments =
        ["--arg", "objects=100", "--arg", "rows=1000000", "--arg", "gets=20", "-q", "--disk-reserve", "1MiB"];
    let ended = group.run(lab.command(&[&["submit", &program, "--workers", "2"], &arguments[..]].concat()));
    assert_eq!(ended.expect_code(0).stdout.trim(), "20");
}

/// Reads row groups of the usual million rows in less than a third of the memory that the job takes without a limit.
#[test]
fn large_row_groups_are_read_in_little_memory() {
    const ROWS: usize = 4_000_000;
    let Some(group) = MemoryGroup::new(120 << 20) else { return };
    let lab = Lab::new();
    job(&lab, "big.parquet", "out.parquet");
    // Numbers that neither compress nor repeat.
    let scattered = |seed: u64| (0..ROWS as u64).map(move |row| ((row + seed) * 0x9e37_79b9_7f4a_7c15) as f64);
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| (row % 1000) as i64)));
    let numbers = |seed| Arc::new(Float64Array::from_iter_values(scattered(seed))) as ArrayRef;
    let rows = RecordBatch::try_from_iter([("k", keys), ("x", numbers(1)), ("z", numbers(2)), ("y", numbers(3))]);
    let rows = rows.expect("a batch");
    let file = File::create(lab.path("big.parquet")).expect("a file");
    let mut writer = ArrowWriter::try_new(file, rows.schema(), None).expect("a writer");
    writer.write(&rows).expect("rows");
    writer.close().expect("a file");
    drop(rows);
    let line = ["submit", "job.toml", "--json", "-q", "--set", "train.features=[\"x\",\"z\"]", "--workers", "2"];
    let json = group.run(lab.command(&line)).expect_code(0).json();
    assert_eq!((json["rows"].as_u64(), json["models"].as_u64()), (Some(ROWS as u64), Some(1000)), "{json}");
}
