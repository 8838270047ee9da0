//! Invalid input: each error names the fault and the remedy, and no output is half written.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sandbar_tests::{CommandOutput, Lab, Running, component, workspace};

const ROWS: &str = "k,x,y\na,1,2\na,2,4\na,3,6\na,4,8\nb,1,1\nb,2,2\nb,3,3\nb,4,4\n";

fn job(input: &str, train: &str) -> String {
    format!(
        "[input]\npaths = [{input:?}]\n[train]\n{train}\nmodels = [{{ udf = \"{}#linear\" }}]\n[output]\npath = \"out.parquet\"\n",
        component("udfs/models").display()
    )
}

const TRAIN: &str = "group_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"";

/// Runs a job that has to fail with `code` and these words, without leaving new files.
#[track_caller]
fn check(lab: &Lab, arguments: &[&str], code: i32, expected_texts: &[&str]) {
    let before = lab.names();
    let ended = lab.host(&[&["submit"], arguments].concat()).expect_code(code).expect_stderr(expected_texts);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert_eq!(lab.names(), before, "{}", ended.line);
}

#[test]
fn job_files() {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    let good = job("rows.csv", TRAIN);
    lab.write("good.toml", &good);
    lab.write("broken.toml", "[input\npaths = 1");
    lab.write("unknown.toml", good.replace("[input]", "[input]\ncolour = \"red\""));
    lab.write("typo.toml", good.replacen("paths", "path", 1));
    lab.write("targetless.toml", good.replace("target", "# target"));
    for (arguments, expected_texts) in [
        (&["missing.toml"][..], &["there is no job file `missing.toml` in /", "paths are relative to the folder"][..]),
        (&["god.toml"], &["there is no job file `god.toml`", "(did you mean `good.toml`?)"]),
        (&["broken.toml"], &["error: broken.toml, line 1, column 7: "]),
        (&["unknown.toml"], &["unknown.toml, line 2, column 1: unknown field `colour`, expected "]),
        (&["typo.toml"], &["typo.toml, line 2, column 1: unknown field `path` (did you mean `paths`?)"]),
        (&["targetless.toml"], &["targetless.toml, line 3", "missing field `target`"]),
        (&["good.toml", "--set", "train.test"], &["train.test"]),
        (&["good.toml", "--set", "train.test=2"], &["error: --set train.test=…: `train.test` is 2"]),
        (
            &["good.toml", "--set", "train.tset=0.2"],
            &["--set train.tset=…: unknown field `tset` (did you mean `test`?)"],
        ),
        (&["good.toml", "--set", "train.test=maybe"], &["train.test"]),
        (&["good.toml", "--set", "train.metric=\"speed\""], &["speed"]),
        (&["good.toml", "--set", "train.models=[]"], &["models"]),
        (&["good.toml", "--set", "train.group_by=[\"rank\"]"], &["`rank`", "a column of the output"]),
        (&["good.toml", "--output", ""], &["--output: the output `` is no file"]),
        (&["good.toml", "--output", "out/noext"], &["`out/noext`", ".parquet"]),
        (
            &["good.toml", "--output", "out/m.csv"],
            &["--output: the output `out/m.csv`", "models are written as Parquet"],
        ),
        (&["good.toml", "--output", "s3://bucket/x.parquet"], &["is a URL"]),
        (&["good.toml", "--workers", "0"], &["1 to"]),
        (&["good.toml", "--wrong"], &["--wrong", "--help"]),
        (&[], &["--help"]),
    ] {
        check(&lab, arguments, 2, expected_texts);
    }
}

