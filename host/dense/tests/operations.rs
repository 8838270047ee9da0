//! The processor's results of operations.

use sandbar_dense::{Spec, Tensor, cpu};

#[test]
fn the_processor_computes_reference_results() {
    let taken = dense_cases::check(4000, |case| {
        let inputs: Vec<Tensor<'_>> =
            case.inputs.iter().map(|(spec, values)| Tensor::new(*spec, values.values()).unwrap()).collect();
        let specs: Vec<Spec> = case.inputs.iter().map(|(spec, _)| *spec).collect();
        Some(case.op.outputs(&specs).unwrap().into_iter().zip(cpu::run(&case.op, &inputs).unwrap()).collect())
    });
    assert!(taken > 0);
}
