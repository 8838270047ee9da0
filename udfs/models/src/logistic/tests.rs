use sandbar_guest::Features;

use super::{LogisticModel, LogisticParams};
use crate::tree::Draws;

fn fit(params: &LogisticParams, columns: &[&[f64]], target: &[f64]) -> Result<LogisticModel, String> {
    let values = columns.concat();
    let features = Features::new(&values, target.len(), target.len(), columns.len());
    params.fit_features(features, target).map_err(|e| e.to_string())
}

fn precise() -> LogisticParams {
    LogisticParams { tolerance: 1e-9, max_iterations: 1000, ..Default::default() }
}

/// Newton's method on the same objective, intercept last.
fn newton(columns: &[&[f64]], target: &[f64], alpha: f64) -> Vec<f64> {
    let width = columns.len() + 1;
    let ones = vec![1.0; target.len()];
    let columns: Vec<&[f64]> = columns.iter().copied().chain([&*ones]).collect();
    let mut weights = vec![0.0; width];
    for _ in 0..50 {
        let mut system = vec![vec![0.0; width + 1]; width];
        for (row, y) in target.iter().enumerate() {
            let odds: f64 = columns.iter().zip(&weights).map(|(column, w)| column[row] * w).sum();
            let p = 1.0 / (1.0 + (-odds).exp());
            for j in 0..width {
                for k in 0..width {
                    system[j][k] += p * (1.0 - p) * columns[j][row] * columns[k][row];
                }
                system[j][width] += (y - p) * columns[j][row];
            }
        }
        for j in 0..width - 1 {
            system[j][j] += alpha;
            system[j][width] -= alpha * weights[j];
        }
        for j in 0..width {
            for i in (0..width).filter(|i| *i != j) {
                let factor = system[i][j] / system[j][j];
                #[allow(clippy::needless_range_loop, reason = "two rows of one matrix are used at once")]
                for k in j..=width {
                    system[i][k] -= factor * system[j][k];
                }
            }
        }
        for j in 0..width {
            weights[j] += system[j][width] / system[j][j];
        }
    }
    weights
}

#[test]
fn agrees_with_newton() {
    for seed in 0..30 {
        let draws = &mut Draws::stream(seed, 0);
        let rows = 40 + draws.below(200) as usize;
        let columns: Vec<Vec<f64>> =
            (0..3).map(|j| (0..rows).map(|_| 10.0 * j as f64 + draws.unit() * 4.0).collect()).collect();
        let slices: Vec<&[f64]> = columns.iter().map(|c| &**c).collect();
        let odds = |row: usize| columns[0][row] - 0.5 * columns[1][row] + 3.0;
        let target: Vec<f64> =
            (0..rows).map(|row| f64::from(u8::from(draws.unit() < 1.0 / (1.0 + (-odds(row)).exp())))).collect();
        for alpha in [0.5, 1.0, 20.0] {
            let model = fit(&LogisticParams { alpha, ..precise() }, &slices, &target).unwrap();
            assert!(model.gradient() < 1e-6, "seed {seed}: gradient {}", model.gradient());
            let found = model
                .log_odds()
                .coefficients()
                .iter()
                .chain([model.log_odds().intercept()].iter())
                .copied()
                .collect::<Vec<_>>();
            for (found, wanted) in found.iter().zip(newton(&slices, &target, alpha)) {
                assert!((found - wanted).abs() < 1e-4 * wanted.abs().max(1.0), "seed {seed}: {found} is not {wanted}");
            }
        }
    }
}

#[test]
fn predicts_probabilities_of_one() {
    // Symmetric about 0.5, whichever class has more rows.
    for target in [[0.0, 0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0]] {
        let x = [0.0, 1.0, 2.0, 3.0, 4.0];
        let model = fit(&precise(), &[&x], &target).unwrap();
        let mut out = [0.0; 5];
        model.predict_into(Features::new(&x, 5, 5, 1), &mut out);
        assert!(out.is_sorted() && out.iter().all(|p| (0.0..=1.0).contains(p)), "{out:?}");
        assert!((out.iter().sum::<f64>() - target.iter().sum::<f64>()).abs() < 1e-6, "{out:?} for {target:?}");
    }
    let sure = LogisticModel { log_odds: crate::linear::LinearModel::new(0.0, vec![1e300]), gradient: 0.0 };
    let mut out = [0.5; 2];
    sure.predict_into(Features::new(&[-1.0, 1.0], 2, 2, 1), &mut out);
    assert_eq!(out, [0.0, 1.0]);
}

#[test]
fn constant_features_and_offsets() {
    let target = [0.0, 0.0, 1.0, 0.0, 1.0, 1.0];
    let x = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    let far = x.map(|x| 1e9 + x);
    let alone = fit(&precise(), &[&x], &target).unwrap();
    let model = fit(&precise(), &[&far, &[7.0; 6]], &target).unwrap();
    let (found, wanted) = (model.log_odds().coefficients(), alone.log_odds().coefficients());
    assert!((found[0] - wanted[0]).abs() < 1e-6 && found[1] == 0.0, "{found:?} is not {wanted:?}");
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
        &LogisticParams { tolerance: 0.0, ..with.clone() },
        &[&[1.0]],
        &[1.0],
        "tolerance is 0, it must be more than 0 and finite",
    );
    check(
        &LogisticParams { max_iterations: 0, ..with },
        &[&[1.0]],
        &[1.0],
        "max_iterations is 0, it must be at least 1",
    );
}
