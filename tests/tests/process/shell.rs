//! The host in a shell: quiet.

use sandbar_tests::{Lab, component, workspace};

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
