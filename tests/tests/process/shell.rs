//! The host in a shell: completion, versions, `doctor`, dry runs and quiet mode.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Resource;
use sandbar_tests::{CommandOutput, Lab, Running, component, workspace};
use serde_json::Value;

const ROWS: &str = "k,x,y\na,1,2\na,2,4\na,3,6\na,4,8\nb,1,1\nb,2,2\nb,3,3\nb,4,4\n";

/// Creates a lab with rows, a job that trains on them, and a job that writes them.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    let input = "[input]\npaths = [\"rows.csv\"]\n";
    let models = component("udfs/models");
    let train = "[train]\ngroup_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\n";
    let train = format!("{train}models = [{{ udf = \"{}#linear\" }}]\n", models.display());
    lab.write("train.toml", format!("name = \"lines\"\n{input}{train}[output]\npath = \"out/models.parquet\"\n"));
    lab.write("rows.toml", format!("{input}filter = \"x > 1\"\n[output]\npath = \"out.csv\"\n"));
    lab
}

/// Runs the host with changed environment variables and, optionally, a resource limit that it can't raise.
fn host_with(
    lab: &Lab,
    arguments: &[&str],
    environment: &[(&str, Option<&Path>)],
    limit: Option<(Resource, u64)>,
) -> CommandOutput {
    let mut command = lab.command(arguments);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some((resource, max)) = limit {
        crate::machine::limit(&mut command, resource, max);
    }
    Running::new(command).wait()
}

#[test]
fn completion_scripts_name_all_commands() {
    let lab = Lab::new();
    let help = lab.host(&["--help"]).expect_code(0).stdout;
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() > 15 && commands.contains(&"doctor"), "{help}");
    for shell in ["bash", "zsh", "fish"] {
        let script = lab.host(&["completion", shell]).expect_code(0);
        assert_eq!(script.stderr, "", "{shell}");
        for word in commands.iter().chain(&["software-gpu", "dry-run"]) {
            assert!(script.stdout.contains(word), "{word} is not in the script of {shell}");
        }
        let file = lab.write(&format!("host.{shell}"), &script.stdout);
        // Skips shells that are not installed.
        match Command::new(shell).arg("-n").arg(&file).stdin(Stdio::null()).output() {
            Ok(checked) => assert!(checked.status.success(), "{shell}: {checked:?}"),
            Err(e) => sandbar_tests::print_line(format_args!("not tested: the script of {shell}: {e}")),
        }
    }
    lab.host(&["completion", "csh"]).expect_code(2).expect_stderr(&["bash, zsh, fish"]);
}

/// Returns bash's completions of the last word of a line.
#[test]
fn bash_completes() {
    let lab = Lab::new();
    lab.write("host.bash", lab.host(&["completion", "bash"]).expect_code(0).stdout);
    for (expected_texts, offered) in [
        (&["host", "doc"][..], &["doctor"][..]),
        (&["host", "completion", ""], &["bash", "zsh", "fish"]),
        (&["host", "submit", "--dry"], &["--dry-run"]),
        (&["host", "jobs", "st"], &["status", "stop"]),
    ] {
        let script = format!(
            "source host.bash; COMP_WORDS=({}); COMP_CWORD={}; _host host '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            expected_texts.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
            expected_texts.len() - 1,
            expected_texts[expected_texts.len() - 1],
            expected_texts[expected_texts.len() - 2]
        );
        let output = Command::new("bash").args(["-c", &script]).current_dir(lab.path("")).output().expect("bash");
        let found = String::from_utf8_lossy(&output.stdout);
        for word in offered {
            assert!(found.lines().any(|line| line == *word), "{expected_texts:?}: {found}{output:?}");
        }
    }
}

