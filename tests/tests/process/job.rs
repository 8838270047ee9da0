//! Training jobs: the output matches the rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sandbar_tests::{
    Lab, Model, column_of_numbers, component, least_squares, models, taxi_files, taxi_line, taxi_trips, workspace,
};

/// Runs the taxi example over generated data with additional `arguments`, and returns its JSON and its models.
pub fn taxi(lab: &Lab, arguments: &[&str]) -> (serde_json::Value, Vec<Model>) {
    taxi_of(taxi_files(), lab, arguments)
}

/// As [`taxi`], over these files.
pub fn taxi_of(files: &[PathBuf], lab: &Lab, arguments: &[&str]) -> (serde_json::Value, Vec<Model>) {
    let line = taxi_line(files);
    let line: Vec<&str> = line.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
    let ended = lab.host(&line).expect_code(0);
    (ended.json(), models(&lab.path("models.parquet")))
}

/// Checks that two jobs wrote the same models in the same order.
pub fn same_models(actual: &[Model], expected: &[Model]) {
    assert_eq!(actual.len(), expected.len());
    for (actual, expected) in actual.iter().zip(expected) {
        assert_eq!(actual, expected);
    }
}

/// Pairs (drop-off zone, seconds) by month and pick-up zone.
fn groups() -> BTreeMap<(String, i32), Vec<(f64, f64)>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for file in taxi_files() {
        for trip in taxi_trips(file) {
            let Some(pickup) = trip.pickup else { continue };
            groups.entry((name(file), pickup)).or_default().push((f64::from(trip.dropoff), trip.seconds));
        }
    }
    groups
}

fn name(file: &Path) -> String {
    file.display().to_string()
}

#[test]
fn every_group_has_every_model_best_first() {
    let (json, rows) = taxi(&Lab::new(), &[]);
    let expected: Vec<_> = groups().into_iter().filter(|(_, rows)| rows.len() >= 4).collect();
    let skipped = groups().len() - expected.len();
    let read: usize = groups().values().map(Vec::len).sum();
    for (field, value) in [
        ("rows", read),
        ("groups", expected.len()),
        ("models", 3 * expected.len()),
        ("failed", 0),
        ("skipped", skipped),
    ] {
        assert_eq!(json[field], value, "{field} of {json}");
    }
    assert!(json["seconds"].as_f64().unwrap() > 0.0 && json["peak_memory_bytes"].as_u64().unwrap() > 1 << 20, "{json}");
    assert_eq!(json["output"], "models.parquet");
    assert_eq!(rows.len(), 3 * expected.len());
    for (((file, zone), pairs), ranked) in expected.iter().zip(rows.chunks(3)) {
        let mut named: Vec<&str> = ranked.iter().map(|m| m.model.as_str()).collect();
        named.sort_unstable();
        assert_eq!(named, ["linear", "tree", "tree-random"], "{zone}");
        assert!(ranked.windows(2).all(|pair| pair[0].mae.unwrap() <= pair[1].mae.unwrap()), "{ranked:?}");
        for (rank, model) in ranked.iter().enumerate() {
            assert_eq!((&model.key, model.rank), (&vec![file.clone(), zone.to_string()], rank as u32 + 1));
            let test = (pairs.len() as f64 * 0.25).ceil() as u32;
            assert_eq!((model.rows_train, model.rows_test), (pairs.len() as u32 - test, test), "{zone}");
            let (mae, mse, rmse) = (model.mae.unwrap(), model.mse.unwrap(), model.rmse.unwrap());
            assert!(mae >= 0.0 && rmse >= mae * (1.0 - 1e-12) && (rmse * rmse - mse).abs() <= 1e-9 * mse, "{model:?}");
            assert!(model.r2.unwrap() <= 1.0 && !model.bytes.is_empty(), "{model:?}");
        }
    }
}

#[test]
fn linear_models_are_least_squares() {
    let (_, rows) = taxi(&Lab::new(), &["--set", "train.test=0"]);
    let expected: Vec<_> = groups().into_iter().filter(|(_, rows)| rows.len() >= 4).collect();
    let linear: Vec<_> = rows.iter().filter(|m| m.model == "linear").collect();
    assert_eq!(linear.len(), expected.len());
    let close = |a: f64, b: f64, scale: f64| (a - b).abs() <= 1e-9 * scale.max(b.abs());
    for (((_, zone), pairs), model) in expected.iter().zip(linear) {
        let (slope, intercept) = least_squares(pairs);
        let actual = (model.params["coefficients"][0].as_f64().unwrap(), model.params["intercept"].as_f64().unwrap());
        // Scale of a relative error where the value itself is nearly zero.
        let size = pairs.iter().map(|(_, y)| y.abs()).sum::<f64>() / pairs.len() as f64;
        assert!(
            close(actual.0, slope, size / 261.0) && close(actual.1, intercept, size),
            "zone {zone}: {actual:?} instead of {:?}",
            (slope, intercept)
        );
        assert_eq!(
            (model.rank, model.mae, model.rows_train as usize, model.rows_test),
            (1, None, pairs.len(), 0),
            "without a score they rank as the job lists them"
        );
    }
}

