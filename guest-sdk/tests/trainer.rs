//! Trainers, called through `testing`.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use sandbar_guest::prelude::*;
use sandbar_guest::testing::{self, Split};

/// Predicts `scale` times the mean target, plus the first feature if there is one.
#[derive(Serialize, Deserialize)]
struct Mean {
    mean: f64,
    width: usize,
    seed: u64,
}

impl Model for Mean {
    fn predict(&self, features: Features<'_>, out: &mut [f64]) {
        assert!(out.iter().all(|value| *value == 0.0), "the output starts as zeros");
        for (row, out) in out.iter_mut().enumerate() {
            *out = self.mean + if features.width() > 0 { features.column(0)[row] } else { 0.0 };
        }
    }

    fn params(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Shown {
            mean: f64,
            seed: u64,
        }
        Shown { mean: self.mean, seed: self.seed }
    }

    fn width(&self) -> Option<usize> {
        Some(self.width)
    }
}

#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Scale {
    scale: f64,
}

impl Default for Scale {
    fn default() -> Self {
        Scale { scale: 1.0 }
    }
}

#[trainer]
fn mean(group: &Group<'_>, params: &Scale) -> Result<Mean, &'static str> {
    let target = group.target();
    if target.is_empty() {
        return Err("no rows");
    }
    assert_eq!(group.features().view().dim(), (target.len(), group.features().width()));
    let mean = params.scale * target.iter().sum::<f64>() / target.len() as f64;
    Ok(Mean { mean, width: group.features().width(), seed: group.seed() })
}

fn input(columns: &[&[f64]]) -> RecordBatch {
    let array = |values: &&[f64]| Arc::new(Float64Array::from(values.to_vec())) as ArrayRef;
    let names = ["a", "b", "c"];
    RecordBatch::try_from_iter(names.into_iter().zip(columns.iter().map(array))).unwrap()
}

const fn split(first_row: u32, train_rows: u32, test_rows: u32) -> Split {
    Split { first_row, train_rows, test_rows, seed: first_row as u64 + 100 }
}

const X: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0];
const OTHER: &[f64] = &[0.0; 5];
const Y: &[f64] = &[10.0, 20.0, f64::NAN, 40.0, 0.0];

#[test]
fn groups_are_fitted_and_predicted() {
    let splits = [split(0, 2, 1), split(3, 1, 1), split(0, 0, 1), split(4, 1, 0)];
    let settled = testing::fit("mean", r#"{"scale": 2}"#, &input(&[X, OTHER, Y]), &splits).unwrap();
    let [Ok(first), Ok(second), Err(third), Ok(fourth)] = &settled[..] else { panic!("{settled:?}") };
    assert_eq!((&*first.predictions, &*first.params), (&[33.0][..], r#"{"mean":30.0,"seed":100}"#));
    assert_eq!((&*second.predictions, &*second.params), (&[85.0][..], r#"{"mean":80.0,"seed":103}"#));
    assert_eq!(third, "no rows");
    assert_eq!((&*fourth.predictions, &*fourth.params), (&[][..], r#"{"mean":0.0,"seed":104}"#));

    let models = [first.model.clone(), second.model.clone()];
    let splits = [split(0, 0, 5), split(4, 0, 1)];
    let predicted = testing::predict("mean", "{}", &input(&[X, OTHER]), &splits, &models).unwrap();
    assert_eq!(predicted, [Ok(vec![31.0, 32.0, 33.0, 34.0, 35.0]), Ok(vec![85.0])]);
}

#[test]
fn models_that_are_not_its_own_are_refused() {
    let trained =
        testing::fit("mean", "{}", &input(&[X, OTHER, Y]), &[split(0, 2, 0)]).unwrap().remove(0).unwrap().model;
    let models = [trained[..4].to_vec(), trained.clone(), trained];
    let splits = [split(0, 0, 5); 3];
    let predicted = testing::predict("mean", "{}", &input(&[X]), &splits, &models).unwrap();
    assert!(predicted[0].as_ref().unwrap_err().starts_with("the stored model does not belong to this function: "));
    assert_eq!(predicted[1].as_ref().unwrap_err(), "the stored model takes 2 features, the input has 1");
}

#[test]
fn shapes() {
    // No features, no rows, and no groups.
    let settled = testing::fit("mean", "{}", &input(&[Y]), &[split(0, 1, 0)]).unwrap();
    assert_eq!(settled[0].as_ref().unwrap().params, r#"{"mean":10.0,"seed":100}"#);
    assert_eq!(
        testing::fit("mean", "{}", &input(&[&[], &[]]), &[split(0, 0, 0)]).unwrap(),
        [Err("no rows".to_owned())]
    );
    assert_eq!(testing::fit("mean", "{}", &input(&[X, Y]), &[]).unwrap(), []);
    assert_eq!(testing::call("mean", "{}", &input(&[X, Y])).unwrap_err(), "this function takes groups, not batches");
}
