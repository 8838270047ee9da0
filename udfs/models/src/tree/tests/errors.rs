//! Rejected data and parameters, and their error messages.

use crate::tree::data::check_rows;
use crate::tree::{ROWS_MAX, RegressionTreeParams, TARGET_MAGNITUDE_MAX, TreeError};

fn check(columns: &[&[f64]], target: &[f64], params: RegressionTreeParams, expected: &str) {
    let error = params.fit_columns(columns, target).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn data() {
    let check =
        |columns: &[&[f64]], target: &[f64], expected: &str| check(columns, target, Default::default(), expected);
    let finite = "drop or fill such rows before training";
    check(&[], &[], "the data has no feature columns: pass at least one");
    check(&[], &[1.0], "the data has no feature columns: pass at least one");
    check(&[&[]], &[], "the data has no rows: pass at least one");
    check(&[&[1.0]], &[], "the target has 0 rows where 1 are expected");
    check(&[&[1.0], &[1.0, 2.0]], &[1.0], "feature 1 has 2 rows where 1 are expected");
    check(&[&[1.0, f64::NAN]], &[1.0, 2.0], &format!("feature 0 is NaN in row 1: {finite}"));
    check(&[&[f64::NEG_INFINITY]], &[1.0], &format!("feature 0 is -inf in row 0: {finite}"));
    check(&[&[1.0]], &[f64::INFINITY], &format!("the target is inf in row 0: {finite}"));
    check(&[&[1.0]], &[1e121], "the target is 1e121 in row 0, the limit is 2.5822498780869086e120: rescale it");
}

#[test]
fn parameters() {
    let check = |change: fn(&mut RegressionTreeParams), expected| {
        let mut params = RegressionTreeParams::default();
        change(&mut params);
        check(&[&[1.0]], &[1.0], params, expected);
    };
    check(|params| params.min_samples_split = 1, "min_samples_split is 1, it must be at least 2");
    check(|params| params.min_samples_leaf = 0, "min_samples_leaf is 0, it must be at least 1");
    check(|params| params.max_depth = Some(0), "max_depth is 0, it must be at least 1");
    check(|params| params.max_features = Some(0), "max_features is 0, it must be at least 1");
}

#[test]
fn rows() {
    assert!(check_rows(ROWS_MAX).is_ok());
    assert!(matches!(check_rows(ROWS_MAX + 1), Err(TreeError::TooManyRows { .. })));
}

#[test]
fn the_largest_targets_still_split() {
    assert_eq!(TARGET_MAGNITUDE_MAX, 2.0_f64.powi(400));
    let target: Vec<f64> = (0..64).map(|row| TARGET_MAGNITUDE_MAX * if row < 32 { -1.0 } else { 1.0 }).collect();
    let column: Vec<f64> = (0..64).map(f64::from).collect();
    let tree = RegressionTreeParams::default().fit_columns(&[&column], &target).unwrap();
    assert_eq!((tree.leaves(), tree.predict_columns(&[&column]).unwrap()), (2, target));
}