#[test]
fn input_that_is_wrong() {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    lab.write("text.csv", "k,x,y\na,1,2\na,2,4\nb,3,six\n");
    lab.write("ragged.csv", "k,x,y\na,1,2\na,2\n");
    lab.write("noise.parquet", "this is no Parquet file, however it is named");
    lab.write("empty.parquet", "");
    let whole = std::fs::read(&sandbar_tests::taxi_files()[0]).unwrap();
    lab.write("cut.parquet", &whole[..whole.len() / 2]);
    lab.write("folder/notes.txt", "nothing to read here");
    lab.write("job.toml", job("rows.csv", TRAIN));
    for (input, expected_texts) in [
        ("missing.csv", &["missing.csv: `--input` names it: there is no such file or folder in /"][..]),
        ("row.csv", &["(did you mean `rows.csv`?)"]),
        ("none/*.parquet", &["none/*.parquet"]),
        ("folder", &["folder"]),
        ("ragged.csv", &["ragged.csv", "line 3"]),
        ("noise.parquet", &["noise.parquet"]),
        ("empty.parquet", &["empty.parquet"]),
        ("cut.parquet", &["cut.parquet"]),
        ("ftp://example.org/a.csv", &["ftp"]),
    ] {
        check(&lab, &["job.toml", "--input", input], 1, expected_texts);
    }
    for (set, expected_texts) in [
        ("train.features=[\"z\"]", &["`z`", "`x`"][..]),
        ("train.target=\"Y\"", &["`Y`", "did you mean `y`"]),
        ("train.features=[\"k\"]", &["k"]),
        ("train.group_by=[\"q\"]", &["`q`"]),
        ("input.filter=\"x >\"", &["x >"]),
        ("input.filter=\"w = 1\"", &["w"]),
    ] {
        check(&lab, &["job.toml", "--set", set], 1, expected_texts);
    }
}

#[test]
fn outputs_that_can_not_be_written() {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    // The job checks the output before it reads the last line, which is not a number.
    lab.write("late.csv", format!("{ROWS}{}", "c,1,2\n".repeat(20_000) + "c,six,2\n"));
    lab.write("job.toml", job("late.csv", TRAIN).replace("[train]", "types = { x = \"int64\" }\n[train]"));
    let created = std::process::Command::new("mkfifo").arg(lab.path("pipe.parquet")).status();
    assert!(created.is_ok_and(|status| status.success()));
    std::fs::create_dir(lab.path("folder.parquet")).unwrap();
    for (output, expected_texts) in [
        ("rows.csv/out.parquet", &["rows.csv/out.parquet", "Not a directory"][..]),
        ("/proc/none/out.parquet", &["/proc/none/out.parquet", "can't write"]),
        ("pipe.parquet", &["pipe.parquet", "not a regular file"]),
        ("folder.parquet", &["folder.parquet", "it is a folder"]),
    ] {
        check(&lab, &["job.toml", "--output", output], 1, expected_texts);
        lab.write("good.toml", job("rows.csv", TRAIN));
    }
}

#[test]
fn outputs_must_not_replace_inputs() {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    lab.write("job.toml", job("rows.csv", TRAIN));
    lab.host(&["submit", "job.toml", "--output", "folder/models.parquet"]).expect_code(0);
    lab.host(&["predict", "folder/models.parquet", "--input", "rows.csv", "--output", "new.parquet"]).expect_code(0);
    std::os::unix::fs::symlink("new.parquet", lab.path("link.parquet")).unwrap();
    let contents = || ["folder/models.parquet", "new.parquet"].map(|name| std::fs::read(lab.path(name)).unwrap());
    let before = contents();
    let (rows, link, models) = ("new.parquet", "link.parquet", "folder/models.parquet");
    for (input, output) in [(rows, rows), (rows, "./folder/../new.parquet"), (rows, link), (link, rows)] {
        check(&lab, &["job.toml", "--input", input, "--output", output], 2, &[output, "which is read"]);
        let line = ["predict", models, "--input", input, "--output", output];
        lab.host(&line).expect_code(2).expect_stderr(&[output, "which is read"]);
    }
    for output in [models, "./folder/models.parquet"] {
        let line = ["predict", models, "--input", "rows.csv", "--output", output];
        lab.host(&line).expect_code(2).expect_stderr(&[output, "which is read"]);
    }
    for output in ["p.exe", "p", "s3://bucket/p.parquet"] {
        let line = ["predict", models, "--input", "rows.csv", "--output", output];
        lab.host(&line).expect_code(2).expect_stderr(&[output, "the output"]);
    }
    assert!(contents() == before);
}