#[test]
fn versions_are_those_of_the_lock_file() {
    let lab = Lab::new();
    let lock = std::fs::read_to_string(workspace().join("Cargo.lock")).expect("a lock file");
    let locked = |package: &str| -> String {
        let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \"")).expect("it is locked");
        rest.split('"').next().expect("a version").to_owned()
    };
    let json = lab.host(&["version", "--json"]).expect_code(0).json();
    for (field, package) in
        [("sandbar", "sandbar-cli"), ("wasmtime", "wasmtime"), ("arrow", "arrow-schema"), ("datafusion", "datafusion")]
    {
        assert_eq!(json[field], locked(package), "{field} of {json}");
    }
    let wit = std::fs::read_to_string(workspace().join("wit/sandbar.wit")).expect("the contract");
    let contract = json["contract"].as_str().expect("a text");
    assert!(wit.contains(&format!("package {contract};")), "{json}");
    assert_eq!(json["walls"]["seccomp"], true, "{json}");
    assert!(json["target"].as_str().is_some_and(|target| target.starts_with(std::env::consts::ARCH)), "{json}");
    let text = lab.host(&["version"]).expect_code(0).stdout;
    for word in ["sandbar", "contract", "wasmtime", "arrow", "datafusion", "target", "walls"] {
        assert!(text.lines().any(|line| line.starts_with(word)), "{word}: {text}");
    }
    let line = lab.host(&["--version"]).expect_code(0).stdout;
    assert_eq!(line, format!("host {}\n", locked("sandbar-cli")));
}

/// Returns verdict and text of a check.
fn found(report: &Value, name: &str) -> (String, String) {
    let checks = report["checks"].as_array().expect("a list");
    let check = checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"));
    let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
    (text("verdict"), format!("{}: {}", text("value"), text("remedy")))
}

#[test]
fn the_doctor_reports_the_machine() {
    let lab = Lab::new();
    let report = lab.host(&["doctor", "--json"]).expect_code(0).json();
    for name in [
        "programs",
        "kernel",
        "seccomp",
        "landlock",
        "memory",
        "addresses",
        "swap",
        "huge pages",
        "overcommit",
        "open files",
        "processors",
        "TMPDIR",
        "cache",
        "state",
        "gpu",
        "compiler",
        "UDP buffers",
    ] {
        let (verdict, line) = found(&report, name);
        assert!(["ok", "warn"].contains(&verdict.as_str()) && line.len() > 2, "{name}: {verdict} {line}");
    }
    let text = lab.host(&["doctor"]).expect_code(0).stdout;
    assert_eq!(text.lines().count(), report["checks"].as_array().expect("a list").len(), "{text}");
    assert!(text.lines().all(|line| line.starts_with("ok ") || line.starts_with("warn ")), "{text}");
    // No file or folder remains.
    assert_eq!(lab.names(), [] as [&str; 0]);
    assert!(!lab.path("state").exists());
}

#[test]
fn the_doctor_finds_limits() {
    let lab = Lab::new();
    let (absent, file) = (lab.path("absent"), lab.write("file", ""));
    let empty = lab.path("tmp");
    let no_cargo: &[(&str, Option<&Path>)] = &[("CARGO", None), ("PATH", Some(&empty))];
    let before = lab.names();
    for (environment, limit, code, check, verdict, expected_texts) in [
        (&[][..], Some((Resource::Nofile, 512)), 0, "open files", "warn", &["512", "ulimit -Hn 1024"][..]),
        (&[], Some((Resource::Nofile, 64)), 0, "open files", "warn", &["64", "ulimit -Hn 1024", "LimitNOFILE"]),
        (&[], Some((Resource::Nofile, 40)), 1, "open files", "bad", &["40", "too few", "ulimit -Hn 1024"]),
        (&[], Some((Resource::As, 64 << 30)), 1, "addresses", "bad", &["64.0 GiB", "ulimit -v unlimited"]),
        (&[], Some((Resource::As, 64 << 30)), 1, "memory", "ok", &["GiB for rows"]),
        (&[("TMPDIR", Some(&*absent))], None, 1, "TMPDIR", "bad", &["absent is not there", "set TMPDIR"]),
        (&[("TMPDIR", Some(&*file))], None, 1, "TMPDIR", "bad", &["file can't be written", "set TMPDIR"]),
        (&[("XDG_CACHE_HOME", Some(&*file))], None, 1, "cache", "bad", &["can't be written", "set XDG_CACHE_HOME"]),
        (&[("XDG_STATE_HOME", Some(&*file))], None, 0, "state", "warn", &["can't be written", "set XDG_STATE_HOME"]),
        (&[("XDG_CACHE_HOME", Some(&*absent))], None, 0, "cache", "ok", &["absent/sandbar (not there yet, "]),
        (no_cargo, None, 0, "compiler", "warn", &["no cargo in PATH", "https://rustup.rs"]),
    ] {
        let ended = host_with(&lab, &["doctor", "--json"], environment, limit).expect_code(code);
        let report = ended.json();
        let (is, line) = found(&report, check);
        assert_eq!(is, verdict, "{check}: {line}");
        assert!(expected_texts.iter().all(|word| line.contains(word)), "{check}: {line}");
        assert_eq!(report["verdict"] == "bad", code == 1, "{report}");
        assert_eq!(lab.names(), before, "{check}");
    }
}

