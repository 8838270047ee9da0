//! File arguments of programs, progress, and results of composite types.

use sandbar_tests::{CommandOutput, Lab, component};
use serde_json::{Value, json};

fn run(lab: &Lab, task: &str, arguments: &[&str], settings: &[&str]) -> CommandOutput {
    let program = format!("{}#{task}", component("tests/programs/files").display());
    let mut line = vec!["submit", &program, "--json"];
    line.extend(arguments.iter().flat_map(|argument| ["--arg", argument]));
    line.extend(settings);
    lab.host(&line)
}

#[track_caller]
fn check(lab: &Lab, task: &str, arguments: &[&str], expected: Value) {
    let summary = run(lab, task, arguments, &[]).expect_code(0).json();
    assert_eq!(summary["result"], expected, "{task} {arguments:?}: {summary}");
}

#[track_caller]
fn check_failure(lab: &Lab, task: &str, arguments: &[&str], code: i32, expected_texts: &[&str]) {
    run(lab, task, arguments, &[]).expect_code(code).expect_stderr(expected_texts);
}

/// Writes files of `bytes` bytes each, and returns the sum of all bytes.
fn write(lab: &Lab, folder: &str, files: usize, bytes: usize) -> u64 {
    for file in 0..files {
        lab.write(&format!("{folder}/{file:05}.csv"), vec![(file % 251) as u8; bytes]);
    }
    (0..files).map(|file| (file % 251 * bytes) as u64).sum()
}

#[test]
fn a_file_is_read_for_whoever_opens_it() {
    let lab = Lab::new();
    for bytes in [0, 5, 5000, 200_000, 9 << 20] {
        lab.write("data.bin", vec![3; bytes]);
        check(&lab, "one", &["data=@data.bin", "tasks=20"], json!(["data.bin", 3 * bytes, true]));
    }
    lab.write("data.bin", vec![1; 9 << 20]);
    check(&lab, "forgets", &["data=@data.bin", "times=2000"], json!(9 << 20));
    check(&lab, "perhaps", &["data=@./data.bin"], json!("data.bin"));
    check(&lab, "perhaps", &[], json!(null));
}

#[test]
fn a_folder_or_a_glob_selects_many_files() {
    let lab = Lab::new();
    let sum = write(&lab, "in", 3000, 20);
    lab.write("in/notes.txt", [1; 7]);
    for files in ["files=@in/*.csv", "files=@./in/**/*.csv"] {
        check(&lab, "many", &[files], json!([3000, sum, []]));
    }
    check(&lab, "many", &["files=@in", "chunksize=16"], json!([3001, sum + 7, []]));
    check(&lab, "many", &["files=@in/00007.csv"], json!([1, 140, []]));
    check(&lab, "at_once", &["files=@in"], json!([3001, sum + 7, {}]));
    check(&lab, "leaves", &["files=@in"], json!(3001));
}

/// An unreadable file fails alone, with its name in the error.
#[test]
fn a_file_that_can_not_be_read_is_an_error_of_its_own() {
    let lab = Lab::new();
    let sum = write(&lab, "in", 10, 100);
    // A file of procfs has another length than its metadata says.
    std::os::unix::fs::symlink("/proc/self/status", lab.path("in/00010.csv")).expect("a link");
    let summary = run(&lab, "many", &["files=@in/*.csv"], &[]).expect_code(0).json();
    let [files, all, errors] = summary["result"].as_array().map(Vec::as_slice).expect("a list") else { panic!() };
    assert_eq!((files, all), (&json!(11), &json!(sum)), "{summary}");
    let [error] = errors.as_array().map(Vec::as_slice).expect("a list") else { panic!("{errors}") };
    assert_eq!(error[0], json!("in/00010.csv"));
    let text = error[1].as_str().expect("a text");
    assert!(text.contains("in/00010.csv: changed since its job started [input]"), "{text}");
}

/// Reading waits for free object memory; values already read are spilled when more is read.
#[test]
fn files_that_do_not_fit_into_memory_go_to_disk_and_come_back() {
    let lab = Lab::new();
    let sum = write(&lab, "in", 40, 2 << 20);
    let summary = run(&lab, "at_once", &["files=@in"], &["--object-memory", "20MiB"]).expect_code(0).json();
    assert_eq!(summary["result"], json!([40, sum, {}]), "{summary}");
    assert!(summary["spilled_bytes"].as_u64() > Some(40 << 20), "{summary}");
    let full = ["--object-memory", "20MiB", "--disk-reserve", "1000TiB"];
    let summary = run(&lab, "at_once", &["files=@in"], &full).expect_code(0).json();
    let refused = summary["result"][2]["store-full"].as_u64().expect("some found no room");
    assert!((20..40).contains(&refused), "{summary}");
    lab.write("large", vec![0; 21 << 20]);
    let ended = run(&lab, "one", &["data=@large", "tasks=1"], &["--object-memory", "20MiB"]);
    ended.expect_code(1).expect_stderr(&["large has 22020096 bytes, the node's objects have 20971520", "[store-full]"]);
}

