//! Commands around jobs: create a function, inspect it, use its models, interrupt it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandbar_tests::{CommandOutput, Lab, Running, children, component, is_alive, models, workspace};

use crate::job::taxi;

/// Waits until `holds` returns true.
#[track_caller]
pub(crate) fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(30), "{condition}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Signals that end a command, and their exit codes.
const SIGNALS: [(Signal, i32); 3] = [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)];

#[track_caller]
fn send(host: &Running, signal: Signal) {
    kill_process(Pid::from_raw(host.process().cast_signed()).unwrap(), signal).unwrap();
}

#[test]
fn an_interrupt_leaves_nothing() {
    let lab = Lab::new();
    lab.write("rows.csv", "k,x,y\na,1,2\na,2,4\na,3,6\na,4,8\n");
    let udf = component("tests/hostile/polite");
    let job = format!(
        "[input]\npaths = [\"rows.csv\"]\n[train]\ngroup_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\n\
         models = [{{ udf = \"{}#fit_loops\" }}]\n[output]\npath = \"out.parquet\"\n",
        udf.display()
    );
    lab.write("job.toml", job);
    let before = lab.names();
    for (signal, code) in SIGNALS {
        let mut host = lab.start(&["submit", "job.toml", "--set", "limits.time_ms_max=60000"]);
        let process = host.process();
        until("workers run, and the output is started", || {
            assert!(!host.has_ended());
            children(process).len() >= 2 && lab.names().len() > before.len()
        });
        let workers = children(process);
        send(&host, signal);
        host.wait().expect_code(code).expect_stderr(&["interrupted"]);
        until("its workers end with it", || !workers.iter().any(|worker| is_alive(*worker)));
        assert_eq!(lab.names(), before);
    }
}

#[test]
fn an_interrupt_ends_cargo() {
    let lab = Lab::new();
    lab.write("slow/Cargo.toml", "");
    lab.write("rows.csv", "x,y\n1,2\n2,4\n3,6\n4,8\n");
    lab.write(
        "job.toml",
        "[input]\npaths = [\"rows.csv\"]\n[train]\nfeatures = [\"x\"]\ntarget = \"y\"\n\
         models = [{ udf = \"slow#mean\" }]\n[output]\npath = \"out.parquet\"\n",
    );
    // A cargo that starts a slow compiler.
    let cargo =
        lab.write("cargo", "#!/bin/sh\nsleep 600 &\necho $$ $! > processes.new\nmv processes.new processes\nwait\n");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (arguments, (signal, code)) in
        [["build", "slow"], ["inspect", "slow"], ["submit", "job.toml"]].iter().zip(SIGNALS)
    {
        let mut command = lab.command(arguments);
        command.env("CARGO", &cargo);
        let mut host = Running::new(command);
        let processes = lab.path("slow/processes");
        until("cargo runs", || {
            assert!(!host.has_ended());
            processes.exists()
        });
        send(&host, signal);
        host.wait().expect_code(code).expect_stderr(&["interrupted"]);
        let ids = std::fs::read_to_string(&processes).unwrap();
        let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
        until("cargo and its compiler end with it", || !ids.iter().any(|id| is_alive(*id)));
        std::fs::remove_file(&processes).unwrap();
    }
}

#[test]
fn nohup_outlives_its_terminal() {
    let lab = Lab::new();
    lab.write("slow/Cargo.toml", "");
    let cargo = lab.write(
        "cargo",
        "#!/bin/sh\n[ $1 = metadata ] && exit 1\necho > runs\nwhile [ -e runs ]; do sleep 0.01; done\nexit 1\n",
    );
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
    let host = lab.command(&["build", "slow"]);
    let mut command = Command::new("nohup");
    command.arg(host.get_program()).args(host.get_args()).current_dir(lab.path(""));
    command.envs(host.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("CARGO", &cargo);
    let mut host = Running::new(command);
    until("cargo runs", || lab.path("slow/runs").exists());
    send(&host, Signal::HUP);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!host.has_ended());
    std::fs::remove_file(lab.path("slow/runs")).unwrap();
    host.wait().expect_code(1).expect_stderr(&["could not build"]);
}

