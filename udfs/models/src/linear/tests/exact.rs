//! Data on a line or a plane with exact sums: the fit must be exact as well.

use super::{LinearParams, ORIGIN, fit};

fn check(params: LinearParams, columns: &[&[f64]], target: &[f64], coefficients: &[f64], intercept: f64) {
    let model = fit(params, columns, target).unwrap();
    assert_eq!((model.coefficients(), model.intercept()), (coefficients, intercept), "{columns:?} {target:?}");
}

#[test]
fn lines_and_planes() {
    let with = LinearParams::default;
    check(with(), &[&[0.0, 1.0, 2.0, 3.0]], &[1.0, 3.0, 5.0, 7.0], &[2.0], 1.0);
    check(with(), &[&[1.0, 3.0]], &[5.0, 1.0], &[-2.0], 7.0);
    check(with(), &[&[0.0, 1.0, 2.0]], &[0.0, 3.0, 0.0], &[0.0], 1.0);
    check(with(), &[], &[1.0, 2.0, 6.0], &[], 3.0);
    check(with(), &[&[0.0, 2.0, 0.0, 2.0], &[0.0, 0.0, 4.0, 4.0]], &[1.0, 5.0, 13.0, 17.0], &[2.0, 3.0], 1.0);
    check(ORIGIN, &[&[1.0, 2.0]], &[2.0, 4.0], &[2.0], 0.0);
    check(ORIGIN, &[&[2.0, 0.0], &[0.0, 4.0]], &[2.0, 2.0], &[1.0, 0.5], 0.0);
    check(ORIGIN, &[], &[1.0], &[], 0.0);
}

#[test]
fn constant_features_get_zero() {
    let with = LinearParams::default;
    let x: &[f64] = &[0.0, 1.0, 2.0, 3.0];
    let y: &[f64] = &[1.0, 3.0, 5.0, 7.0];
    check(with(), &[&[7.0; 4], x], y, &[0.0, 2.0], 1.0);
    check(with(), &[x, &[0.1; 4]], y, &[2.0, 0.0], 1.0);
    check(with(), &[&[0.1; 10]], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0], &[0.0], 5.5);
    check(with(), &[&[0.0; 4], x, &[-1e300; 4]], y, &[0.0, 2.0, 0.0], 1.0);
    // 0.1 + 0.2 differs from 0.3 in the last bit.
    check(with(), &[&[0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2]], &[1.0, 2.0, 1.0, 2.0], &[0.0], 1.5);
    // Without an intercept, a constant is a feature like any other.
    check(ORIGIN, &[&[2.0; 4]], y, &[2.0], 0.0);
    check(ORIGIN, &[&[0.0; 2], &[1.0, 2.0]], &[3.0, 6.0], &[0.0, 3.0], 0.0);
}

#[test]
fn one_row_is_its_own_mean() {
    check(LinearParams::default(), &[&[3.0], &[4.0]], &[5.0], &[0.0, 0.0], 5.0);
}
