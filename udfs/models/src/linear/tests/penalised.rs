//! Ridge, lasso and elastic net: known minima, and no lower value nearby.

use sandbar_guest::Features;

use super::super::{ElasticNetModel, ElasticNetParams, LinearModel, LinearParams, RidgeParams};
use super::fit;
use crate::tree::Draws;

fn ridge(alpha: f64, columns: &[&[f64]], target: &[f64]) -> LinearModel {
    let values = columns.concat();
    let features = Features::new(&values, target.len(), target.len(), columns.len());
    RidgeParams { alpha, ..Default::default() }.fit_features(features, target).unwrap()
}

fn elastic_net(params: &ElasticNetParams, columns: &[&[f64]], target: &[f64]) -> ElasticNetModel {
    let values = columns.concat();
    params.fit_features(Features::new(&values, target.len(), target.len(), columns.len()), target).unwrap()
}

const LINE: ([f64; 4], [f64; 4]) = ([0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 5.0, 7.0]);

#[test]
fn ridge_shrinks() {
    // Centred, Σx² is 5 and Σxy 10.
    for (alpha, coefficient) in [(0.0, 2.0), (5.0, 1.0), (15.0, 0.5)] {
        let model = ridge(alpha, &[&LINE.0, &[3.0; 4]], &LINE.1);
        assert_eq!(model.coefficients(), [coefficient, 0.0]);
        assert_eq!(model.intercept(), 4.0 - coefficient * 1.5);
    }
    // Identical features share the effect, for any penalty.
    for alpha in [1e-12, 1e-6, 1.0] {
        let model = ridge(alpha, &[&LINE.0, &LINE.0], &LINE.1);
        let shared = 10.0 / (10.0 + alpha);
        assert!(model.coefficients().iter().all(|c| (c - shared).abs() < 1e-9), "{model:?} is not {shared} at {alpha}");
    }
}

#[test]
fn lasso_thresholds() {
    // The mean of centred x² is 1.25, that of xy 2.5: the coefficient is (2.5 - alpha) / 1.25 above zero.
    for (alpha, coefficient) in [(0.0, 2.0), (1.25, 1.0), (2.5, 0.0), (9.0, 0.0)] {
        let params = ElasticNetParams { alpha, l1_ratio: 1.0, tolerance: 1e-12, ..Default::default() };
        let model = elastic_net(&params, &[&LINE.0], &LINE.1);
        assert!(
            (model.linear.coefficients()[0] - coefficient).abs() < 1e-9,
            "{model:?} is not {coefficient} at {alpha}"
        );
        assert!((model.linear.intercept() - (4.0 - coefficient * 1.5)).abs() < 1e-9);
        assert!(model.converged);
    }
    let unpenalised =
        elastic_net(&ElasticNetParams { fit_intercept: false, ..Default::default() }, &[&[0.0; 2]], &[1.0, 2.0]);
    assert_eq!((unpenalised.linear.coefficients(), unpenalised.linear.intercept()), (&[0.0][..], 0.0));
}

#[test]
fn small_features_beside_large_ones_count() {
    for ratio in [1.0, 1e4, 1e8, 1e12] {
        let (large, small): (Vec<f64>, Vec<f64>) =
            (0..400).map(|row| (ratio * f64::from(row % 20), f64::from(row * 7 % 13))).unzip();
        let target: Vec<f64> = large.iter().zip(&small).map(|(large, small)| large / ratio + 5.0 * small).collect();
        let model = elastic_net(&ElasticNetParams { alpha: 0.01, ..Default::default() }, &[&large, &small], &target);
        let found = model.linear.coefficients();
        assert!((found[1] - 5.0).abs() < 0.05 && (found[0] * ratio - 1.0).abs() < 0.05, "{ratio}: {model:?}");
    }
    let endless = elastic_net(&ElasticNetParams { alpha: 1e308, ..Default::default() }, &[&LINE.0], &LINE.1);
    assert_eq!((endless.linear.coefficients(), endless.linear.intercept()), (&[0.0][..], 4.0));
}

/// With the whole penalty on squares it is ridge, whose weight applies to the sum over rows instead of the mean.
#[test]
fn without_magnitudes_it_is_ridge() {
    let params = ElasticNetParams { alpha: 0.5, l1_ratio: 0.0, tolerance: 1e-14, ..Default::default() };
    let (a, b) = ([0.0, 1.0, 5.0, 2.0, 9.0], [1.0, 3.0, -2.0, 0.5, 4.0]);
    let target = [1.0, 2.0, 0.0, 4.0, 1.0];
    let (found, expected) = (elastic_net(&params, &[&a, &b], &target).linear, ridge(2.5, &[&a, &b], &target));
    for (found, expected) in found.coefficients().iter().zip(expected.coefficients()) {
        assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
    }
}