#[test]
fn a_worker_of_an_ended_node_prints_nothing() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let taxi = std::fs::File::open(component("udfs/taxi")).unwrap();
    let mut compiler = Command::new(sandbar_tests::host().with_file_name("host-worker"));
    let ended = compiler.arg("compiler").stdin(taxi).stdout(writer).output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn lines_of_a_killed_worker_are_shown_once() {
    let lab = Lab::new();
    let rows = |key, y| format!("{key},1,{y}\n{key},2,{y}\n{key},3,{y}\n{key},4,{y}\n");
    lab.write("rows.csv", ["k,x,y\n".to_owned(), rows('a', 5), rows('b', 7), rows('c', 9)].concat());
    let udf = component("tests/hostile/polite");
    let job = |transform: &str, trainer: &str| {
        format!(
            "[input]\npaths = [\"rows.csv\"]\n{transform}[train]\ngroup_by = [\"k\"]\nfeatures = [\"x\"]\n\
             target = \"y\"\nmodels = [{{ udf = \"{}#{trainer}\" }}]\n[output]\npath = \"out.parquet\"\n\
             [limits]\ntime_ms_max = 500\n",
            udf.display()
        )
    };
    lab.write("groups.toml", job("", "fit_dislikes_seven"));
    // One group is lost, and the others of the call are retried.
    let ended = lab.host(&["submit", "groups.toml"]).expect_code(1);
    for first in [5, 7, 9] {
        let line = format!("#fit_dislikes_seven: info: it starts with {first}\n");
        assert_eq!(ended.stderr.matches(&line).count(), 1, "{line} in {}", ended.stderr);
    }
    let transform = format!("[[transform]]\nudf = \"{}#batch_says_it_loops\"\n", udf.display());
    lab.write("batch.toml", job(&transform, "fit_loops"));
    let ended = lab.host(&["submit", "batch.toml"]).expect_code(1);
    ended.expect_stderr(&["batch_says_it_loops: info: ", "rows, on and on", "time-out"]);
}

/// Runs the host without settings of cargo's target folder, as for a user.
fn host_of_user(lab: &Lab, arguments: &[&str]) -> CommandOutput {
    let mut command = lab.command(arguments);
    command.env_remove("CARGO_TARGET_DIR");
    Running::new(command).wait()
}

/// Runs the native tests of a crate.
fn test_natively(lab: &Lab, name: &str) {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Shares the target folder of other crates' native tests, which saves time.
    cargo.arg("test").current_dir(lab.path(name)).env("CARGO_TARGET_DIR", lab.path("native"));
    let output = cargo.output().unwrap();
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !talk.contains("warning"), "{name}: {talk}");
    let counts = String::from_utf8_lossy(&output.stdout);
    assert!(counts.contains("test result: ok. 1 passed"), "{name}: {counts}");
}

