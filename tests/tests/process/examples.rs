//! Runs the example programs as users do.

use std::path::PathBuf;

use sandbar_tests::{CommandOutput, Lab, component};
use serde_json::Value;

use crate::real::data;

fn run(lab: &Lab, example: &str, arguments: &[&str]) -> CommandOutput {
    run_with(lab, example, arguments, &[])
}

fn run_with(lab: &Lab, example: &str, arguments: &[&str], flags: &[&str]) -> CommandOutput {
    let program = component(&format!("examples/{}", example.split('#').next().unwrap_or(example)));
    let task = example.split_once('#').map_or(String::new(), |(_, task)| format!("#{task}"));
    let program = format!("{}{task}", program.display());
    let arguments = arguments.iter().flat_map(|argument| ["--arg", argument]);
    let line: Vec<&str> = ["submit", &program].iter().chain(flags).copied().chain(arguments).collect();
    lab.host(&line).expect_code(0)
}

fn json(ended: &CommandOutput) -> Value {
    serde_json::from_str(&ended.stdout).expect("a line of JSON")
}

/// Returns an argument with California's housing data, or with generated data of the same shape.
fn houses(lab: &Lab) -> String {
    let file = data("housing.csv").unwrap_or_else(|| generated_houses(lab));
    format!("data=@{}", file.display())
}

fn generated_houses(lab: &Lab) -> PathBuf {
    sandbar_data::housing::write(&lab.path("housing.csv")).expect("data can be made")
}

#[test]
fn forests_are_tuned_side_by_side_and_one_after_another() {
    let lab = Lab::new();
    for houses in [houses(&lab), format!("data=@{}", generated_houses(&lab).display())] {
        let ranking = json(&run(&lab, "forests", &[&houses, "forests=4"]));
        let ranking: Vec<(u64, f64)> = ranking
            .as_array()
            .expect("a list")
            .iter()
            .map(|tried| (tried["trees"].as_u64().unwrap(), tried["error"].as_f64().unwrap()))
            .collect();
        let mut trees: Vec<u64> = ranking.iter().map(|(trees, _)| *trees).collect();
        trees.sort_unstable();
        assert_eq!(trees, [8, 12, 16, 20]);
        assert!(ranking.is_sorted_by(|(_, a), (_, b)| a <= b), "{ranking:?}");
        // A random forest of scikit-learn has an error of 32,000 to 36,000 dollars; predicting the mean has one of
        // 91,000.
        assert!((15_000.0..40_000.0).contains(&ranking[0].1), "{ranking:?}");
        let sequential = run(&lab, "forests#sequential", &[&houses, "forests=4"]);
        assert_eq!(run(&lab, "forests", &[&houses, "forests=4"]).stdout, sequential.stdout);
    }
}

#[test]
fn each_group_gets_the_best_of_its_models() {
    let lab = Lab::new();
    let features = r#"features=["median_income", "latitude", "longitude"]"#;
    let arguments = [&houses(&lab)[..], "group_by=housing_median_age", "target=median_house_value", features];
    let ended = run(&lab, "many-models", &arguments);
    let best = json(&ended);
    let best = best.as_array().expect("a list");
    assert!((45..=52).contains(&best.len()), "{best:?}");
    for group in best {
        let error = group["mean_absolute_error"].as_f64().expect("a number");
        assert!((10_000.0..150_000.0).contains(&error), "{group}");
    }
    // The root task, a task that reads, and for each group its own task and three that this submits.
    ended.expect_stderr(&[&format!("succeeded: {} tasks", 2 + 4 * best.len())]);
}

#[test]
fn a_pool_trains_a_model_for_each_of_ten_thousand_files() {
    let lab = Lab::new();
    sandbar_data::csvs::write(&lab.path("csvs"), 10_000, 10, &|_| ()).expect("data can be made");
    lab.write("csvs/000007.csv", "x,y\n1;2\n");
    lab.write("csvs/009999.csv", [0xff; 100]);
    let ended = run(&lab, "csv-pool", &["files=@csvs"]);
    let trained = json(&ended);
    assert_eq!((&trained["models"], &trained["rows"], &trained["failed"]), (&9998.into(), &99_980.into(), &2.into()));
    let others = (0..10_000).filter(|file| ![7, 9999].contains(file));
    let mean = others.map(|file| sandbar_data::csvs::line(file)[0]).sum::<f64>() / 9998.0;
    assert!((trained["mean_slope"].as_f64().unwrap() - mean).abs() < 0.01, "{trained}: {mean}");
    let failures = trained["failures"].to_string();
    assert!(failures.contains("csvs/000007.csv: line 2 is not a pair of numbers: 1;2 [refused]"), "{failures}");
    assert!(failures.contains("csvs/009999.csv: invalid utf-8"), "{failures}");
    ended.expect_stderr(&["training: 10000 of 10000 in ", " a second"]);
    let status = lab.host(&["jobs", "status"]).expect_code(0).stdout;
    assert!(status.contains("progress   training: 10000 of 10000 in "), "{status}");
}

#[test]
fn a_restarted_parameter_server_continues_from_its_checkpoint() {
    let lab = Lab::new();
    let arguments = ["workers=3", "steps=100", "rows=500"];
    let trained = run(&lab, "parameter-server", &arguments);
    let accuracy = json(&trained)["accuracy"].as_f64().expect("a number");
    assert!(accuracy > 0.85, "{accuracy}");
    let rerun = run(&lab, "parameter-server", &[&arguments[..], &["restart=true"]].concat());
    assert_eq!(rerun.stdout, trained.stdout);
}

/// scikit-learn's `MLPRegressor` with default parameters has an error of 33,300 to 35,400 dollars on a random fifth of
/// the generated houses, depending on the split, and of 52,900 to 54,600 on California's.
#[test]
fn a_perceptron_is_trained_and_served() {
    let lab = Lab::new();
    let california = data("housing.csv").map(|file| (file, 52_000.0..55_500.0));
    for (file, errors) in california.into_iter().chain([(generated_houses(&lab), 33_000.0..36_000.0)]) {
        let houses = format!("data=@{}", file.display());
        let all = [&houses[..], "target=median_house_value", "actors=2", "batch_size=500"];
        let served = json(&run(&lab, "perceptron", &all));
        let error = |served: &Value| served["root_mean_squared_error"].as_f64().expect("a number");
        assert!(errors.contains(&error(&served)), "{served}");
        assert!((8..=9).contains(&served["batches"].as_u64().unwrap()), "{served}");
        // Trains and serves on a GPU, with few epochs, since lavapipe is slow.
        let short = [&all[..], &[r#"params={"max_epochs": 2}"#]].concat();
        let on_gpu = ["gpus=0.5", r#"device="gpu""#];
        let gpu = json(&run_with(
            &lab,
            "perceptron",
            &[&short[..], &on_gpu].concat(),
            &["--software-gpu", "--gpu-time", "60"],
        ));
        let cpu = json(&run(&lab, "perceptron", &[&short[..], &[r#"device="cpu""#]].concat()));
        assert_ne!(gpu, cpu, "the GPU had nothing to do");
        assert!((error(&gpu) / error(&cpu) - 1.0).abs() < 1e-3, "{gpu}, {cpu}");
    }
}