fn objective(
    params: &ElasticNetParams,
    columns: &[Vec<f64>],
    target: &[f64],
    coefficients: &[f64],
    intercept: f64,
) -> f64 {
    let residual =
        |row: usize| target[row] - intercept - coefficients.iter().zip(columns).map(|(w, c)| w * c[row]).sum::<f64>();
    let squares: f64 = (0..target.len()).map(|row| residual(row).powi(2)).sum();
    let magnitude: f64 = coefficients.iter().map(|w| w.abs()).sum();
    let square: f64 = coefficients.iter().map(|w| w * w).sum();
    squares / (2.0 * target.len() as f64)
        + params.alpha * (params.l1_ratio * magnitude + (1.0 - params.l1_ratio) / 2.0 * square)
}

#[test]
fn nothing_nearby_is_lower() {
    for seed in 0..100 {
        let draws = &mut Draws::stream(seed, 0);
        let rows = 5 + draws.below(600) as usize;
        let columns: Vec<Vec<f64>> =
            (0..4).map(|j| (0..rows).map(|_| 100.0 * j as f64 + draws.unit() * 3.0).collect()).collect();
        let target: Vec<f64> = (0..rows).map(|row| columns[0][row] - columns[1][row] + draws.unit()).collect();
        let slices: Vec<&[f64]> = columns.iter().map(|c| &**c).collect();
        let (alpha, l1_ratio) = (draws.unit(), draws.unit());
        let params =
            ElasticNetParams { alpha, l1_ratio, tolerance: 1e-13, max_iterations: 100_000, ..Default::default() };
        let model = elastic_net(&params, &slices, &target);
        assert!(model.converged, "seed {seed}: {model:?}");
        let (w, intercept) = (model.linear.coefficients(), model.linear.intercept());
        let at = objective(&params, &columns, &target, w, intercept);
        for j in 0..=4 {
            for step in [-1e-3, 1e-3] {
                let (mut w, mut intercept) = (w.to_vec(), intercept);
                *w.get_mut(j).unwrap_or(&mut intercept) += step;
                assert!(
                    objective(&params, &columns, &target, &w, intercept) >= at,
                    "seed {seed}: {j} moved by {step} is lower"
                );
            }
        }
    }
}

#[test]
fn constant_and_dependent_features() {
    let params = ElasticNetParams { alpha: 0.1, tolerance: 1e-12, max_iterations: 100_000, ..Default::default() };
    let model = elastic_net(&params, &[&LINE.0, &[7.0; 4], &LINE.0, &[1e9; 4]], &LINE.1).linear;
    let [a, constant, b, other] = model.coefficients().try_into().unwrap();
    assert!(constant == 0.0 && other == 0.0 && (a - b).abs() < 1e-4 && (a + b - 1.9).abs() < 0.1, "{model:?}");
    let wide: Vec<[f64; 2]> = (0..10).map(|j| [f64::from(j), f64::from(j * j)]).collect();
    let slices: Vec<&[f64]> = wide.iter().map(|column| &column[..]).collect();
    let model = elastic_net(&params, &slices, &[1.0, 2.0]).linear;
    assert!(model.coefficients().iter().all(|w| w.is_finite()), "{model:?}");
    let model = elastic_net(&params, &[&[3.0]], &[5.0]).linear;
    assert_eq!((model.coefficients(), model.intercept()), (&[0.0][..], 5.0));
}

#[test]
fn no_penalty_is_ordinary() {
    let (a, b) = ([0.0, 1.0, 5.0, 2.0, 9.0], [1.0, 3.0, -2.0, 0.5, 4.0]);
    let target = [1.0, 2.0, 0.0, 4.0, 1.0];
    let expected = fit(LinearParams::default(), &[&a, &b], &target).unwrap();
    assert_eq!(ridge(0.0, &[&a, &b], &target), expected);
    let params = ElasticNetParams { alpha: 0.0, tolerance: 1e-15, max_iterations: 10_000, ..Default::default() };
    for (found, expected) in
        elastic_net(&params, &[&a, &b], &target).linear.coefficients().iter().zip(expected.coefficients())
    {
        assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
    }
}

#[test]
fn parameters_out_of_range() {
    let features = Features::new(&[1.0, 2.0], 2, 2, 1);
    let check = |params: ElasticNetParams, expected: &str| {
        assert_eq!(params.fit_features(features, &[1.0, 2.0]).unwrap_err().to_string(), expected);
    };
    let with = ElasticNetParams::default;
    check(ElasticNetParams { alpha: -1.0, ..with() }, "alpha is -1, it must be at least 0 and finite");
    check(ElasticNetParams { l1_ratio: 1.5, ..with() }, "l1_ratio is 1.5, it must be from 0 to 1");
    check(ElasticNetParams { tolerance: f64::NAN, ..with() }, "tolerance is NaN, it must be at least 0 and finite");
    check(ElasticNetParams { max_iterations: 0, ..with() }, "max_iterations is 0, it must be at least 1");
    let wrong = RidgeParams { alpha: f64::INFINITY, ..Default::default() }.fit_features(features, &[1.0, 2.0]);
    assert_eq!(wrong.unwrap_err().to_string(), "alpha is inf, it must be at least 0 and finite");
}
