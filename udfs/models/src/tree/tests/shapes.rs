//! Small data sets and the trees that scikit-learn's rules give.

use super::render;
use crate::tree::{Draws, RegressionTreeParams, Splitter};

fn check(columns: &[&[f64]], target: &[f64], params: RegressionTreeParams, expected: &str) {
    let tree = params.fit_columns(columns, target).unwrap();
    assert_eq!(render(&tree), expected, "{columns:?} {target:?} {params:?}");
    let depth = expected.chars().scan(0, |depth, char| {
        *depth += i32::from(char == '(') - i32::from(char == ')');
        Some(*depth)
    });
    assert_eq!(tree.depth() as i32, depth.max().unwrap_or(0), "{expected}");
    assert_eq!(tree.leaves(), expected.matches('(').count() + 1, "{expected}");
}

fn defaults() -> RegressionTreeParams {
    RegressionTreeParams::default()
}

#[test]
fn nothing_to_split() {
    check(&[&[3.0]], &[5.0], defaults(), "5");
    check(&[&[1.0, 1.0]], &[2.0, 4.0], defaults(), "3");
    check(&[&[1.0, 2.0, 3.0]], &[0.1; 3], defaults(), "0.1");
    check(&[&[0.0, -0.0]], &[2.0, 4.0], defaults(), "3");
    check(&[&[1.0, 2.0]], &[0.0, 1e-9], defaults(), "0.0000000005");
}

#[test]
fn thresholds() {
    check(&[&[1.0, 2.0]], &[5.0, 7.0], defaults(), "0<=1.5(5 7)");
    check(&[&[2.0, 1.0]], &[5.0, 7.0], defaults(), "0<=1.5(7 5)");
    check(&[&[1.0, 2.0, 4.0]], &[1.0, 1.0, 9.0], defaults(), "0<=3(1 9)");
    check(&[&[1.0, 2.0, 4.0]], &[1.0, 2.0, 9.0], defaults(), "0<=3(0<=1.5(1 2) 9)");
    check(&[&[7.0; 4], &[1.0, 2.0, 2.0, 3.0]], &[1.0, 2.0, 4.0, 9.0], defaults(), "1<=2.5(1<=1.5(1 3) 9)");
    // If no float lies between two neighbours, their midpoint is the lower one. No midpoint overflows.
    check(&[&[9007199254740991.0, 9007199254740992.0]], &[0.0, 1.0], defaults(), "0<=9007199254740991(0 1)");
    check(&[&[-f64::MAX, f64::MAX]], &[0.0, 1.0], defaults(), "0<=0(0 1)");
}

#[test]
fn values_too_close_to_separate() {
    check(&[&[0.0, 0.5e-7]], &[2.0, 4.0], defaults(), "3");
    check(&[&[0.0, 1.0, 1.0 + 5e-8]], &[0.0, 0.0, 9.0], defaults(), "0<=0.5(0 4.5)");
    // The ends are separable, but no neighbours are.
    check(&[&[0.0, 0.8e-7, 1.6e-7]], &[0.0, 3.0, 9.0], defaults(), "4");
    // The same values without the middle one.
    check(&[&[0.0, 1.6e-7]], &[0.0, 9.0], defaults(), "0<=0.00000008(0 9)");
}

#[test]
fn limits() {
    let (column, target) = ([1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.0, 3.0, 100.0]);
    let with = |change: fn(&mut RegressionTreeParams)| {
        let mut params = defaults();
        change(&mut params);
        params
    };
    let check = |change, expected| check(&[&column], &target, with(change), expected);
    check(|params| params.max_depth = Some(1), "0<=4.5(1.5 100)");
    check(|params| params.max_depth = Some(2), "0<=4.5(0<=2.5(0.5 2.5) 100)");
    check(|params| params.min_samples_split = 5, "0<=4.5(1.5 100)");
    check(|params| params.min_samples_split = 6, "21.2");
    check(|params| params.min_samples_leaf = 2, "0<=3.5(1 51.5)");
    check(|params| params.min_samples_leaf = 3, "21.2");
    check(|params| params.min_samples_leaf = u32::MAX, "21.2");
    check(|params| params.max_features = Some(usize::MAX), "0<=4.5(0<=2.5(0<=1.5(0 1) 0<=3.5(2 3)) 100)");
}