#[test]
fn groups_that_can_not_be_used() {
    let lab = Lab::new();
    lab.write(
        "rows.csv",
        "k,x,y\na,1,2\na,2,4\na,3,6\nb,1,\nb,2,\nb,3,\nc,1,inf\nc,2,1\nc,3,1\nd,NaN,1\nd,2,2\nd,3,3\ne,1,1\n",
    );
    lab.write("job.toml", job("rows.csv", &format!("{TRAIN}\nmin_rows = 2")));
    let ended = lab.host(&["submit", "job.toml", "--json"]).expect_code(1);
    let json = ended.json();
    for (field, value) in [("groups", 4), ("models", 1), ("failed", 3), ("skipped", 1), ("rows", 13)] {
        assert_eq!(json[field], value, "{field} of {json}");
    }
    let failures: Vec<String> = json["failures"].as_array().unwrap().iter().map(|f| f["group"].to_string()).collect();
    assert!(["b", "c", "d"].iter().all(|k| failures.iter().any(|f| f.contains(&format!("k={k}")))), "{failures:?}");
    assert_eq!(sandbar_tests::models(&lab.path("out.parquet")).len(), 1);
}

#[test]
fn parameters_that_a_trainer_refuses() {
    let lab = Lab::new();
    // The last line is not a number: the error in the parameters is reported first.
    lab.write("rows.csv", format!("{ROWS}{}", "c,1,2\n".repeat(200_000) + "c,six,2\n"));
    lab.write("job.toml", job("rows.csv", TRAIN).replace("[train]", "types = { x = \"int64\" }\n[train]"));
    let typo = "train.models.0.params.fit_intercep=true";
    let expected_texts =
        ["#linear: `--set train.models.0.params.fit_intercep=…`: ", "(did you mean `fit_intercept`?)", "[refused]"];
    check(&lab, &["job.toml", "--set", typo], 1, &expected_texts);
    let wrong = "train.models.0.params.fit_intercept=\"no\"";
    check(
        &lab,
        &["job.toml", "--set", wrong],
        1,
        &["params.fit_intercept=…`: ", "invalid type: string \"no\"", "[refused]"],
    );
    let models = component("udfs/models");
    let second = |params: &str| {
        format!("train.models=[{{udf=\"{0}#linear\"}}, {{udf=\"{0}#tree\", params={{ {params} }}}}]", models.display())
    };
    check(&lab, &["job.toml", "--set", &second("max_dept = 3")], 1, &["#tree", "max_dept", "refused"]);
    lab.write("rows.csv", ROWS);
    lab.host(&["submit", "job.toml", "--set", &second("max_depth = 3")]).expect_code(0);
}

#[test]
fn an_output_is_not_replaced_by_nothing() {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    lab.write("job.toml", job("rows.csv", TRAIN));
    lab.write("nulls.csv", "k,x,y\na,1,2\na,2,\na,3,6\na,4,8\n");
    let none = [
        (&["--set", "train.min_rows=100"][..], 0, "2 groups skipped"),
        (&["--set", "input.filter=\"x > 9\""], 0, "0 groups, 0 failures"),
        (&["--input", "nulls.csv"], 1, "1 failures (the first: "),
    ];
    // Without an existing output, an empty one is written.
    for (arguments, code, _) in none {
        lab.host(&[&["submit", "job.toml", "--output", "new.parquet"], arguments].concat()).expect_code(code);
        assert!(sandbar_tests::models(&lab.path("new.parquet")).is_empty());
        std::fs::remove_file(lab.path("new.parquet")).unwrap();
    }
    lab.host(&["submit", "job.toml"]).expect_code(0);
    for (arguments, _, expected_texts) in none {
        let left = ["no model was trained", expected_texts, "out.parquet is left as it was"];
        check(&lab, &[&["job.toml"], arguments].concat(), 1, &left);
        assert_eq!(sandbar_tests::models(&lab.path("out.parquet")).len(), 2);
    }
}