/// With lavapipe, which every test machine has.
#[test]
fn the_doctor_names_gpus() {
    let lab = Lab::new();
    let listed = lab.host(&["gpu", "list", "--json", "--software-gpu"]).expect_code(0).json();
    let Some(name) = listed["gpus"][0]["name"].as_str() else {
        sandbar_tests::print_line(format_args!("not tested: there is no lavapipe: {listed}"));
        return;
    };
    for cache in ["new", "measured"] {
        let cache = lab.path(cache);
        let run =
            |arguments: &[&str]| host_with(&lab, arguments, &[("XDG_CACHE_HOME", Some(&cache))], None).expect_code(0);
        let is_measured = cache.ends_with("measured");
        if is_measured {
            run(&["gpu", "list", "--software-gpu"]);
        }
        let (verdict, line) = found(&run(&["doctor", "--json", "--software-gpu"]).json(), "gpu");
        assert_eq!((verdict.as_str(), line.contains(name)), ("ok", true), "{line}");
        assert_eq!(line.contains("not measured yet: run `host gpu list`"), !is_measured, "{line}");
        assert_eq!(cache.exists(), is_measured);
    }
}

/// Runs a command as a dry run and then as it is. The dry run leaves no files; if the command fails, the dry run fails
/// with the same message.
#[track_caller]
fn dry_and_wet(lab: &Lab, arguments: &[&str], code: i32, expected_texts: &[&str]) {
    let before = lab.names();
    let dry =
        lab.host(&[&["submit"], arguments, &["--dry-run"]].concat()).expect_code(code).expect_stderr(expected_texts);
    assert_eq!((lab.names(), lab.path("state").exists()), (before, false), "{}", dry.line);
    let wet = lab.host(&[&["submit"], arguments, &["-q"]].concat()).expect_code(code);
    // A failed program leaves a record.
    let _ = std::fs::remove_dir_all(lab.path("state"));
    if code != 0 {
        // Names of temporary files differ.
        let expected_texts =
            |ended: &CommandOutput| ended.stderr.split(" at path ").next().unwrap_or_default().trim_end().to_owned();
        assert_eq!((dry.stdout.as_str(), expected_texts(&dry)), ("", expected_texts(&wet)), "{}", dry.line);
    }
}