/// Creates rows of several batches and calls, and a job over them.
fn with_rows(rows: u32, job: &str) -> Lab {
    let lab = Lab::new();
    let row = |i: u32| format!("{},{},{}\n", i % 1_000, i / 7, 3 * (i % 1_000 + i / 7) + 1);
    lab.write("rows.csv", format!("x,z,y\n{}", (0..rows).map(row).collect::<String>()));
    let trainers = component("udfs/models");
    let models = format!("models = [{{ udf = \"{}#linear\" }}]", trainers.display());
    lab.write(
        "job.toml",
        format!("[input]\npaths = [\"rows.csv\"]\n{job}\n{models}\n[output]\npath = \"out.parquet\"\n"),
    );
    lab
}

/// Runs the job over all rows in one group, whose target is three times the feature plus one.
fn finds_the_line(lab: &Lab, rows: u32) {
    finds_the_line_in_each(lab, rows, 1);
}

/// As [`finds_the_line`], with several groups.
fn finds_the_line_in_each(lab: &Lab, rows: u32, groups: usize) {
    lab.host(&["submit", "job.toml"]).expect_code(0);
    let models = models(&lab.path("out.parquet"));
    assert_eq!(models.len(), groups);
    assert_eq!(models.iter().map(|model| model.rows_train + model.rows_test).sum::<u32>(), rows);
    for model in models {
        let coefficient = model.params["coefficients"][0].as_f64().unwrap();
        assert!((coefficient - 3.0).abs() < 1e-9 && model.mae.unwrap() < 1e-6, "{model:?}");
    }
}

#[test]
fn text_keys_keep_their_written_form() {
    let lab = Lab::new();
    let keys = [("1.10", 1), ("1.1", 5), ("1.2.3", 7), ("01234", 11), ("1234", 13)];
    let rows = keys.map(|(key, slope)| (1..=4).map(|x| format!("{key};{x};{}\n", slope * x)).collect::<String>());
    lab.write("rows.csv", format!("# generated\nk;x;y\n{}", rows.concat()));
    let udf = component("udfs/models");
    let train = "[train]\ngroup_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\ntest = 0.0\nmin_rows = 1";
    let input = "[input]\npaths = [\"rows.csv\"]\ndelimiter = \";\"\ncomment = \"#\"";
    let models_of = format!("models = [{{ udf = \"{}#linear\" }}]", udf.display());
    lab.write("job.toml", format!("{input}\n{train}\n{models_of}\n[output]\npath = \"out.parquet\"\n"));
    lab.host(&["submit", "job.toml"]).expect_code(0);
    let mut found: Vec<String> = models(&lab.path("out.parquet")).into_iter().map(|model| model.key.concat()).collect();
    let mut expected = keys.map(|(key, _)| key.to_owned());
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    // Each key alone would be inferred as a number. The job's types apply here too.
    for (key, slope) in keys {
        lab.write("new.csv", format!("k;x\n#\n{key};2\n"));
        lab.host(&["predict", "out.parquet", "--input", "new.csv", "--output", "new.parquet"]).expect_code(0);
        let found = column_of_numbers(&lab.path("new.parquet"), "prediction");
        assert!(
            found.len() == 1 && found[0].is_some_and(|y| (y - f64::from(2 * slope)).abs() < 1e-9),
            "{key}: {found:?}"
        );
    }
}

