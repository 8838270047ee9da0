//! Dense algebra on the in-process test host.

use sandbar_guest::dense::{
    DenseError, DenseErrorKind, Dtype, GroupedOptions, Kernel, Tensor, grouped_least_squares, input,
};

#[track_caller]
fn check(found: Result<Tensor, DenseError>, sizes: &[usize], expected: &[f64]) {
    let found = found.unwrap();
    assert_eq!(found.sizes(), sizes);
    let values: Vec<f64> = found.to_vec().unwrap();
    assert!(values.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 1e-12), "{values:?}");
}

#[track_caller]
fn fails<T>(found: Result<T, DenseError>, kind: DenseErrorKind) {
    assert_eq!(found.err().map(|error| error.kind), Some(kind));
}

#[test]
fn products_and_systems() {
    let first = Tensor::new(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let second = Tensor::new(&[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]).unwrap();
    check(first.dot(&second), &[2, 2], &[4.0, 5.0, 10.0, 11.0]);
    check(first.dot_transposed(&first), &[2, 2], &[14.0, 32.0, 32.0, 77.0]);
    check(first.gram(), &[3, 3], &[17.0, 22.0, 27.0, 22.0, 29.0, 36.0, 27.0, 36.0, 45.0]);
    let system = Tensor::new(&[2, 2], &[4.0, 2.0, 2.0, 3.0]).unwrap();
    let right = Tensor::new(&[2, 1], &[2.0, 5.0]).unwrap();
    check(system.solve_cholesky(&right), &[2, 1], &[-0.5, 2.0]);
    // A line through (0, 1), (1, 3), (2, 5).
    let rows = Tensor::new(&[3, 2], &[1.0, 0.0, 1.0, 1.0, 1.0, 2.0]).unwrap();
    let right = Tensor::new(&[3, 1], &[1.0, 3.0, 5.0]).unwrap();
    check(rows.solve_least_squares(&right), &[2, 1], &[1.0, 2.0]);
    let none = Tensor::new(&[2, 2], &[1.0, 2.0, 2.0, 1.0]).unwrap();
    let right = Tensor::new(&[2, 1], &[1.0, 1.0]).unwrap();
    assert!(none.solve_cholesky(&right).unwrap().to_vec::<f64>().unwrap().iter().all(|value| value.is_nan()));
}

#[test]
fn values_of_tensors() {
    let six = Tensor::new(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    check(six.reshaped(&[3, 2]), &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    check(Tensor::map(&(input(0) * 2.0 - 1.0).max(2.0), &[&six]), &[2, 3], &[2.0, 3.0, 5.0, 7.0, 9.0, 11.0]);
    check(six.sum(0), &[3], &[5.0, 7.0, 9.0]);
    check(Tensor::zeros(Dtype::F64, &[2]), &[2], &[0.0, 0.0]);
    let mut two = [0.0; 2];
    six.read(3, &mut two).unwrap();
    assert_eq!(two, [4.0, 5.0]);
    let [columns, target] = [[0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 4.0, 4.0]];
    let fitted = grouped_least_squares(&columns, &target, &[[0, 2], [2, 4]], None, GroupedOptions::default()).unwrap();
    for (group, expected) in [(0, [2.0, 1.0]), (1, [0.0, 4.0])] {
        let (slopes, intercept) = fitted.group(group).unwrap();
        assert!((slopes[0] - expected[0]).abs() + (intercept - expected[1]).abs() < 1e-12, "{slopes:?} {intercept}");
    }
}

#[test]
fn invalid_operations_are_errors() {
    let six = Tensor::new(&[2, 3], &[1.0; 6]).unwrap();
    fails(Tensor::new(&[2, 3], &[1.0; 5]), DenseErrorKind::Shape);
    fails(six.dot(&six), DenseErrorKind::Shape);
    fails(six.reshaped(&[4]), DenseErrorKind::Shape);
    fails(six.read(5, &mut [0.0; 2]), DenseErrorKind::Shape);
    fails(Kernel::new("@compute"), DenseErrorKind::NoGpu);
    // Tensors are limited to 1 GiB; dropped tensors free their memory.
    let large = |count: usize| Tensor::zeros(Dtype::F64, &[count << 20]);
    fails(large(129), DenseErrorKind::Memory);
    drop((large(64).unwrap(), large(63).unwrap()));
    drop(large(127).unwrap());
}