#[test]
fn a_dry_run_finds_errors() {
    let lab = lab();
    let taxi = component("udfs/taxi");
    let add = |rest: &str| format!("transform=[{{udf=\"{}#add\", output=\"sum\", {rest}}}]", taxi.display());
    let (sum, deleted) = (add("columns=[\"x\", \"y\"]"), add("columns=[\"x\", \"z\"]"));
    let models = component("udfs/models");
    let params = |params: &str| format!("train.models.0.params={{{params}}}");
    let (typo, good) = (params("fit_intercep=true"), params("fit_intercept=false"));
    let name = |name: &str| format!("train.models.0.udf=\"{}#{name}\"", models.display());
    let (linaer, scalar) = (name("linaer"), format!("train.models.0.udf=\"{}#add\"", taxi.display()));
    for (job, sets, code, expected_texts) in [
        ("train.toml", &[][..], 0, &[][..]),
        ("train.toml", &[&*good], 0, &[]),
        ("train.toml", &[&*sum, "train.features=[\"sum\"]"], 0, &[]),
        ("rows.toml", &[&*sum], 0, &[]),
        ("gone.toml", &[], 2, &["there is no job file"]),
        ("train.toml", &["input.paths=[\"row.csv\"]"], 1, &["did you mean `rows.csv`"]),
        ("train.toml", &["input.filter=\"w = 1\""], 1, &["w"]),
        ("train.toml", &["train.target=\"Y\""], 1, &["`Y`", "did you mean `y`"]),
        ("train.toml", &["train.features=[\"k\"]"], 1, &["feature `k`"]),
        ("train.toml", &["train.group_by=[\"q\"]"], 1, &["`q`"]),
        ("train.toml", &["train.features=[]"], 2, &["train.features"]),
        ("train.toml", &[&*typo], 1, &["did you mean `fit_intercept`", "[refused]"]),
        ("train.toml", &[&*linaer], 1, &["no function `linaer`"]),
        ("train.toml", &[&*scalar], 1, &["scalar"]),
        ("train.toml", &[&*sum, "train.features=[\"sun\"]"], 1, &["`sun`"]),
        ("train.toml", &[&*deleted], 1, &["`z`"]),
        ("train.toml", &["output.path=\"rows.csv/out.parquet\""], 1, &["Not a directory"]),
        ("train.toml", &["output.path=\"out.csv\""], 2, &[".parquet"]),
        ("rows.toml", &["output.path=\"rows.csv\""], 2, &["which is read"]),
        ("rows.toml", &["output.path=\"out\"", "output.format=\"csv\"", "output.partition_by=[\"q\"]"], 1, &["`q`"]),
        ("rows.toml", &["input.types={x=\"colour\"}"], 2, &["colour"]),
    ] {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        dry_and_wet(&lab, &[job].into_iter().chain(sets).collect::<Vec<_>>(), code, expected_texts);
        let _ = (std::fs::remove_file(lab.path("out.csv")), std::fs::remove_dir_all(lab.path("out")));
    }
}

#[test]
fn a_dry_run_describes_the_job() {
    let lab = lab();
    let json = lab.host(&["submit", "train.toml", "--dry-run", "--json", "--workers", "3"]).expect_code(0).json();
    for (pointer, expected) in [
        ("/name", Value::from("lines")),
        ("/input/files", 1.into()),
        ("/input/paths/0", "rows.csv".into()),
        ("/input/bytes", ROWS.len().into()),
        ("/input/rows", Value::Null),
        ("/input/columns/1/name", "x".into()),
        ("/input/columns/1/type", "Int64".into()),
        ("/train/models/0/name", "linear".into()),
        ("/train/models/0/kind", "trainer".into()),
        ("/train/models/0/to_build", Value::Null),
        ("/output/path", "out/models.parquet".into()),
        ("/output/replaces", false.into()),
        ("/workers", 3.into()),
        ("/unchecked", Value::Array(Vec::new())),
    ] {
        assert_eq!(json.pointer(pointer), Some(&expected), "{pointer} of {json}");
    }
    let text = lab.host(&["submit", "train.toml", "--dry-run"]).expect_code(0).stdout;
    for expected_texts in
        ["1 file, ", "rows.csv", "k: Utf8, x: Int64, y: Int64", "by k", "y, from x", "out/models.parquet"]
    {
        assert!(text.contains(expected_texts), "`{expected_texts}` is not in {text}");
    }
    // Parquet metadata has the number of rows; an existing output is replaced.
    lab.host(&["submit", "rows.toml", "-q", "--output", "rows.parquet"]).expect_code(0);
    let line = ["submit", "rows.toml", "--input", "rows.parquet", "--output", "rows.csv", "--dry-run", "--json"];
    let json = lab.host(&line).expect_code(0).json();
    assert_eq!((&json["input"]["rows"], &json["output"]["replaces"]), (&6.into(), &true.into()), "{json}");
}

