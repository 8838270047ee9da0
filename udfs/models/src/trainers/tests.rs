//! The trainers, called through `testing`.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use sandbar_guest::dense::Device;
use sandbar_guest::testing::{self, GroupFit, Split};

use crate::tree::Draws;

const ALL: [&str; 8] = ["linear", "ridge", "lasso", "elastic_net", "logistic", "mlp", "tree", "forest"];
const ROWS: u32 = 60;

/// Two features and a target that is 0 or 1.
fn input() -> RecordBatch {
    let draws = &mut Draws::stream(5, 0);
    let [a, b] = [0, 1].map(|_| (0..ROWS).map(|_| draws.unit()).collect::<Vec<_>>());
    let noisy = |(a, b): (&f64, &f64)| f64::from(u8::from(a + 2.0 * b + draws.unit() > 2.0));
    let target = a.iter().zip(&b).map(noisy).collect();
    batch(vec![a, b, target])
}

fn batch(columns: Vec<Vec<f64>>) -> RecordBatch {
    let arrays = columns.into_iter().map(|column| Arc::new(Float64Array::from(column)) as ArrayRef);
    RecordBatch::try_from_iter(["a", "b", "c"].into_iter().zip(arrays)).unwrap()
}

fn split(train_rows: u32, test_rows: u32, seed: u64) -> Split {
    Split { first_row: 0, train_rows, test_rows, seed }
}

fn fit(trainer: &str, params: &str, groups: &[Split]) -> Vec<GroupFit> {
    let settled = testing::fit(trainer, params, &input(), groups).unwrap();
    settled.into_iter().map(|group| group.unwrap_or_else(|e| panic!("{trainer}: {e}"))).collect()
}

