//! Compares operations with a slow reference implementation in f64: on tensors of all types and sizes, including empty
//! ones, with NaN and infinities. All devices run the same cases.
//!
//! `SANDBAR_SEED` is the first seed, and `SANDBAR_CASES` the number of cases.

mod cases;
mod naive;

pub use cases::{Case, Random};
use half::f16;
use sandbar_dense::{Dtype, Op, OwnedValues, Spec};
use sandbar_seeds::{chosen_seed, number_from_env};

/// Maximum error of a result, in units in the last place of its type at the magnitude of its largest summand.
const ULPS_MAX: f64 = 64.0;

/// Compares the results of a device for random operations, `usual` of them by default. The device returns `None` for
/// operations that it does not support. Returns the number of supported ones.
///
/// # Panics
/// Panics with the seed of a case whose result differs.
pub fn check(usual: u64, mut run: impl FnMut(&Case) -> Option<Vec<(Spec, OwnedValues)>>) -> u64 {
    let first = chosen_seed().unwrap_or(u64::from(std::process::id()) << 32);
    let mut taken = 0;
    for seed in first..first + number_from_env("SANDBAR_CASES").unwrap_or(usual) {
        let case = Case::random(&mut Random::new(seed));
        let Some(found) = run(&case) else { continue };
        taken += 1;
        let mut expected = naive::run(&case);
        if case.op == Op::Nearest {
            as_near(&case, &found[0].1, &mut expected);
        }
        assert_eq!(found.len(), expected.len(), "SANDBAR_SEED={seed} SANDBAR_CASES=1: {case}");
        for ((spec, values), expected) in found.iter().zip(&expected) {
            let found = wide(values);
            assert_eq!(found.len(), expected.len(), "SANDBAR_SEED={seed} SANDBAR_CASES=1: {case}: {spec}");
            for (at, (found, (value, size))) in found.iter().zip(expected).enumerate() {
                let limit_text =
                    || format!("SANDBAR_SEED={seed} SANDBAR_CASES=1: {case}: {spec} at {at}: {found}, not {value}");
                assert!(is_close(spec.dtype, *found, *value, *size), "{}", limit_text());
            }
        }
    }
    taken
}

/// Accepts any of several centres that are equally near within rounding.
fn as_near(case: &Case, found: &OwnedValues, expected: &mut [naive::ReferenceValues]) {
    let values: Vec<Vec<f64>> = case.inputs.iter().map(|(_, values)| wide(values)).collect();
    let width = case.inputs[0].0.shape.sizes()[1] as usize;
    let [places, squares] = expected else { panic!("two results") };
    for (point, place) in wide(found).into_iter().enumerate().filter(|(_, place)| *place < values[1].len() as f64) {
        let square = naive::square(&values, width, point, place as usize);
        // Magnitude of the values that are subtracted.
        let size = 16.0 * width as f64;
        if is_close(Dtype::F32, square, squares[point].0, size) {
            // The nearest centre may be much nearer than this one: the magnitude of this one's distance determines the
            // tolerance.
            (places[point].0, squares[point]) = (place, (square, square));
        }
    }
}

fn is_close(dtype: Dtype, found: f64, value: f64, size: f64) -> bool {
    let (rounding, largest) = match dtype {
        Dtype::F16 => (f64::from(f16::EPSILON) * value.abs() + f64::from(f32::EPSILON) * size, f64::from(f16::MAX)),
        Dtype::F32 => (f64::from(f32::EPSILON) * size, f64::from(f32::MAX)),
        Dtype::F64 => (f64::EPSILON * size, f64::MAX),
        Dtype::U32 => return found == value,
    };
    if value.is_nan() || value.is_infinite() {
        return found == value || found.is_nan() == value.is_nan() && value.is_nan();
    }
    let smallest = if dtype == Dtype::F16 { f64::from(f16::MIN_POSITIVE) } else { f64::from(f32::MIN_POSITIVE) };
    (found - value).abs() <= ULPS_MAX * rounding + smallest || found.abs() >= largest && size >= largest
}

fn wide(values: &OwnedValues) -> Vec<f64> {
    match values {
        OwnedValues::F16(values) => values.iter().map(|value| value.to_f64()).collect(),
        OwnedValues::F32(values) => values.iter().copied().map(f64::from).collect(),
        OwnedValues::F64(values) => values.clone(),
        OwnedValues::U32(values) => values.iter().copied().map(f64::from).collect(),
    }
}