/// A dry run without calls to functions starts no process; one with calls starts one.
#[test]
fn a_dry_run_starts_no_worker_without_need() {
    let lab = lab();
    let log = lab.path("started");
    let worker = sandbar_tests::host().with_file_name("host-worker");
    // The real host beside a worker that records its start.
    let folder = lab.path("bin");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::hard_link(sandbar_tests::host(), folder.join("host"))
        .or_else(|_| std::fs::copy(sandbar_tests::host(), folder.join("host")).map(drop))
        .expect("a copy of the host");
    let script = format!("#!/bin/sh\necho \"$1\" >> {}\nexec {} \"$@\"\n", log.display(), worker.display());
    let script = lab.write("bin/host-worker", script);
    std::fs::set_permissions(script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a program");
    // The caches describe the components already.
    lab.host(&["submit", "train.toml", "--dry-run"]).expect_code(0);
    for (arguments, starts) in [
        (&["train.toml", "--dry-run"][..], 0..=0),
        (&["rows.toml", "--dry-run"], 0..=0),
        (&["train.toml", "--dry-run", "--set", "train.models.0.params={fit_intercept=false}"], 1..=1),
        (&["train.toml", "--workers", "2"], 1..=2),
    ] {
        let mut command = Command::new(folder.join("host"));
        command.arg("submit").args(arguments).current_dir(lab.path(""));
        let usual = lab.command(&[]);
        for (name, value) in usual.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            command.env(name, value);
        }
        Running::new(command).wait().expect_code(0);
        let started = std::fs::read_to_string(&log).unwrap_or_default();
        assert!(starts.contains(&started.lines().count()), "{arguments:?}: {started}");
        let _ = std::fs::remove_file(&log);
    }
}

#[test]
fn a_dry_run_builds_nothing() {
    let lab = lab();
    lab.host(&["new", "--trainer", "lines"]).expect_code(0);
    let before = lab.names();
    let udf = ["--set", "train.models.0.udf=\"lines#mean\""];
    let line = [&["submit", "train.toml", "--dry-run"], &udf[..]].concat();
    let text = lab.host(&line).expect_code(0).stdout;
    for expected_texts in ["its crate is built first", "not checked", "`lines#mean` is in the crate lines"] {
        assert!(text.contains(expected_texts), "`{expected_texts}` is not in {text}");
    }
    let json = lab.host(&[&line[..], &["--json"]].concat()).expect_code(0).json();
    assert_eq!(json["train"]["models"][0]["to_build"], "lines", "{json}");
    let set = ["--set", "transform=[{udf=\"lines#clean\"}]"];
    let json = lab.host(&[&["submit", "train.toml", "--dry-run", "--json"], &set[..]].concat()).expect_code(0).json();
    assert_eq!((&json["columns"], &json["transforms"][0]["to_build"]), (&Value::Null, &"lines".into()), "{json}");
    let text = lab.host(&["submit", "lines", "--dry-run"]).expect_code(0).stdout;
    assert!(text.contains("its crate is built first"), "{text}");
    assert_eq!(lab.names(), before);
}