#[test]
fn a_table_counts_the_omitted_groups() {
    let lab = Lab::new();
    let rows = |groups: u32| {
        (0..groups * 4).map(|row| format!("\"two\nlines {}\",{row},1\n", row % groups)).collect::<String>()
    };
    lab.write("rows.csv", format!("k,x,y\n{}", rows(12)));
    lab.write("few.csv", format!("k,x,y\n{}", rows(10)));
    lab.write("job.toml", job("rows.csv", TRAIN));
    let many = lab.host(&["submit", "job.toml"]).expect_code(0).stdout;
    assert!(many.contains("\n(10 of 12 groups shown)\njob: 12 models of 12 groups from 48 rows; ran in "), "{many}");
    // A key of two lines takes one line of the table.
    assert_eq!(many.lines().filter(|line| line.trim_start().starts_with("two lines ")).count(), 10, "{many}");
    let few = lab.host(&["submit", "job.toml", "--input", "few.csv"]).expect_code(0).stdout;
    assert!(few.contains("\njob: 10 models of 10 groups") && !few.contains("shown"), "{few}");
}

#[test]
fn groups_of_one_row() {
    let lab = Lab::new();
    lab.write("rows.csv", "k,x,y\na,1,2\nb,2,4\nc,3,6\n");
    lab.write("job.toml", job("rows.csv", &format!("{TRAIN}\nmin_rows = 1")));
    let json = lab.host(&["submit", "job.toml", "--json"]).expect_code(0).json();
    assert_eq!((json["groups"].as_u64(), json["models"].as_u64()), (Some(3), Some(3)), "{json}");
    for model in sandbar_tests::models(&lab.path("out.parquet")) {
        assert_eq!((model.rows_train, model.rows_test, model.mae), (1, 0, None), "{model:?}");
    }
}

#[test]
fn components_that_are_not_there() {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    lab.write("job.toml", job("rows.csv", TRAIN));
    let models = component("udfs/models");
    let set = |udf: &str| format!("train.models.0.udf={udf:?}");
    for (udf, code, expected_texts) in [
        (
            "gone.wasm#linear".to_owned(),
            1,
            "`--set train.models.0.udf=…`: there is no component or crate `gone.wasm` in /",
        ),
        (
            format!("{}#linaer", models.display()),
            1,
            "it has no function `linaer` (did you mean `linear`?); its functions are",
        ),
        (models.display().to_string(), 2, "#"),
    ] {
        check(&lab, &["job.toml", "--set", &set(&udf)], code, &[expected_texts]);
    }
    lab.write("bad.toml", job("rows.csv", TRAIN).replace("models.wasm", "modles.wasm"));
    check(
        &lab,
        &["bad.toml"],
        1,
        &["`train.models[0].udf`: there is no component", "(did you mean `", "models.wasm`?)"],
    );
}

#[test]
fn shipped_functions_are_found_by_their_names() {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    lab.write("job.toml", job("rows.csv", TRAIN));
    let udf = |udf: &str| format!("train.models.0.udf={udf:?}");
    lab.host(&["submit", "job.toml", "--set", &udf("models#linear")]).expect_code(0);
    let by_name = sandbar_tests::models(&lab.path("out.parquet"));
    lab.host(&["submit", "job.toml"]).expect_code(0);
    assert!(sandbar_tests::models(&lab.path("out.parquet")) == by_name);
    let inspected = lab.host(&["inspect", "models"]).expect_code(0);
    assert!(inspected.stdout.contains("trainer linear"), "{}", inspected.stdout);
    let shipped = ["none of that name is shipped: in ", "udfs are models, taxi"];
    let line = |name: &str| ["job.toml".to_owned(), "--set".to_owned(), udf(name)];
    for (name, expected_texts) in [
        ("modls#linear", &[&shipped[..], &["(did you mean `models`?)"]].concat()[..]),
        ("planes#linear", &shipped),
        // A path is not a name.
        ("./models#linear", &["there is no component or crate `./models` in /"]),
        ("udfs/models#linear", &["there is no component or crate `udfs/models` in /"]),
    ] {
        let line = line(name);
        check(&lab, &line.each_ref().map(String::as_str), 1, expected_texts);
    }
    // An existing file takes precedence.
    lab.write("models", "no component");
    check(&lab, &line("models#linear").each_ref().map(String::as_str), 1, &["models", "[not-a-component]"]);
}