#[test]
fn only_files_of_the_job_can_be_opened() {
    let lab = Lab::new();
    for number in ["0", "7", "18446744073709551615"] {
        let expected_texts = [&format!("file {number} is not a file of the task's job [bad-request]")[..]];
        check_failure(&lab, "guesses", &[&format!("number={number}")], 1, &expected_texts);
    }
}

#[test]
fn file_arguments_are_checked_before_the_run() {
    let lab = Lab::new();
    let sum = write(&lab, "in", 2, 1);
    assert_eq!(sum, 1);
    std::fs::create_dir(lab.path("empty")).expect("a folder");
    for (task, argument, code, expected_texts) in [
        ("one", "data=@nothing.csv", 1, "nothing.csv: there is no such file or folder [input]"),
        ("one", "data=@in", 2, "`in` matches 2 files, the argument takes one"),
        ("one", "data=@/dev/zero", 1, "/dev/zero: not a regular file"),
        ("one", "data=in/00000.csv", 1, "it is given as --arg NAME=@PATH"),
        ("one", "tasks=@in", 2, "argument `tasks` has type u64: `@PATH` needs type `File` or `Files`"),
        ("texts", "text=@in", 2, "argument `text` has type String"),
        ("many", "files=@empty", 1, "empty: it contains no files [input]"),
        ("many", "files=@in/*.parquet", 1, "no file matches it"),
    ] {
        check_failure(&lab, task, &[argument], code, &[expected_texts]);
    }
}

#[test]
fn texts_may_begin_as_files_do() {
    let lab = Lab::new();
    check(&lab, "texts", &["text=@@home", "other=5"], json!(["@home", "5"]));
    check(&lab, "texts", &["text=a@b"], json!(["a@b"]));
}

/// A program's result is printed as a line of JSON, or as the plain number or text.
#[test]
fn results_of_any_shape_are_shown() {
    let lab = Lab::new();
    let shown = |task: &str, arguments: &[&str]| {
        let program = format!("{}#{task}", component("tests/programs/files").display());
        let arguments = arguments.iter().flat_map(|argument| ["--arg", argument]);
        let line: Vec<&str> = ["submit", &program].into_iter().chain(arguments).collect();
        lab.host(&line).expect_code(0)
    };
    assert_eq!(shown("shape", &[]).stdout, "{\"lengths\":[0.1,0.1],\"name\":\"square\",\"sides\":4}\n");
    let status = lab.host(&["jobs", "status"]).expect_code(0).stdout;
    assert!(status.contains("\"name\":\"square\""), "{status}");
    assert_eq!(shown("long", &["bytes=3"]).stdout, "xxx\n");
    assert_eq!(shown("texts", &["text=a"]).stdout, "[\"a\"]\n");
    let ended = shown("object", &[]);
    assert_eq!(ended.stdout, "");
    ended.expect_stderr(&["warn: the result is shown as null: an ObjectRef can only be serialised inside a value"]);
    check_failure(
        &lab,
        "long",
        &["bytes=2000000"],
        1,
        &["long: its result has 2000002 bytes as JSON, the limit is 1048576"],
    );
}

/// A million progress reports cost little and are merged; control characters in them do not reach the terminal.
#[test]
fn frequent_progress_reports_are_harmless() {
    let lab = Lab::new();
    let program = format!("{}#all_report", component("tests/programs/files").display());
    let ended = lab.host(&["submit", &program, "--arg", "tasks=20", "--arg", "times=100000"]).expect_code(0);
    assert_eq!(ended.stdout, "2000000\n");
    assert!(!ended.stderr.contains('\x1b') && ended.stderr.lines().count() < 40, "{}", ended.stderr);
    let ended = ended.expect_stderr(&["tasks: 20 of 20 in ", "loop: 2000000 of 2000000 in ", " a second"]);
    let status = lab.host(&["jobs", "status", "--json"]).expect_code(0).json();
    let progress = status["progress"].as_array().expect("a list");
    assert!((3..=16).contains(&progress.len()), "{status}");
    assert_eq!((&progress[0]["name"], &progress[0]["done"]), (&json!("tasks"), &json!(20)), "{status}");
    let quiet = lab.host(&["submit", &program, "--arg", "tasks=1", "--arg", "times=10", "--quiet"]).expect_code(0);
    assert!(!quiet.stderr.contains("tasks: 1"), "{}", quiet.stderr);
    assert!(ended.duration < std::time::Duration::from_secs(60), "{:?}", ended.duration);
}