#[test]
fn a_dry_run_checks_the_arguments_of_a_program() {
    let lab = Lab::new();
    lab.write("a.txt", "a");
    lab.write("b.txt", "b");
    let tasks = component("tests/programs/tasks").display().to_string();
    let files = component("tests/programs/files").display().to_string();
    let task = |of: &str, name: &str| format!("{of}#{name}");
    let tree = ["depth=1", "width=1", "steps=1"];
    for (program, arguments_of_program, code, expected_texts) in [
        (task(&tasks, "tree"), &tree[..], 0, &[][..]),
        (task(&tasks, "tree"), &tree[..2], 1, &["tree: argument `steps` is missing [refused]"]),
        (
            task(&tasks, "tree"),
            &["depth=x", "width=1", "steps=1"],
            1,
            &["argument `depth` can't be read as", "[refused]"],
        ),
        (task(&tasks, "tree"), &["depht=1"], 2, &["no argument `depht`"]),
        (task(&tasks, "three"), &[], 1, &["it has no task `three`"]),
        (task(&files, "all_report"), &["tasks=@a.txt", "times=1"], 2, &["`@PATH` needs type `File` or `Files`"]),
        ("gone.wasm".to_owned(), &[], 1, &["there is no component or crate `gone.wasm`"]),
    ] {
        let arguments: Vec<&str> =
            [&*program].into_iter().chain(arguments_of_program.iter().flat_map(|arg| ["--arg", arg])).collect();
        dry_and_wet(&lab, &arguments, code, expected_texts);
    }
    let program = task(&tasks, "tree");
    let line: Vec<&str> = ["submit", &program, "--dry-run", "--json"]
        .into_iter()
        .chain(tree.iter().flat_map(|arg| ["--arg", arg]))
        .collect();
    let json = lab.host(&line).expect_code(0).json();
    assert_eq!((&json["task"], &json["is_to_build"]), (&"tree".into(), &false.into()), "{json}");
    assert_eq!((&json["arguments"][0]["name"], &json["arguments"][0]["value"]), (&"depth".into(), &"1".into()));
    // A job for another node is checked by that node.
    for other in [&["--node", "127.0.0.1:1"][..], &["--join", "127.0.0.1:1"]] {
        lab.host(&[&["submit", &program, "--dry-run"], other].concat()).expect_code(2).expect_stderr(&["--dry-run"]);
    }
}

/// With `-q`, a successful command prints its data only.
#[test]
fn quiet_is_quiet() {
    let lab = lab();
    let taxi = component("udfs/taxi");
    let add = format!("transform=[{{udf=\"{}#add\", columns=[\"x\", \"y\"]}}]", taxi.display());
    let models = component("udfs/models").display().to_string();
    let tree = format!("{}#tree", component("tests/programs/tasks").display());
    let logs = format!("{}#all_report", component("tests/programs/files").display());
    let crate_folder = workspace().join("udfs/taxi").display().to_string();
    let predict = ["predict", "out/models.parquet", "--input", "rows.csv", "--output", "p.csv"];
    let tree = ["submit", &tree, "--arg", "depth=1", "--arg", "width=2", "--arg", "steps=1"];
    for (arguments, printed) in [
        (&["submit", "train.toml"][..], ""),
        (&["submit", "rows.toml"], ""),
        (&["submit", "rows.toml", "--set", &add], ""),
        (&predict, ""),
        (&[&predict[..], &["--component", &models]].concat(), ""),
        (&tree, "2\n"),
        (&["submit", &logs, "--arg", "tasks=2", "--arg", "times=10"], "20\n"),
    ] {
        let quiet = lab.host(&[arguments, &["-q"]].concat()).expect_code(0);
        assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), (printed, ""), "{}", quiet.line);
        let loud = lab.host(arguments).expect_code(0);
        assert!(loud.stdout.len() + loud.stderr.len() > printed.len(), "{}", loud.line);
        let json = lab.host(&[arguments, &["-q", "--json"]].concat()).expect_code(0);
        assert!(json.json().is_object() && json.stderr.is_empty(), "{}: {}", json.line, json.stderr);
    }
    let built = lab.host(&["build", "-q", &crate_folder]).expect_code(0);
    assert!(built.stdout.ends_with(".wasm\n") && built.stderr.is_empty(), "{}{}", built.stdout, built.stderr);
    // Errors are printed nevertheless.
    lab.write("nulls.csv", "k,x,y\na,1,2\na,2,\na,3,6\na,4,8\nb,1,1\nb,2,2\nb,3,3\nb,4,4\n");
    let failed = lab.host(&["submit", "train.toml", "-q", "--input", "nulls.csv"]).expect_code(1);
    assert_eq!(failed.stdout, "");
    failed.expect_stderr(&["failed: k=a", "[values]"]);
}

#[test]
fn help_has_examples() {
    let lab = Lab::new();
    for command in ["completion", "version", "doctor", "build", "submit", "predict"] {
        let help = lab.host(&[command, "--help"]).expect_code(0).stdout;
        assert!(help.contains("Examples:") && help.contains(&format!("  host {command}")), "{help}");
    }
}
