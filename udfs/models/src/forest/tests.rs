use linfa::Dataset;
use linfa::traits::{Fit, Predict};
use ndarray::{Array1, Array2, ShapeBuilder};

use super::{RandomForest, RandomForestParams};
use crate::tree::{Draws, RegressionTreeParams, Splitter, TrainingSet, TreeError};

const ROWS: usize = 300;

fn columns() -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let draws = &mut Draws::stream(11, 0);
    let [first, second] = [0, 1].map(|_| (0..ROWS).map(|_| draws.unit()).collect::<Vec<_>>());
    let target = first.iter().zip(&second).map(|(first, second)| first * 10.0 + second * second).collect();
    (first, second, target)
}

fn fit(params: &RandomForestParams) -> RandomForest {
    let (first, second, target) = columns();
    params.fit_columns(&[&first, &second], &target).unwrap()
}

fn few_trees() -> RandomForestParams {
    RandomForestParams { n_estimators: 7, ..Default::default() }
}

#[test]
fn predicts_the_mean_of_its_trees() {
    let (first, second, target) = columns();
    let forest = fit(&few_trees());
    let predictions = forest.predict_columns(&[&first, &second]).unwrap();
    let of_trees: Vec<Vec<f64>> =
        forest.trees().iter().map(|tree| tree.predict_columns(&[&first, &second]).unwrap()).collect();
    for (row, &prediction) in predictions.iter().enumerate() {
        let sum: f64 = of_trees.iter().map(|predictions| predictions[row]).sum();
        assert_eq!(prediction, sum / 7.0);
    }
    let records = Array2::from_shape_vec((ROWS, 2).f(), [first, second].concat()).unwrap();
    let dataset = Dataset::new(records, Array1::from(target));
    let fitted = few_trees().fit(&dataset).unwrap();
    assert_eq!(fitted, forest);
    assert_eq!(fitted.predict(&dataset).to_vec(), predictions);
}

#[test]
fn a_tree_depends_on_seed_and_place_alone() {
    let longer = RandomForestParams { n_estimators: 9, ..few_trees() };
    assert_eq!(fit(&few_trees()).trees(), &fit(&longer).trees()[..7]);
    let other = fit(&RandomForestParams { seed: Some(1), ..few_trees() });
    assert!(fit(&few_trees()).trees().iter().zip(other.trees()).all(|(one, other)| one != other));
    assert_ne!(other.trees()[0], other.trees()[1]);
}

#[test]
fn samples() {
    let (first, second, target) = columns();
    let set = TrainingSet::new(&[&first, &second], &target).unwrap();
    let leaves = |change: fn(&mut RandomForestParams)| {
        let mut params = few_trees();
        change(&mut params);
        params.fit_set(&set).unwrap().trees().iter().map(|tree| tree.leaves()).collect::<Vec<_>>()
    };
    // A fully grown tree has a leaf for each distinct row of its sample: n draws from n rows give 63 % of the rows.
    assert!(leaves(|_| ()).iter().all(|leaves| (150..230).contains(leaves)));
    assert!(leaves(|params| params.max_samples = Some(0.1)).iter().all(|leaves| (20..=30).contains(leaves)));
    assert_eq!(leaves(|params| params.max_samples = Some(1e-9)), [1; 7]);
    assert_eq!(leaves(|params| params.bootstrap = false), [ROWS; 7]);
    let whole = RandomForestParams { bootstrap: false, ..few_trees() }.fit_set(&set).unwrap();
    assert_eq!(whole.trees()[0], RegressionTreeParams::default().fit_set(&set).unwrap());
}

#[test]
fn wrong_parameters() {
    let (first, second, target) = columns();
    let check = |change: fn(&mut RandomForestParams), expected: &str| {
        let mut params = few_trees();
        change(&mut params);
        let error = params.fit_columns(&[&first, &second], &target).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(|params| params.n_estimators = 0, "n_estimators is 0, it must be at least 1");
    check(|params| params.min_samples_leaf = 0, "min_samples_leaf is 0, it must be at least 1");
    for (share, value) in [(0.0, "0"), (-0.5, "-0.5"), (1.5, "1.5"), (f64::NAN, "NaN")] {
        let params = RandomForestParams { max_samples: Some(share), ..few_trees() };
        let error = params.fit_columns(&[&first, &second], &target).unwrap_err();
        assert_eq!(error.to_string(), format!("max_samples is {value}, it must be more than 0 and at most 1"));
    }
    let both = RandomForestParams { bootstrap: false, max_samples: Some(0.5), ..few_trees() };
    assert!(matches!(
        both.fit_columns(&[&first, &second], &target),
        Err(TreeError::Parameter { name: "max_samples", .. })
    ));
    assert!(serde_json::from_str::<RandomForestParams>(r#"{"n_trees": 3}"#).is_err());
    assert_eq!(serde_json::from_str::<RandomForestParams>("{}").unwrap(), RandomForestParams::default());
}

#[test]
fn only_whole_forests_are_read() {
    let forest = fit(&few_trees());
    let bytes = postcard::to_stdvec(&forest).unwrap();
    assert_eq!(postcard::from_bytes::<RandomForest>(&bytes).unwrap(), forest);
    let tree = |width| format!(r#"{{"width": {width}, "features": [0], "splits": [1]}}"#);
    let check = |trees: &[String], valid| {
        let json = format!(r#"{{"trees": [{}]}}"#, trees.join(", "));
        assert_eq!(serde_json::from_str::<RandomForest>(&json).is_ok(), valid, "{json}");
    };
    check(&[tree(2)], true);
    check(&[tree(2), tree(2)], true);
    check(&[], false);
    check(&[tree(2), tree(3)], false);
    check(&[tree(2), tree(0)], false);
}

/// Bits are the same on every platform and change only on purpose: models are compared bit by bit.
#[test]
fn bits_are_pinned() {
    let (first, second, _) = columns();
    let digest = |splitter| {
        let forest = fit(&RandomForestParams { splitter, max_features: Some(1), ..few_trees() });
        let predictions = forest.predict_columns(&[&second, &first]).unwrap();
        predictions
            .iter()
            .fold(0_u64, |digest, value| (digest.rotate_left(5) ^ value.to_bits()).wrapping_mul(0x9e37_79b9))
    };
    assert_eq!(digest(Splitter::Best), 18_047_356_184_181_643_841);
    assert_eq!(digest(Splitter::Random), 17_156_840_528_540_447_066);
}
