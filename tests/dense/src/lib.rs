//! Operations beside what their words say, done the slow way in f64: on tensors of all types and sizes, empty ones, and with
//! NaN and infinities among the values. Each device is tried by the same cases.
//!
//! `SANDBAR_SEED` is where the seeds of cases begin, and `SANDBAR_CASES` is how many there are.

mod cases;
mod naive;

pub use cases::{Case, Random};
use half::f16;
use sandbar_dense::{Dtype, Op, Owned, Spec};

/// What a result may be off by, in units of its type's last place at the size of the largest values that it was summed of.
const ULPS_MAX: f64 = 64.0;

/// Compares what a device gives of many random operations, as many as `usual` if nothing else is said; of those that it
/// does not take it gives none. Says how many it took.
///
/// # Panics
/// When something else comes of one, with its seed.
pub fn check(usual: u64, mut run: impl FnMut(&Case) -> Option<Vec<(Spec, Owned)>>) -> u64 {
    let number = |name: &str, usual: u64| std::env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let first = number("SANDBAR_SEED", u64::from(std::process::id()) << 32);
    let mut taken = 0;
    for seed in first..first + number("SANDBAR_CASES", usual) {
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
                let words =
                    || format!("SANDBAR_SEED={seed} SANDBAR_CASES=1: {case}: {spec} at {at}: {found}, not {value}");
                assert!(is_close(spec.dtype, *found, *value, *size), "{}", words());
            }
        }
    }
    taken
}

/// Of centres that are as near as rounding can tell, any may be the nearest.
fn as_near(case: &Case, found: &Owned, expected: &mut [naive::Found]) {
    let values: Vec<Vec<f64>> = case.inputs.iter().map(|(_, values)| wide(values)).collect();
    let width = case.inputs[0].0.shape.sizes()[1] as usize;
    let [places, squares] = expected else { panic!("two results") };
    for (point, place) in wide(found).into_iter().enumerate().filter(|(_, place)| *place < values[1].len() as f64) {
        let square = naive::square(&values, width, point, place as usize);
        // What is taken from each other is as large as this.
        let size = 16.0 * width as f64;
        if is_close(Dtype::F32, square, squares[point].0, size) {
            // The one that is nearest may be far nearer than this one: what is looked for is told by this one's size.
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

fn wide(values: &Owned) -> Vec<f64> {
    match values {
        Owned::F16(values) => values.iter().map(|value| value.to_f64()).collect(),
        Owned::F32(values) => values.iter().copied().map(f64::from).collect(),
        Owned::F64(values) => values.clone(),
        Owned::U32(values) => values.iter().copied().map(f64::from).collect(),
    }
}