#[test]
fn missing_programs_and_jobs_are_named() {
    let lab = Lab::new();
    lab.write("job.toml", "");
    for (name, code, expected_texts) in [
        ("gone", 1, &["there is no component or crate `gone` in /"][..]),
        ("job", 1, &["there is no component or crate `job` in /", "(did you mean the job file `job.toml`?)"]),
        ("some/where/gone.toml", 2, &["there is no job file `some/where/gone.toml` in /"]),
    ] {
        let ended = lab.host(&["submit", name]).expect_code(code).expect_stderr(expected_texts);
        assert!(!ended.stderr.contains("os error"), "{}", ended.stderr);
    }
}

#[test]
fn files_of_models_that_are_none() {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    lab.write("noise.parquet", "this is no Parquet file");
    lab.write("empty.parquet", "");
    lab.write("cut.parquet", "PAR1 and nothing else");
    lab.write("models.parquet", "");
    std::fs::create_dir(lab.path("folder")).unwrap();
    for (models, code, expected_texts) in [
        ("rows.csv", 2, &["rows.csv: it is no output of `host submit`, which is a Parquet file"][..]),
        ("noise.parquet", 2, &["noise.parquet: it is no output of `host submit`, which is a Parquet file"]),
        ("empty.parquet", 2, &["empty.parquet: it is no output of `host submit`"]),
        ("cut.parquet", 1, &["can't read cut.parquet"]),
        ("folder", 1, &["folder: it is a folder"]),
        ("model.parquet", 1, &["there is no file of models `model.parquet` in /", "(did you mean `models.parquet`?)"]),
    ] {
        let predict = ["predict", models, "--input", "rows.csv", "--output", "p.parquet"];
        lab.host(&predict).expect_code(code).expect_stderr(expected_texts);
    }
}

#[test]
fn a_closed_stderr_is_no_error() {
    let lab = Lab::new();
    lab.write("rows.csv", "k,x,y\na,1,2\na,2,4\na,3,6\nb,1,\nb,2,\nb,3,\n");
    lab.write("job.toml", job("rows.csv", &format!("{TRAIN}\nmin_rows = 2")));
    for (arguments, code, printed) in [
        (&["submit", "job.toml"][..], 1, "models: out.parquet"),
        (&["submit", "gone.toml"], 2, ""),
        (&["new", "fares"], 0, ""),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = lab.command(arguments).stderr(writer).output().unwrap();
        let stdout = String::from_utf8_lossy(&ended.stdout);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {stdout}");
        assert!(stdout.contains(printed), "{arguments:?}: {stdout}");
    }
}

/// Runs the host with these environment variables; removes those without a value.
fn host_with(lab: &Lab, arguments: &[&str], environment: &[(&str, Option<&Path>)]) -> CommandOutput {
    let mut command = lab.command(arguments);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Running::new(command).wait()
}

#[test]
fn caches_that_can_not_be_written() {
    let lab = Lab::new();
    lab.write("rows.csv", ROWS);
    lab.write("job.toml", job("rows.csv", TRAIN));
    // No folder can be created inside a file, not even by root.
    let file = lab.write("file", "");
    let models = component("udfs/models");
    for (arguments, code, expected_texts) in [
        (["inspect", models.to_str().unwrap()], 0, &[][..]),
        (["build", workspace().join("udfs/models").to_str().unwrap()], 0, &[]),
        (["submit", "job.toml"], 1, &["file/sandbar", "can't be written", "XDG_CACHE_HOME"]),
    ] {
        host_with(&lab, &arguments, &[("XDG_CACHE_HOME", Some(&file))]).expect_code(code).expect_stderr(expected_texts);
    }
}

#[test]
fn the_cache_without_a_home_is_the_users_own() {
    let lab = Lab::new();
    let models = component("udfs/models");
    host_with(&lab, &["inspect", models.to_str().unwrap()], &[("XDG_CACHE_HOME", None), ("HOME", None)]).expect_code(0);
    let cache = lab.path(&format!("tmp/sandbar-{}", rustix::process::geteuid().as_raw()));
    assert_eq!(std::fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(cache.join("compiled").is_dir());
}

#[test]
fn no_cargo() {
    let lab = Lab::new();
    lab.write("crate/Cargo.toml", "");
    let nothing = lab.path("tmp");
    host_with(&lab, &["build", "crate"], &[("CARGO", None), ("PATH", Some(&nothing))])
        .expect_code(1)
        .expect_stderr(&["`cargo` is not installed, or not in PATH", "component"]);
}
