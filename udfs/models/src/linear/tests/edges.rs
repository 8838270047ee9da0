//! Dependent features, offsets and scales: how close the fit is to the known solution.

use super::{LinearParams, ORIGIN, fit};

/// Checks the coefficients and the intercept to `digits` digits of the largest one.
fn check(params: LinearParams, columns: &[&[f64]], target: &[f64], coefficients: &[f64], intercept: f64, digits: i32) {
    let model = fit(params, columns, target).unwrap();
    let found = model.coefficients().iter().chain([&model.intercept()]).copied().collect::<Vec<_>>();
    let expected = coefficients.iter().chain([&intercept]).copied().collect::<Vec<_>>();
    let largest = coefficients.iter().fold(f64::MIN_POSITIVE, |largest, c| largest.max(c.abs()));
    let close = |(found, expected): (&f64, &f64)| {
        (found - expected).abs() <= expected.abs().max(largest) * 10_f64.powi(-digits)
    };
    assert!(found.iter().zip(&expected).all(close), "{found:?} is not {expected:?} to {digits} digits");
}

fn column(rows: usize, value: impl Fn(f64) -> f64) -> Vec<f64> {
    (0..rows).map(|row| value(row as f64)).collect()
}

#[test]
fn dependent_features_share() {
    let with = LinearParams::default;
    let x = column(20, |row| row);
    let y = column(20, |row| 10.0 * row + 3.0);
    let times = |factor: f64| column(20, |row| factor * row);
    // The shortest of many solutions, as with the pseudo-inverse.
    check(with(), &[&x, &x], &y, &[5.0, 5.0], 3.0, 14);
    check(with(), &[&x, &times(2.0)], &y, &[2.0, 4.0], 3.0, 14);
    check(with(), &[&x, &times(0.1)], &y, &[10.0 / 1.01, 1.0 / 1.01], 3.0, 13);
    check(with(), &[&x, &times(-1.0)], &y, &[5.0, -5.0], 3.0, 14);
    // An additional constant has no effect.
    check(with(), &[&x, &column(20, |row| row + 100.0), &[1.0; 20]], &y, &[5.0, 5.0, 0.0], -497.0, 13);
    let squares = column(20, |row| row * row);
    let both = column(20, |row| row + row * row);
    let y = column(20, |row| 3.0 * row + 3.0 * row * row);
    check(with(), &[&x, &squares, &both], &y, &[1.0, 1.0, 2.0], 0.0, 12);
    check(ORIGIN, &[&x, &squares, &both], &y, &[1.0, 1.0, 2.0], 0.0, 12);
}

#[test]
fn dependent_features_share_whatever_their_offset() {
    // Ages and years of birth, for the current year and for larger ones.
    for (rows, year) in [(20, 2020.0), (20, 1e4), (100, 1e4), (1000, 1e6), (5000, 1.6e9)] {
        for draw in 0..20 {
            let step = |row: f64| (row * 37.0 + f64::from(draw) * 11.0) % 83.0;
            let ages = column(rows, step);
            let births = column(rows, |row| year - step(row));
            let target = column(rows, |row| 3.0 * step(row) + 7.0);
            // As precise as the intercept, which the offset makes equally large.
            let expected = [1.5, -1.5, 7.0 + 1.5 * year];
            let model = fit(LinearParams::default(), &[&ages, &births], &target).unwrap();
            let found = [model.coefficients()[0], model.coefficients()[1], model.intercept()];
            let close = |i: usize| (found[i] - expected[i]).abs() <= 1e-9 * expected[i].abs();
            assert!((0..3).all(close), "{rows} rows, {year}, draw {draw}: {found:?}");
        }
    }
}

#[test]
fn fewer_rows_than_features_whatever_their_offset() {
    for (rows, features) in [(5, 10), (20, 40)] {
        for offset in [0.0, 2020.0, 1e6] {
            let value = |row: f64, j: usize| (row * 31.0 + (j * j * 17 + 5 * j) as f64 * (row + 2.0)) % 97.0;
            let columns: Vec<_> = (0..features).map(|j| column(rows, |row| offset + value(row, j))).collect();
            let columns: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
            let target = column(rows, |row| (row * 53.0) % 100.0);
            let model = fit(LinearParams::default(), &columns, &target).unwrap();
            for (row, target) in target.iter().enumerate() {
                let terms = model.coefficients().iter().zip(&columns).map(|(c, column)| c * column[row]);
                let predicted = model.intercept() + terms.sum::<f64>();
                assert!((predicted - target).abs() < 1e-6, "{rows}×{features}, {offset}: {predicted} is not {target}");
            }
            let longest = model.coefficients().iter().fold(0.0, |longest: f64, c| longest.max(c.abs()));
            assert!(longest < 10.0, "{rows}×{features}, {offset}: {longest}");
        }
    }
}

