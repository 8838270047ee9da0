//! The host in a shell: completion, versions, what of the machine helps or hurts, and quiet.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, setrlimit};
use sandbar_tests::{Ended, Lab, Running, component, workspace};
use serde_json::Value;

const ROWS: &str = "k,x,y\na,1,2\na,2,4\na,3,6\na,4,8\nb,1,1\nb,2,2\nb,3,3\nb,4,4\n";

/// A lab with rows, a job that trains on them, and one that writes them.
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

/// Runs the host with changes of its environment and, perhaps, a limit that it can't raise.
fn host_with(
    lab: &Lab,
    arguments: &[&str],
    environment: &[(&str, Option<&Path>)],
    limit: Option<(Resource, u64)>,
) -> Ended {
    let mut command = lab.command(arguments);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some((resource, most)) = limit {
        // SAFETY: one system call, which may be made between `fork` and `exec`.
        unsafe {
            command.pre_exec(move || {
                let most = Some(most);
                setrlimit(resource, Rlimit { current: most, maximum: most }).map_err(io::Error::from)
            })
        };
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
        for word in commands.iter().chain(&["software-gpu"]) {
            assert!(script.stdout.contains(word), "{word} is not in the script of {shell}");
        }
        let file = lab.write(&format!("host.{shell}"), &script.stdout);
        // A shell that is not there can't say what it makes of it.
        match Command::new(shell).arg("-n").arg(&file).stdin(Stdio::null()).output() {
            Ok(checked) => assert!(checked.status.success(), "{shell}: {checked:?}"),
            Err(e) => sandbar_tests::say(format_args!("not tested: the script of {shell}: {e}")),
        }
    }
    lab.host(&["completion", "csh"]).expect_code(2).expect_talk(&["bash, zsh, fish"]);
}

/// What bash offers for a line whose last word is to be completed.
#[test]
fn bash_completes() {
    let lab = Lab::new();
    lab.write("host.bash", lab.host(&["completion", "bash"]).expect_code(0).stdout);
    for (words, offered) in [
        (&["host", "doc"][..], &["doctor"][..]),
        (&["host", "completion", ""], &["bash", "zsh", "fish"]),
        (&["host", "jobs", "st"], &["status", "stop"]),
    ] {
        let script = format!(
            "source host.bash; COMP_WORDS=({}); COMP_CWORD={}; _host host '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2]
        );
        let output = Command::new("bash").args(["-c", &script]).current_dir(lab.path("")).output().expect("bash");
        let found = String::from_utf8_lossy(&output.stdout);
        for word in offered {
            assert!(found.lines().any(|line| line == *word), "{words:?}: {found}{output:?}");
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

/// The verdict and the line of a check.
fn found(report: &Value, name: &str) -> (String, String) {
    let checks = report["checks"].as_array().expect("a list");
    let check = checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"));
    let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
    (text("verdict"), format!("{}: {}", text("value"), text("remedy")))
}

#[test]
fn the_doctor_finds_what_is_as_it_is() {
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
    // Nothing is left, and no folder is made.
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
    for (environment, limit, code, check, verdict, words) in [
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
        assert!(words.iter().all(|word| line.contains(word)), "{check}: {line}");
        assert_eq!(report["verdict"] == "bad", code == 1, "{report}");
        assert_eq!(lab.names(), before, "{check}");
    }
}

/// On lavapipe, which is there wherever the tests are.
#[test]
fn the_doctor_names_gpus() {
    let lab = Lab::new();
    let listed = lab.host(&["gpu", "list", "--json", "--software-gpu"]).expect_code(0).json();
    let Some(name) = listed["gpus"][0]["name"].as_str() else {
        sandbar_tests::say(format_args!("not tested: there is no lavapipe: {listed}"));
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
        assert_eq!(line.contains("not measured yet: `host gpu list` does"), !is_measured, "{line}");
        assert_eq!(cache.exists(), is_measured);
    }
}

/// With `-q` a command that goes well says nothing, and prints what is asked for.
#[test]
fn quiet_is_quiet() {
    let lab = lab();
    let taxi = component("udfs/taxi");
    let add = format!("transform=[{{udf=\"{}#add\", columns=[\"x\", \"y\"]}}]", taxi.display());
    let models = component("udfs/models").display().to_string();
    let tree = format!("{}#tree", component("tests/programs/tasks").display());
    let logs = format!("{}#all_say", component("tests/programs/files").display());
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
    // What fails is said.
    lab.write("nulls.csv", "k,x,y\na,1,2\na,2,\na,3,6\na,4,8\nb,1,1\nb,2,2\nb,3,3\nb,4,4\n");
    let failed = lab.host(&["submit", "train.toml", "-q", "--input", "nulls.csv"]).expect_code(1);
    assert_eq!(failed.stdout, "");
    failed.expect_talk(&["failed: k=a", "[values]"]);
}

#[test]
fn help_has_examples() {
    let lab = Lab::new();
    for command in ["completion", "version", "doctor", "build", "submit", "predict"] {
        let help = lab.host(&[command, "--help"]).expect_code(0).stdout;
        assert!(help.contains("Examples:") && help.contains(&format!("  host {command}")), "{help}");
    }
}
