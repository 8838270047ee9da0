use sandbar_guest::Features;

use super::{LogisticModel, LogisticParams};
use crate::tree::Draws;

fn fit(params: &LogisticParams, columns: &[&[f64]], target: &[f64]) -> Result<LogisticModel, String> {
    let values = columns.concat();
    let features = Features::new(&values, target.len(), target.len(), columns.len());
    params.fit_features(features, target).map_err(|e| e.to_string())
}

/// The gradient of the objective, computed naively, with the intercept's component last. It is zero at the minimum,
/// because the objective is convex.
fn gradient(columns: &[&[f64]], target: &[f64], alpha: f64, model: &LogisticModel) -> Vec<f64> {
    let (w, intercept) = (model.log_odds.coefficients(), model.log_odds.intercept());
    let odds = |row: usize| intercept + columns.iter().zip(w).map(|(column, w)| column[row] * w).sum::<f64>();
    let errors: Vec<f64> = target.iter().enumerate().map(|(row, y)| 1.0 / (1.0 + (-odds(row)).exp()) - y).collect();
    let along = |column: &[f64]| column.iter().zip(&errors).map(|(x, error)| x * error).sum::<f64>();
    columns.iter().zip(w).map(|(column, w)| along(column) + alpha * w).chain([errors.iter().sum()]).collect()
}

#[test]
fn random_data() {
    for seed in 0..200 {
        let draws = &mut Draws::stream(seed, 0);
        let rows = 20 + draws.below(700) as usize;
        let scales = [1.0, 1e-3, 1e4].map(|scale| scale * (0.5 + draws.unit()));
        let column = |scale: f64, draws: &mut Draws| (0..rows).map(|_| scale * (10.0 + 4.0 * draws.unit())).collect();
        let columns: Vec<Vec<f64>> = scales.iter().map(|scale| column(*scale, draws)).collect();
        let slices: Vec<&[f64]> = columns.iter().map(|c| &**c).collect();
        let odds = |row: usize| columns[0][row] / scales[0] - 0.5 * columns[1][row] / scales[1] - 6.0;
        let target: Vec<f64> =
            (0..rows).map(|row| f64::from(u8::from(draws.unit() < 1.0 / (1.0 + (-odds(row)).exp())))).collect();
        for alpha in [1e-6, 0.5, 20.0] {
            let model = fit(&LogisticParams { alpha, ..Default::default() }, &slices, &target).unwrap();
            assert!(model.converged && model.iterations < 30, "seed {seed}: {model:?}");
            for (g, scale) in gradient(&slices, &target, alpha, &model).iter().zip(scales.iter().chain([&1.0])) {
                assert!(g.abs() < 1e-6 * rows as f64 * scale, "seed {seed}, alpha {alpha}: gradient {g} at {model:?}");
            }
        }
    }
}

/// One binary feature: the odds follow from the counts.
#[test]
fn counted_odds() {
    let x = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0];
    let target = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0];
    let model = fit(&LogisticParams { alpha: 0.0, ..Default::default() }, &[&x], &target).unwrap();
    let (slope, intercept) = (model.log_odds.coefficients()[0], model.log_odds.intercept());
    assert!(
        (intercept - (1.0_f64 / 3.0).ln()).abs() < 1e-9 && (slope + intercept - 2.0_f64.ln()).abs() < 1e-9,
        "{model:?}"
    );
}

/// Features that separate the outcomes without error have no best slope.
#[test]
fn separable() {
    let (x, target) = ([0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 1.0, 1.0]);
    let model = fit(&LogisticParams { alpha: 0.0, ..Default::default() }, &[&x], &target).unwrap();
    assert!(!model.converged && model.log_odds.coefficients()[0] > 10.0, "{model:?}");
    let model = fit(&LogisticParams::default(), &[&x], &target).unwrap();
    assert!(model.converged && (0.1..2.0).contains(&model.log_odds.coefficients()[0]), "{model:?}");
}

#[test]
fn predicts_probabilities_of_one() {
    // Symmetric about 0.5, for either majority class.
    for target in [[0.0, 0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0]] {
        let x = [0.0, 1.0, 2.0, 3.0, 4.0];
        let model = fit(&LogisticParams::default(), &[&x], &target).unwrap();
        let mut out = [0.0; 5];
        model.predict_into(Features::new(&x, 5, 5, 1), &mut out);
        assert!(out.is_sorted() && out.iter().all(|p| (0.0..=1.0).contains(p)), "{out:?}");
        assert!((out.iter().sum::<f64>() - target.iter().sum::<f64>()).abs() < 1e-6, "{out:?} for {target:?}");
    }
    let log_odds = crate::linear::LinearModel::new(0.0, vec![1e300]);
    let sure = LogisticModel { log_odds, iterations: 0, converged: true };
    let mut out = [0.5; 2];
    sure.predict_into(Features::new(&[-1.0, 1.0], 2, 2, 1), &mut out);
    assert_eq!(out, [0.0, 1.0]);
}

#[test]
fn constant_features_and_offsets() {
    let target = [0.0, 0.0, 1.0, 0.0, 1.0, 1.0];
    let x = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    let far = x.map(|x| 1e9 + x);
    let alone = fit(&LogisticParams::default(), &[&x], &target).unwrap();
    let model = fit(&LogisticParams::default(), &[&far, &[7.0; 6]], &target).unwrap();
    let (found, expected) = (model.log_odds.coefficients(), alone.log_odds.coefficients());
    assert!((found[0] - expected[0]).abs() < 1e-6 && found[1] == 0.0, "{found:?} is not {expected:?}");
}

#[test]
fn linfa_traits_agree() {
    use linfa::traits::{Fit, Predict};
    let (x, target) = (ndarray::array![[0.0], [1.0], [2.0], [3.0]], ndarray::array![0.0, 1.0, 0.0, 1.0]);
    let model = LogisticParams::default().fit(&linfa::Dataset::new(x.clone(), target)).unwrap();
    assert_eq!(model, fit(&LogisticParams::default(), &[&[0.0, 1.0, 2.0, 3.0]], &[0.0, 1.0, 0.0, 1.0]).unwrap());
    let mut out = [0.0; 4];
    model.predict_into(Features::new(&[0.0, 1.0, 2.0, 3.0], 4, 4, 1), &mut out);
    assert_eq!(Predict::predict(&model, &x).to_vec(), out);
}

#[test]
fn refused() {
    let check = |params: &LogisticParams, columns: &[&[f64]], target: &[f64], expected: &str| {
        assert_eq!(fit(params, columns, target).unwrap_err(), expected);
    };
    let with = LogisticParams::default();
    check(&with, &[&[1.0, 2.0]], &[0.0, 2.0], "the target is 2 in row 1: it must be 0 or 1");
    check(&with, &[&[1.0, 2.0]], &[1.0, 1.0], "the target is 1 in all 2 rows: there must be both 0 and 1");
    check(&with, &[&[]], &[], "the data has no rows to train on: pass at least one");
    check(
        &LogisticParams { alpha: -1.0, ..with.clone() },
        &[&[1.0]],
        &[1.0],
        "alpha is -1, it must be at least 0 and finite",
    );
    check(
        &LogisticParams { tolerance: f64::NAN, ..with.clone() },
        &[&[1.0]],
        &[1.0],
        "tolerance is NaN, it must be at least 0 and finite",
    );
    check(
        &LogisticParams { max_iterations: 0, ..with },
        &[&[1.0]],
        &[1.0],
        "max_iterations is 0, it must be at least 1",
    );
}