#[test]
fn fewer_rows_than_features() {
    // A plane through (1, 0), (0, 1) and their midpoint: its gradient points along (1, -1).
    check(LinearParams::default(), &[&[1.0, 0.0], &[0.0, 1.0]], &[3.0, 1.0], &[1.0, -1.0], 2.0, 14);
    check(LinearParams::default(), &[&[1.0, 0.0], &[0.0, 1.0], &[5.0, 5.0]], &[3.0, 1.0], &[1.0, -1.0, 0.0], 2.0, 14);
    check(ORIGIN, &[&[3.0], &[4.0]], &[25.0], &[3.0, 4.0], 0.0, 14);
    let wide: Vec<Vec<f64>> = (0..12).map(|j| column(4, |row| f64::from(u8::from(row as usize == j)))).collect();
    let slices: Vec<&[f64]> = wide.iter().map(|c| &**c).collect();
    let expected = [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    check(ORIGIN, &slices, &[1.0, 2.0, 3.0, 4.0], &expected, 0.0, 14);
}

#[test]
fn nearly_dependent_features() {
    let x = column(1000, |row| (row * 0.7).sin());
    // 2⁻²⁰ and 2⁻³⁰: the difference between the two columns survives to 32 and 22 bits.
    for (difference, digits) in [(9.5367431640625e-7, 9), (9.313225746154785e-10, 6)] {
        let other: Vec<f64> = x.iter().zip(0..).map(|(x, row)| x + difference * f64::from(row).cos()).collect();
        let y: Vec<f64> = x.iter().zip(&other).map(|(x, other)| 2.0 * x - 3.0 * other).collect();
        check(LinearParams::default(), &[&x, &other], &y, &[2.0, -3.0], 0.0, digits);
    }
}

#[test]
fn offsets_cost_no_digits() {
    for rows in [10, 255, 256, 257, 5000] {
        let x = column(rows, |row| 1e9 + row);
        let y = column(rows, |row| 4e9 + 0.001953125 * row);
        let model = fit(LinearParams::default(), &[&x], &y).unwrap();
        assert_eq!(model.coefficients(), [0.001953125], "{rows} rows");
        // Values in any order, near the offset or far from it.
        let x = column(rows, |row| -1e12 + (row * 31.0 % 17.0));
        let y = column(rows, |row| 1e12 - 3.0 * (row * 31.0 % 17.0));
        check(LinearParams::default(), &[&x], &y, &[-3.0], 1e12 - 3e12, 13);
    }
}

/// The sums are centred at the first rows, which are far from the others.
#[test]
fn a_first_block_unlike_the_others() {
    let x = column(10_000, |row| if row < 256.0 { 1e6 + row } else { row * 0.7 % 1.0 });
    let y: Vec<f64> = x.iter().map(|x| 3.0 * x + 1.0).collect();
    check(LinearParams::default(), &[&x], &y, &[3.0], 1.0, 9);
    let steps = column(10_000, |row| (row / 256.0).floor() * 1e5 + row % 3.0);
    let y: Vec<f64> = steps.iter().map(|x| 3.0 * x + 1.0).collect();
    check(LinearParams::default(), &[&steps], &y, &[3.0], 1.0, 9);
}

#[test]
fn scales_do_not_matter() {
    let a = column(50, |row| (row * 1.3).sin());
    let b = column(50, |row| (row * 0.9).cos());
    let y: Vec<f64> = a.iter().zip(&b).map(|(a, b)| 2.0 * a + 5.0 * b).collect();
    for (scale_a, scale_b) in [(1e-100, 1.0), (1e12, 1e-12), (1e140, 1e140)] {
        let scaled = |column: &[f64], scale: f64| column.iter().map(|v| v * scale).collect::<Vec<_>>();
        let model = fit(LinearParams::default(), &[&scaled(&a, scale_a), &scaled(&b, scale_b)], &y).unwrap();
        for (found, expected) in model.coefficients().iter().zip([2.0 / scale_a, 5.0 / scale_b]) {
            assert!(
                (found / expected - 1.0).abs() < 1e-13,
                "{found} is not {expected} at scales {scale_a} and {scale_b}"
            );
        }
    }
}
