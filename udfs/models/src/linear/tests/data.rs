//! Rejected data and its error messages.

use sandbar_guest::Features;

use super::{LinearParams, fit};

fn check(columns: &[&[f64]], target: &[f64], expected: &str) {
    assert_eq!(fit(LinearParams::default(), columns, target).unwrap_err().to_string(), expected);
}

#[test]
fn refused() {
    let finite = "drop or fill such rows before training";
    let large = "sums of squares overflow: rescale features and target to magnitudes below 1e150";
    check(&[], &[], "the data has no rows to train on: pass at least one");
    check(&[&[]], &[], "the data has no rows to train on: pass at least one");
    check(&[&[1.0, f64::NAN]], &[1.0, 2.0], &format!("feature 0 is NaN in row 1: {finite}"));
    check(&[&[1.0], &[f64::INFINITY]], &[1.0], &format!("feature 1 is inf in row 0: {finite}"));
    check(&[&[1.0, 2.0]], &[1.0, f64::NEG_INFINITY], &format!("the target is -inf in row 1: {finite}"));
    check(&[&[1e200, 2e200]], &[1.0, 2.0], large);
    check(&[&[1e-100, 2e-100]], &[1e210, 2e210], large);
    let ragged = LinearParams::default().fit_features(Features::new(&[1.0, 2.0], 2, 2, 1), &[1.0]);
    assert_eq!(ragged.unwrap_err().to_string(), "the target has 1 rows where the features have 2");
}
