//! The measured jobs and their data.

use std::path::{Path, PathBuf};

use models::tree::Splitter;
use sandbar_data::housing;

use crate::failure::Failure;
use crate::job::{Bench, Model};
use crate::job_runs::Figure;
use crate::paths;
use crate::peers::Peers;
use crate::report::{Report, progress};
use crate::timing::Effort;

/// Measures linear models, then three models per group, on two months of taxi trips.
pub fn training(report: Report, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
    taxi(effort, "training/linear", vec![Model::Linear])?.run(report, Figure::Seconds, effort, peers)?;
    let three = vec![Model::Linear, Model::Tree(Splitter::Best), Model::Tree(Splitter::Random)];
    taxi(effort, "training/three models", three)?.run(report, Figure::Seconds, effort, peers)
}

/// Measures linear models with least squares on a GPU (or lavapipe), on the processor, and with the choice left to the host.
pub fn on_devices(report: Report, effort: Effort, is_software: bool) -> Result<(), Failure> {
    let bench = taxi(effort, "gpu/linear models of taxi trips", vec![Model::Linear])?;
    let with = |device: &'static str| {
        let software = if is_software { &["--software-gpu"][..] } else { &[] };
        [&["--set", device][..], software].concat()
    };
    let all = [r#"device="auto""#, r#"device="gpu""#, r#"device="cpu""#].map(with);
    let seconds = bench.run_with(effort, &all.each_ref().map(|arguments| &arguments[..]))?;
    let name = format!("{}, `auto`", bench.name);
    report.compare(&name, seconds[0], "s", "`gpu`", seconds[1]);
    report.compare(&name, seconds[0], "s", "`cpu`", seconds[2]);
    Ok(())
}

fn taxi(effort: Effort, name: &str, models: Vec<Model>) -> Result<Bench, Failure> {
    let rows = effort.rows;
    let folder = paths::data()?.join(format!("taxi-{rows}"));
    if !folder.is_dir() {
        progress(&format!("generating 2 x {rows} taxi trips in {}", folder.display()));
        let generated = folder.with_extension("new");
        sandbar_data::taxi::write(&generated, rows, 2, &|_, _| ())?;
        std::fs::rename(generated, &folder)?;
    }
    Ok(Bench {
        name: name.to_owned(),
        input: vec![folder],
        filter: Some("pickup_location_id IS NOT NULL".to_owned()),
        clean: true,
        keys: names(&["pickup_location_id"]),
        per_file: true,
        features: names(&["dropoff_location_id"]),
        target: "trip_duration".to_owned(),
        models,
    })
}

/// Measures many groups of ten rows.
pub fn small_models(report: Report, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
    let groups = effort.groups;
    let file = paths::data()?.join(format!("small-{groups}.parquet"));
    if !file.is_file() {
        progress(&format!("generating {groups} groups of 10 rows in {}", file.display()));
        sandbar_data::small::write(&file, groups, 10, &|_| ())?;
    }
    let bench = Bench {
        name: "small-models".to_owned(),
        input: vec![file],
        filter: None,
        clean: false,
        keys: names(&["key"]),
        per_file: false,
        features: names(&["x1", "x2"]),
        target: "y".to_owned(),
        models: vec![Model::Linear],
    };
    bench.run(report, Figure::ModelsPerSecond, effort, peers)
}

/// Measures forests on California housing.
pub fn forest(report: Report, effort: Effort, housing: Option<&Path>, peers: Option<&Peers>) -> Result<(), Failure> {
    let bench = Bench {
        name: "forest".to_owned(),
        input: vec![housing_file(housing)?],
        filter: Some("total_bedrooms IS NOT NULL".to_owned()),
        clean: false,
        keys: Vec::new(),
        per_file: false,
        features: names(&housing::FEATURES),
        target: housing::TARGET.to_owned(),
        models: (8..).step_by(4).take(effort.forests).map(Model::Forest).collect(),
    };
    bench.run(report, Figure::Seconds, effort, peers)
}

fn housing_file(chosen: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(chosen) = chosen {
        return Ok(std::path::absolute(chosen)?);
    }
    let file = paths::data()?.join("housing.csv");
    if !file.is_file() {
        progress(&format!("generating data in the shape of California housing in {}", file.display()));
        housing::write(&file)?;
    }
    Ok(file)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