/// The draw of one feature continues until it finds one that is not constant.
#[test]
fn constant_features_do_not_use_up_the_draw() {
    let varying = [1.0, 2.0, 3.0];
    for seed in 0..20 {
        let params = RegressionTreeParams { max_features: Some(1), seed: Some(seed), ..defaults() };
        check(&[&[7.0; 3], &varying, &[8.0; 3]], &[1.0, 5.0, 5.0], params, "1<=1.5(1 5)");
    }
}

/// Both sides get rows, however the drawn threshold is rounded.
#[test]
fn random_thresholds_between_neighbours() {
    let column = [9007199254740991.0, 9007199254740992.0];
    for seed in 0..20 {
        let params = RegressionTreeParams { splitter: Splitter::Random, seed: Some(seed), ..defaults() };
        check(&[&column], &[0.0, 1.0], params, "0<=9007199254740991(0 1)");
    }
}

/// A split without a gain is still made, because the next level may gain from it.
#[test]
fn exclusive_or_is_learnt() {
    let columns: [&[f64]; 2] = [&[0.0, 0.0, 1.0, 1.0], &[0.0, 1.0, 0.0, 1.0]];
    let target = [0.0, 1.0, 1.0, 0.0];
    for splitter in [Splitter::Best, Splitter::Random] {
        let tree = RegressionTreeParams { splitter, ..defaults() }.fit_columns(&columns, &target).unwrap();
        assert_eq!(tree.predict_columns(&columns).unwrap(), target);
        assert_eq!((tree.depth(), tree.leaves()), (2, 4));
    }
}

#[test]
fn defaults_are_those_of_scikit_learn() {
    let read = |json: &str| serde_json::from_str::<RegressionTreeParams>(json);
    assert_eq!(read("{}").unwrap(), defaults());
    let random = RegressionTreeParams { splitter: Splitter::Random, max_depth: Some(3), ..defaults() };
    assert_eq!(read(r#"{"splitter": "random", "max_depth": 3}"#).unwrap(), random);
    for wrong in [r#"{"max_deph": 3}"#, r#"{"splitter": "worst"}"#, r#"{"max_depth": -1}"#] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

/// With one feature, rows of equal value are bundled. An uninformative second feature prevents bundling; the trees must
/// be the same.
#[test]
fn rows_taken_together_make_the_same_tree() {
    let mut draws = Draws::stream(7, 0);
    // Integers are not sorted, other values are.
    for (values, unit) in [(1, 1.0), (2, 0.3), (3, 1.0), (10, 0.3), (10, 1.0), (40, 1.0), (40, 0.3)] {
        let rows = 100;
        let feature: Vec<f64> = (0..rows).map(|_| f64::from(draws.below(values)) * unit).collect();
        let target: Vec<f64> = feature.iter().map(|x| (x * 7.0) % 11.0 + f64::from(draws.below(4))).collect();
        let nothing = vec![1.0; rows as usize];
        for splitter in [Splitter::Best, Splitter::Random] {
            let params = RegressionTreeParams { splitter, seed: Some(3), ..defaults() };
            let together = params.fit_columns(&[&feature], &target).unwrap();
            assert!(together.leaves() <= values as usize, "{values}");
            if splitter == Splitter::Best {
                let apart = params.fit_columns(&[&feature, &nothing], &target).unwrap();
                assert_eq!(render(&together), render(&apart), "{values} values");
            }
            // Fully grown: each leaf predicts the mean of its value's targets.
            for value in 0..values {
                let value = f64::from(value) * unit;
                let targets: Vec<f64> =
                    (0..feature.len()).filter(|i| feature[*i] == value).map(|i| target[i]).collect();
                if let Some(row) = feature.iter().position(|x| *x == value) {
                    let predicted = together.predict_columns(&[&feature[row..=row]]).unwrap()[0];
                    let mean = targets.iter().sum::<f64>() / targets.len() as f64;
                    assert!((predicted - mean).abs() < 1e-12 * mean.abs().max(1.0), "{predicted} {mean}");
                }
            }
        }
    }
}

#[test]
fn a_feature_of_small_units_is_to_be_scaled() {
    // After scaling, the step is clear; before, all values are within 1e-7 of each other.
    let scaled = [1.0, 2.0, 3.0, 4.0];
    let small = scaled.map(|value: f64| value / f64::from(1 << 27));
    let target = [0.0, 0.0, 8.0, 8.0];
    check(&[&small], &target, defaults(), "4");
    check(&[&scaled], &target, defaults(), "0<=2.5(0 8)");
}