#[test]
fn stored_models_predict_the_same() {
    let features = input().project(&[0, 1]).unwrap();
    for trainer in ALL {
        let params = if trainer == "forest" { r#"{"n_estimators": 3}"# } else { "{}" };
        let fitted = fit(trainer, params, &[split(40, 20, 1)]).remove(0);
        assert_eq!(fitted.predictions.len(), 20);
        let later = [Split { first_row: 40, train_rows: 0, test_rows: 20, seed: 9 }];
        let predicted =
            testing::predict(trainer, "{}", &features, &later, std::slice::from_ref(&fitted.model)).unwrap();
        assert_eq!(predicted, [Ok(fitted.predictions)], "{trainer}");
        let narrow = testing::predict(trainer, "{}", &batch(vec![vec![0.0; 60]]), &later, &[fitted.model]).unwrap();
        assert_eq!(narrow, [Err("the stored model takes 2 features, the input has 1".to_owned())], "{trainer}");
    }
}

#[test]
fn displayed_parameters() {
    let check = |trainer, params, expected: &[&str]| {
        let shown: serde_json::Value =
            serde_json::from_str(&fit(trainer, params, &[split(60, 0, 1)])[0].params).unwrap();
        let mut keys: Vec<_> = shown.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected, "{trainer}");
    };
    for trainer in ["linear", "ridge"] {
        check(trainer, "{}", &["coefficients", "intercept"]);
    }
    for trainer in ["lasso", "elastic_net", "logistic"] {
        check(trainer, r#"{"alpha": 0.001}"#, &["coefficients", "converged", "intercept", "iterations"]);
    }
    check("tree", "{}", &["depth", "leaves"]);
    check("forest", r#"{"n_estimators": 2}"#, &["mean_depth", "trees"]);
}

#[test]
fn parameters() {
    for trainer in ALL {
        let refused = testing::fit(trainer, r#"{"alfa": 1}"#, &input(), &[]).unwrap_err();
        assert!(refused.starts_with("invalid parameters: unknown field `alfa`, expected"), "{trainer}: {refused}");
    }
    let same = |trainer, one, other| {
        assert_eq!(fit(trainer, one, &[split(60, 0, 1)]), fit(trainer, other, &[split(60, 0, 1)]))
    };
    same("lasso", r#"{"alpha": 0.1}"#, r#"{"penalty": 0.1}"#);
    same("elastic_net", r#"{"alpha": 0.1}"#, r#"{"penalty": 0.1, "l1_ratio": 0.5, "fit_intercept": true}"#);
    same("linear", "{}", r#"{"fit_intercept": true}"#);
    same("ridge", r#"{"alpha": 0}"#, r#"{"alpha": 0.0, "fit_intercept": true}"#);
    let wrong = testing::fit("ridge", r#"{"alpha": -1}"#, &input(), &[split(60, 0, 1)]).unwrap();
    assert_eq!(wrong, [Err("alpha is -1, it must be at least 0 and finite".to_owned())]);
}

/// Without a seed parameter, a model depends on its group's seed; with one, only on the parameter.
#[test]
fn seeds() {
    let groups = [split(60, 0, 1), split(60, 0, 1), split(60, 0, 2)];
    let random = [("tree", r#""splitter": "random""#), ("forest", r#""n_estimators": 2"#)];
    for (trainer, params) in random {
        let [one, again, other] = fit(trainer, &format!("{{{params}}}"), &groups).try_into().unwrap();
        assert!(one == again && one != other, "{trainer}");
        let [one, _, other] = fit(trainer, &format!(r#"{{{params}, "seed": 2}}"#), &groups).try_into().unwrap();
        assert!(one == other && one != again, "{trainer}");
    }
}

/// A group that can't be fitted reports an error, without affecting other groups.
#[test]
fn failures_stay_in_their_group() {
    let groups = [split(0, 1, 1), split(60, 1, 1)];
    for trainer in ALL {
        let params = if trainer == "forest" { r#"{"n_estimators": 2}"# } else { "{}" };
        let settled = testing::fit(trainer, params, &input(), &groups).unwrap();
        assert!(
            settled[0].as_ref().unwrap_err().contains("no rows") && settled[1].is_ok(),
            "{trainer}: {:?}",
            settled[0]
        );
    }
}

/// Modified bytes are rejected or decode to another model, and never panic.
#[test]
fn hostile_models() {
    let features = input().project(&[0, 1]).unwrap();
    for trainer in ALL {
        let params = if trainer == "forest" { r#"{"n_estimators": 2, "max_depth": 3}"# } else { "{}" };
        let model = fit(trainer, params, &[split(60, 0, 1)]).remove(0).model;
        let draws = &mut Draws::stream(3, 0);
        let models: Vec<Vec<u8>> = (0..2000)
            .map(|_| {
                let mut model = model.clone();
                for _ in 0..=draws.below(3) {
                    let at = draws.below(model.len() as u32) as usize;
                    model[at] = draws.below(256) as u8;
                }
                model.truncate(
                    model.len() - if draws.below(4) == 0 { draws.below(model.len() as u32) as usize } else { 0 },
                );
                model
            })
            .collect();
        let groups = vec![split(0, 10, 1); models.len()];
        assert_eq!(testing::predict(trainer, "{}", &features, &groups, &models).unwrap().len(), models.len());
    }
}

/// In a job with a device, the host fits groups together: to the same models within rounding. Groups that it can't fit
/// well are fitted one by one, to the same bits.
#[test]
fn groups_are_fitted_together() {
    let input = input();
    // A group with test rows, a singular group, and a group of one row.
    let groups = [split(40, 20, 1), Split { first_row: 10, train_rows: 2, test_rows: 0, seed: 2 }, split(1, 5, 3)];
    for (trainer, params) in [
        ("linear", "{}"),
        ("linear", r#"{"fit_intercept": false}"#),
        ("ridge", r#"{"alpha": 0.5}"#),
        ("ridge", r#"{"alpha": -1}"#),
        ("forest", r#"{"n_estimators": 2}"#),
    ] {
        let alone = testing::fit(trainer, params, &input, &groups).unwrap();
        let together = testing::with_device(Device::Cpu, || testing::fit(trainer, params, &input, &groups)).unwrap();
        for (group, (alone, together)) in alone.iter().zip(&together).enumerate() {
            match (alone, together) {
                (Ok(alone), Ok(together)) => {
                    assert_eq!(alone.predictions.len(), together.predictions.len());
                    for (alone, together) in alone.predictions.iter().zip(&together.predictions) {
                        let is_close = (alone - together).abs() <= 1e-12 * alone.abs().max(1.0);
                        assert!(is_close, "{trainer} {params}, group {group}: {alone}, {together}");
                    }
                }
                (alone, together) => assert_eq!(alone, together, "{trainer} {params}, group {group}"),
            }
        }
    }
}