/// Returns the block of a language in a crate's README.md.
fn of_readme(lab: &Lab, name: &str, language: &str) -> String {
    let text = std::fs::read_to_string(lab.path(name).join("README.md")).unwrap();
    let (_, block) = text.split_once(&format!("```{language}\n")).unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// Crates share a folder for their dependencies, in which cargo takes crates of one name for the same.
#[test]
fn crates_of_one_name_are_not_taken_for_each_other() {
    let lab = Lab::new();
    let places = ["first/fares", "second/fares"];
    for (place, function) in places.iter().zip(["one", "two"]) {
        host_of_user(&lab, &["new", place]).expect_code(0);
        lab.write(
            &format!("{place}/src/lib.rs"),
            format!("use sandbar_guest::prelude::*;\n\n#[scalar]\npub fn {function}(x: i64) -> i64 {{\n    x\n}}\n"),
        );
    }
    // The crate that is built last was written first; the first one stays intact.
    for place in ["second/fares", "first/fares"] {
        host_of_user(&lab, &["build", place]).expect_code(0);
    }
    for (place, function) in places.iter().zip(["one", "two"]) {
        let json = host_of_user(&lab, &["inspect", place, "--json"]).expect_code(0).json();
        let names: Vec<_> = json["functions"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
        assert_eq!(names, [function], "{json}");
    }
}

#[test]
fn crates_of_host_new_build_and_pass_their_tests() {
    let lab = Lab::new();
    let host = |arguments: &[&str]| host_of_user(&lab, arguments);
    host(&["new", "--program", "--trainer", "both"]).expect_code(2).expect_stderr(&["--trainer"]);
    for (arguments, name, functions) in [
        (&["new", "fares"][..], "fares", &["add", "head", "mean"][..]),
        (&["new", "--program", "primes"], "primes", &["count", "main"]),
        (&["new", "lines", "--trainer"], "lines", &["line"]),
    ] {
        host(arguments).expect_code(0).expect_stderr(&[name]);
        let built =
            host(&["build", name]).expect_code(0).expect_stderr(&["building the functions of", name, "Finished"]);
        let component = built.stdout.trim();
        // Components are in the crates' own folders; dependencies are compiled for the first crate only.
        let own = lab.path(name).canonicalize().unwrap().join("target");
        assert!(Path::new(component).starts_with(own), "{component}");
        let compiles = |name: &str| built.stderr.contains(&format!("Compiling {name} v"));
        assert!(compiles(name) && !built.stderr.contains("warning"), "{}", built.stderr);
        assert!(name == "fares" || !compiles("arrow-array"), "{}", built.stderr);
        let json = host(&["inspect", component, "--json"]).expect_code(0).json();
        let names: Vec<_> = json["functions"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
        assert_eq!(names, functions, "{json}");
        test_natively(&lab, name);
    }
    assert_eq!(host(&["submit", "primes", "--arg", "below=200000"]).expect_code(0).stdout.trim(), "17984");
    assert_eq!(host(&["submit", "primes#count", "--arg", "from=0", "--arg", "below=100"]).stdout.trim(), "25");
    let inspected = host(&["inspect", "lines"]).expect_code(0).stdout;
    assert!(inspected.contains("trainer line()") && inspected.contains("params.ridge: f64 = 0.0"), "{inspected}");
    lab.write("rows.csv", "key,x,y\na,1,3\na,2,5\na,3,7\na,4,9\n");
    lab.write("job.toml", of_readme(&lab, "lines", "toml").replace("ridge = 0.1", "ridge = 0"));
    let json = host(&["submit", "job.toml", "--json"]).expect_code(0).json();
    assert!(json["build_seconds"].as_f64().unwrap() >= 0.0 && json["seconds"].as_f64().unwrap() > 0.0, "{json}");
    host(&["predict", "models.parquet", "--input", "rows.csv", "--output", "predictions.parquet"]).expect_code(0);
    let predicted = sandbar_tests::column_of_numbers(&lab.path("predictions.parquet"), "prediction");
    assert_eq!(predicted, [3.0, 5.0, 7.0, 9.0].map(Some));
    lab.write("rows.csv", "zone,miles,fare\na,1,5\na,2,8\na,3,11\na,4,14\n");
    lab.write("job.toml", of_readme(&lab, "fares", "toml").replace("[train]", "[train]\ntest = 0"));
    host(&["submit", "job.toml"]).expect_code(0);
    assert_eq!(models(&lab.path("models.parquet"))[0].params["mean"], 9.5);
}

#[test]
fn a_new_crate_is_built_inspected_and_used() {
    let lab = Lab::new();
    let host = |arguments: &[&str]| host_of_user(&lab, arguments);
    host(&["new", "fares"]).expect_code(0).expect_stderr(&["host build fares"]);
    host(&["new", "fares"]).expect_code(2).expect_stderr(&["already exists"]);
    host(&["new", "1st"]).expect_code(2).expect_stderr(&["1st"]);
    // A log line with control characters.
    let source = std::fs::read_to_string(lab.path("fares/src/lib.rs")).unwrap();
    let logging = source.replace(
        "let target = group.target();",
        "let target = group.target(); sandbar_guest::log::info!(\"rows: {}\\x1b[2J\", target.len());",
    );
    assert_ne!(source, logging);
    lab.write("fares/src/lib.rs", logging);
    let component = host(&["build", "fares"]).expect_code(0).stdout;
    assert!(component.trim().ends_with("fares.wasm"), "{component}");
    let json = host(&["inspect", component.trim(), "--json"]).expect_code(0).json();
    let names: Vec<&str> = json["functions"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(
        {
            let mut names = names;
            names.sort_unstable();
            names
        },
        ["add", "head", "mean"],
        "{json}"
    );
    lab.write("rows.csv", "k,x,y\na,1,2\na,2,4\na,3,6\na,4,8\n");
    lab.write(
        "job.toml",
        "[input]\npaths = [\"rows.csv\"]\n[train]\ngroup_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\ntest = 0\n\
         models = [{ udf = \"fares#mean\" }]\n[output]\npath = \"out.parquet\"\n",
    );
    host(&["submit", "job.toml"]).expect_code(0).expect_stderr(&["fares#mean: info: rows: 4\\u{1b}[2J"]);
    assert_eq!(models(&lab.path("out.parquet"))[0].params["mean"], 5.0);
    // A change of its source makes a crate stale.
    lab.write("fares/src/lib.rs", source.replace("/ target.len() as f64", "/ target.len() as f64 + 1.0"));
    let ended = host(&["submit", "job.toml"]).expect_code(0).expect_stderr(&["building the functions of"]);
    assert!(ended.stdout.contains("built functions in ") && ended.stdout.contains(" s, ran in "), "{}", ended.stdout);
    assert_eq!(models(&lab.path("out.parquet"))[0].params["mean"], 6.0);
    lab.write("fares/src/lib.rs", "pub fn broken( {");
    host(&["submit", "job.toml"]).expect_code(1).expect_stderr(&["fares", "could not build"]);
}

#[test]
fn a_crate_is_rebuilt_when_its_sources_change() {
    let lab = Lab::new();
    let (target, cache) = (lab.path("target"), lab.path("cache"));
    let build = || {
        let mut command = lab.command(&["build", "crates/fares"]);
        command.env("CARGO_TARGET_DIR", &target).env("XDG_CACHE_HOME", &cache);
        Running::new(command).wait().expect_code(0).stderr.contains("Finished")
    };
    let rates = "[package]\nname = \"rates\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    lab.write("rates/Cargo.toml", rates);
    lab.write("rates/src/lib.rs", "");
    let library = "[lib]\ncrate-type = [\"cdylib\"]\n[dependencies]\nrates = { path = \"../../rates\" }\n[workspace]\n";
    lab.write("crates/fares/Cargo.toml", rates.replace("rates", "fares") + library);
    lab.write("crates/fares/src/lib.rs", "pub use rates;");
    // The first build writes Cargo.lock, which counts as a change for the second.
    assert!(build() && build() && !build());
    for (file, text) in [
        ("crates/fares/Cargo.toml", rates.replace("rates", "fares") + library),
        ("rates/Cargo.toml", rates.to_owned()),
        ("rates/src/lib.rs", "// changed".to_owned()),
        ("crates/Cargo.toml", "[workspace]\n".to_owned()),
        ("crates/fares/.cargo/config.toml", String::new()),
        (".cargo/config.toml", String::new()),
    ] {
        lab.write(file, text);
        assert!(build() && !build(), "{file}");
    }
    std::fs::remove_file(lab.path(".cargo/config.toml")).unwrap();
    assert!(build() && !build(), "a missing component");
    for stamp in std::fs::read_dir(lab.path("cache/sandbar/builds")).unwrap().flatten() {
        let text = std::fs::read_to_string(stamp.path()).unwrap();
        let compiler = "\"compiler\":\"";
        assert!(text.contains(compiler), "{text}");
        std::fs::write(stamp.path(), text.replace(compiler, &format!("{compiler}yesterday's "))).unwrap();
    }
    assert!(build() && !build(), "another compiler");
}

#[test]
fn components_are_inspected() {
    let lab = Lab::new();
    let taxi = component("udfs/taxi");
    let json = lab.host(&["inspect", taxi.to_str().unwrap(), "--json"]).expect_code(0).json();
    let text = json.to_string();
    for expected_text in ["clean", "duration", "add", "scalar", "batch", "pickup_at"] {
        assert!(text.contains(expected_text), "{expected_text} is not in {text}");
    }
    // Printing, also by a panic, needs none of these imports.
    assert!(!text.contains("wasi:cli") && !text.contains("wasi:io"), "{text}");
    let table = lab.host(&["inspect", taxi.to_str().unwrap()]).expect_code(0);
    assert!(table.stdout.contains("clean") && table.stdout.contains("sandbar:udf"), "{}", table.stdout);
    lab.write("rows.csv", "a,b\n1,2\n");
    lab.host(&["inspect", "rows.csv"]).expect_code(1).expect_stderr(&["rows.csv", "not-a-component"]);
    lab.host(&["inspect", "gone.wasm"]).expect_code(1).expect_stderr(&["gone.wasm"]);
}

#[test]
fn stored_models_predict_as_they_were_scored() {
    let lab = Lab::new();
    let (_, trained) = taxi(&lab, &["--set", "train.test=0"]);
    let file = sandbar_tests::taxi_files()[0].display().to_string();
    let arguments =
        ["predict", "models.parquet", "--input", &file, "--output", "p.parquet", "--model", "linear", "--json"];
    let json = lab.host(&arguments).expect_code(0).json();
    let of_file = || trained.iter().filter(|m| m.model == "linear" && m.key[0] == file);
    let rows: u32 = of_file().map(|m| m.rows_train).sum();
    let predicted = json["rows"].as_u64().unwrap() - json["without_model"].as_u64().unwrap();
    assert_eq!((predicted, json["failed"].as_u64()), (u64::from(rows), Some(0)), "{json}");
    // Predictions follow from coefficient and intercept, row by row.
    let predictions = sandbar_tests::column_of_numbers(&lab.path("p.parquet"), "prediction");
    let zones = sandbar_tests::column_of_numbers(&lab.path("p.parquet"), "pickup_location_id");
    let dropoffs = sandbar_tests::column_of_numbers(&lab.path("p.parquet"), "dropoff_location_id");
    let mut checked = 0;
    for ((prediction, zone), dropoff) in predictions.iter().zip(&zones).zip(&dropoffs) {
        let Some(prediction) = prediction else { continue };
        let zone = zone.map(|z| format!("{z}")).unwrap_or_default();
        let model = of_file().find(|m| m.key[1] == zone).unwrap();
        let (slope, intercept) =
            (model.params["coefficients"][0].as_f64().unwrap(), model.params["intercept"].as_f64().unwrap());
        let expected = slope * dropoff.unwrap_or(-1.0) + intercept;
        assert!((prediction - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{prediction} instead of {expected}");
        checked += 1;
    }
    assert_eq!(checked, rows);
    for (arguments, code, expected_text) in [
        (&["predict", "gone.parquet", "--input", &file, "--output", "q.parquet"][..], 1, "gone.parquet"),
        (&["predict", &file, "--input", &file, "--output", "q.parquet"], 2, "no output of `host submit`"),
        (&["predict", "models.parquet", "--input", &file, "--output", "q.parquet", "--model", "plane"], 2, "plane"),
        (&["predict", "models.parquet", "--input", "gone.csv", "--output", "q.parquet"], 1, "gone.csv"),
    ] {
        lab.host(arguments).expect_code(code).expect_stderr(&[expected_text]);
        assert!(!lab.path("q.parquet").exists());
    }
}

/// Trains a model for each key of `rows`, and predicts for `others`. Returns which of their rows have a model.
#[track_caller]
fn found(rows: &str, others: &str) -> Vec<bool> {
    let lab = Lab::new();
    let trainers = component("udfs/models");
    lab.write(
        "job.toml",
        format!(
            "[input]\npaths = [\"rows.csv\"]\n[train]\ngroup_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\nmin_rows = 1\n\
             models = [{{ udf = \"{}#linear\" }}]\n[output]\npath = \"m.parquet\"\n",
            trainers.display()
        ),
    );
    let table = |keys: &str| format!("k,x,y\n{}", keys.split(' ').map(|k| format!("{k},1,2\n")).collect::<String>());
    lab.write("rows.csv", table(rows));
    lab.write("others.csv", table(others));
    lab.host(&["submit", "job.toml"]).expect_code(0);
    lab.host(&["predict", "m.parquet", "--input", "others.csv", "--output", "p.parquet"]).expect_code(0);
    sandbar_tests::column_of_numbers(&lab.path("p.parquet"), "prediction").iter().map(Option::is_some).collect()
}

#[test]
fn rows_find_the_models_of_their_own_key() {
    for (rows, others, expected) in [
        ("1 2 ", "1 2 ", &[true, true, true][..]),
        ("1 2 ", "1 abc zone-1 99999999999999999999", &[true, false, false, false]),
        ("1 2 ", "1.0 1.7 2.9 NaN", &[true, false, false, false]),
        ("0.0 1.5", "-0.0 1.5 1.25", &[true, true, false]),
        ("2024-05-01T10:00:00 2024-05-01T11:00:00", "2024-05-01T11:00:00 2024-05-01T12:00:00", &[true, false]),
    ] {
        assert_eq!(found(rows, others), expected, "{rows}; {others}");
    }
}

#[test]
fn models_are_used_with_the_components_they_were_trained_with() {
    let lab = Lab::new();
    let copy = |from: &str, to: &str| std::fs::copy(component(from), lab.path(to)).unwrap();
    lab.write("rows.csv", "a,b,y\n1,2,3\n2,3,5\n3,5,8\n4,4,8\n");
    lab.write(
        "job.toml",
        "[input]\npaths = [\"rows.csv\"]\n[[transform]]\nudf = \"add.wasm#add\"\ncolumns = [\"a\", \"b\"]\noutput = \"sum\"\n\
         [train]\nfeatures = [\"sum\"]\ntarget = \"y\"\nmodels = [{ udf = \"fit.wasm#linear\" }]\n\
         [output]\npath = \"m.parquet\"\n",
    );
    copy("udfs/taxi", "add.wasm");
    copy("udfs/models", "fit.wasm");
    lab.host(&["submit", "job.toml"]).expect_code(0);
    let predict = |cache: Option<&str>, components: &[&str]| {
        let named = components.iter().flat_map(|component| ["--component", component]);
        let line = ["predict", "m.parquet", "--input", "rows.csv", "--output", "p.parquet"].into_iter().chain(named);
        let mut command = lab.command(&line.collect::<Vec<_>>());
        if let Some(cache) = cache {
            command.env("XDG_CACHE_HOME", lab.path(cache));
        }
        Running::new(command).wait()
    };
    // The host does not look at the components' former paths.
    predict(Some("empty"), &[]).expect_code(2).expect_stderr(&[
        "is not in",
        "empty",
        "--component",
        "(it was add.wasm where",
    ]);
    predict(Some("empty"), &["add.wasm"])
        .expect_code(2)
        .expect_stderr(&["`linear` is not in", "(it was fit.wasm where"]);
    predict(Some("empty"), &["fit.wasm", "add.wasm"]).expect_code(0);
    for (file, other) in [("add.wasm", "udfs/models"), ("fit.wasm", "udfs/taxi")] {
        let own = std::fs::read(lab.path(file)).unwrap();
        let by_hand = ["fit.wasm", "add.wasm"];
        copy(other, file);
        predict(None, &[]).expect_code(0);
        predict(Some("another"), &by_hand).expect_code(2).expect_stderr(&[
            "is not in",
            "another",
            &format!("(it was {file}"),
        ]);
        std::fs::remove_file(lab.path(file)).unwrap();
        predict(None, &[]).expect_code(0);
        predict(Some("another"), &by_hand).expect_code(1).expect_stderr(&["--component: there is no component", file]);
        lab.write(file, own);
    }
}

#[test]
fn models_of_a_file_are_named() {
    let lab = Lab::new();
    let rows = "x,y\n1,2\n2,4\n3,6\n4,8\n";
    ["a/m.csv", "b/m.csv", "b/other.csv", "new.csv"].iter().for_each(|file| drop(lab.write(file, rows)));
    let trainers = component("udfs/models");
    lab.write(
        "job.toml",
        format!(
            "[input]\npaths = [\"a\", \"b\"]\n[train]\nper_file = true\nfeatures = [\"x\"]\ntarget = \"y\"\n\
             models = [{{ udf = \"{}#linear\" }}]\n[output]\npath = \"m.parquet\"\n",
            trainers.display()
        ),
    );
    lab.host(&["submit", "job.toml"]).expect_code(0);
    let predict = ["predict", "m.parquet", "--output", "p.parquet", "--json", "--input"];
    let all = "a/m.csv, b/m.csv, b/other.csv";
    for (arguments, code, without, expected_text) in [
        (&["new.csv"][..], 0, 4, &["name the training file with --file", all][..]),
        (&["new.csv", "--file", "other.csv"], 0, 0, &[]),
        (&["new.csv", "--file", "b/m.csv"], 0, 0, &[]),
        (&["a/m.csv"], 0, 0, &[]),
        (&["new.csv", "--file", "m.csv"], 2, 0, &["`m.csv` may be any of a/m.csv, b/m.csv; name more"]),
        (&["new.csv", "--file", "r.csv"], 2, 0, &["no models of file `r.csv`", all]),
    ] {
        let ended = lab.host(&[&predict, arguments].concat()).expect_code(code).expect_stderr(expected_text);
        assert_eq!(ended.stderr.contains("--file"), without > 0, "{}", ended.stderr);
        if code == 0 {
            assert_eq!(ended.json()["without_model"], without);
        }
    }
}

#[test]
fn the_same_models_whatever_the_number_of_workers() {
    let lab = Lab::new();
    let (_, one) = taxi(&lab, &["--workers", "1"]);
    for workers in ["2", "4"] {
        let (_, same) = taxi(&lab, &["--workers", workers]);
        assert!(one == same, "{workers} workers give other models than one");
    }
    assert!(models(&lab.path("models.parquet")) == one);
}

#[test]
fn help_has_examples() {
    let lab = Lab::new();
    for command in ["submit", "predict", "new", "build", "inspect"] {
        let help = lab.host(&[command, "--help"]).expect_code(0).stdout;
        assert!(help.contains("Examples:") && help.contains(&format!("host {command}")), "{help}");
    }
    let help = lab.host(&["--help"]).expect_code(0).stdout;
    assert!(help.contains("Examples:") && help.contains("next to data"), "{help}");
    for command in ["submit", "predict"] {
        let help = lab.host(&[command, "--help"]).expect_code(0).stdout;
        let (_, codes) = help.split_once("Exit codes:").unwrap();
        assert!(["0", "1", "2", "129", "130", "143"].iter().all(|code| codes.contains(code)), "{help}");
    }
    assert!(workspace().join("examples/taxi.toml").is_file());
}