#[test]
fn a_scalar_functions_results_stand_beside_their_rows() {
    let (add, five) = (component("udfs/taxi"), component("tests/hostile/polite"));
    let add = format!("udf = \"{}#add\"\ncolumns = [\"x\", \"z\"]", add.display());
    let five = format!("udf = \"{}#scalar_of_five\"\ncolumns = [\"x\", \"z\", \"y\", \"y\", \"z\"]", five.display());
    // The worker collects the rows of a job's last transform if the key is one number or missing.
    for (transform, output, keys, groups) in [
        (&add, "sum", "", 1),
        (&add, "z", "", 1),
        (&add, "sum", "\"k\"", 7),
        (&add, "sum", "\"t\"", 7),
        (&add, "sum", "\"t\", \"k\"", 7),
        (&five, "sum", "\"k\"", 7),
        (&five, "sum", "\"t\"", 7),
    ] {
        let train = format!("[train]\ngroup_by = [{keys}]\nfeatures = [\"{output}\"]\ntarget = \"y\"");
        let lab = with_rows(150_000, &format!("[[transform]]\n{transform}\noutput = \"{output}\"\n{train}"));
        let row = |i: u32| format!("{},{},{},{},t{}\n", i % 1_000, i / 7, 3 * (i % 1_000 + i / 7) + 1, i % 7, i % 7);
        lab.write("rows.csv", format!("x,z,y,k,t\n{}", (0..150_000).map(row).collect::<String>()));
        finds_the_line_in_each(&lab, 150_000, groups);
    }
}

#[test]
fn a_sandbox_sees_the_batches_of_its_call_and_no_others() {
    let udf = component("tests/hostile/polite");
    let transform = format!("[[transform]]\nudf = \"{}#batch_remembers\"", udf.display());
    let train = "[train]\ngroup_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\ntest = 0";
    let lab = with_rows(400_000, &format!("{transform}\n{train}"));
    let rows_by_seen = |workers: &str| -> Vec<(String, u32)> {
        lab.host(&["submit", "job.toml", "--workers", workers]).expect_code(0);
        models(&lab.path("out.parquet")).into_iter().map(|m| (m.key.join(","), m.rows_train)).collect()
    };
    // Twenty-four full batches and one with the rest, in calls of ten.
    let rows = |seen| match seen {
        ..5 => 3 * 16_384,
        5 => 2 * 16_384 + 6_784,
        _ => 2 * 16_384,
    };
    let mut expected: Vec<_> = (1..=10).map(|seen| (seen.to_string(), rows(seen))).collect();
    expected.sort();
    for workers in ["1", "2", "4"] {
        let mut actual = rows_by_seen(workers);
        actual.sort();
        assert_eq!(actual, expected, "{workers} workers");
    }
}

#[test]
fn batches_of_a_call_may_be_of_any_size() {
    let udf = component("tests/hostile/polite");
    let transform = format!("[[transform]]\nudf = \"{}#batch_remembers\"", udf.display());
    let lab = with_rows(1, &format!("{transform}\n[train]\nfeatures = [\"x\"]\ntarget = \"y\""));
    // A batch of short texts, then some of up to 4 MB, then short ones again.
    let text = |i: u32| "long".repeat(if (16_384..60_000).contains(&i) { i as usize / 1_000 } else { 0 });
    let row = |i: u32| format!("{},{},{}\n", i % 1_000, text(i), 3 * (i % 1_000) + 1);
    lab.write("rows.csv", format!("x,t,y\n{}", (0..80_000).map(row).collect::<String>()));
    finds_the_line(&lab, 80_000);
}

#[test]
fn a_call_that_returns_no_batch_is_an_error() {
    let udf = component("tests/hostile/raw");
    let transform = format!("[[transform]]\nudf = \"{}#nothing-next\"", udf.display());
    let lab = |rows| with_rows(rows, &format!("{transform}\n[train]\nfeatures = [\"x\"]\ntarget = \"y\""));
    // One batch for which the function returns no rows, then two, for the second of which it returns nothing.
    let alone = lab(100).host(&["submit", "job.toml"]);
    assert!(!alone.stderr.contains("it returned no batch"), "{}", alone.stderr);
    lab(20_000).host(&["submit", "job.toml"]).expect_code(1).expect_stderr(&["it returned no batch"]);
}

#[test]
fn the_example_of_houses_runs() {
    let lab = Lab::new();
    sandbar_data::housing::write(&lab.path("data/housing.csv")).unwrap();
    let job = workspace().join("examples/housing.toml");
    let trainers = component("udfs/models");
    let sets: Vec<String> = ["ridge", "tree", "forest"]
        .iter()
        .enumerate()
        .map(|(i, f)| format!("train.models.{i}.udf=\"{}#{f}\"", trainers.display()))
        .collect();
    let mut line = vec!["submit", job.to_str().unwrap(), "--json"];
    sets.iter().for_each(|set| line.extend(["--set", set]));
    let json = lab.host(&line).expect_code(0).json();
    assert_eq!((json["groups"].as_u64(), json["models"].as_u64()), (Some(1), Some(3)), "{json}");
    assert_eq!(models(&lab.path("out/housing.parquet"))[0].model, "forest");
}
