//! Validation of operations and shapes, including hostile ones.

use sandbar_dense::{Binary, Dtype, GroupedOptions, Map, Op, Reduction, Shape, Spec, Step, Unary};

/// Parses a tensor spec like `f32[2, 3]`.
fn spec(text: &str) -> Spec {
    let (dtype, sizes) = text.trim_end_matches(']').split_once('[').unwrap();
    let dtypes = [Dtype::F16, Dtype::F32, Dtype::F64, Dtype::U32];
    let dtype = dtypes.into_iter().find(|one| one.as_str() == dtype).unwrap();
    let sizes = sizes.split(", ").filter(|size| !size.is_empty()).map(|size| size.parse().unwrap());
    Spec::new(dtype, &sizes.collect::<Vec<u32>>()).unwrap()
}

/// Expects the outputs of an operation, or a part of its error message.
#[track_caller]
fn check(op: &Op, inputs: &[&str], expected: Result<&[&str], &str>) {
    let inputs: Vec<Spec> = inputs.iter().map(|text| spec(text)).collect();
    match (op.outputs(&inputs), expected) {
        (Ok(found), Ok(expected)) => {
            assert_eq!(found.iter().map(Spec::to_string).collect::<Vec<_>>(), expected, "{op:?}");
        }
        (Err(found), Err(expected_text)) => assert!(found.to_string().contains(expected_text), "{op:?}: {found}"),
        (found, _) => panic!("{op:?}: {found:?}, not {expected:?}"),
    }
}

#[test]
fn shapes_of_results() {
    let product = |first_transposed, second_transposed| Op::Product { first_transposed, second_transposed };
    let grouped = |ridge| Op::GroupedLeastSquares(GroupedOptions { intercept: true, ridge, pivot_min: 0.0 });
    let disagree = Err("their shapes don't agree");
    check(&product(false, false), &["f32[2, 3]", "f32[3, 5]"], Ok(&["f32[2, 5]"]));
    check(&product(true, true), &["f16[3, 2]", "f16[5, 3]"], Ok(&["f16[2, 5]"]));
    check(&product(false, false), &["f64[7, 2, 3]", "f64[3, 5]"], Ok(&["f64[7, 2, 5]"]));
    check(&product(false, false), &["f32[2, 3]", "f32[2, 3]"], disagree);
    check(&product(false, false), &["f32[7, 2, 3]", "f32[6, 3, 5]"], disagree);
    check(&product(false, false), &["f32[3]", "f32[3, 5]"], disagree);
    check(
        &product(false, false),
        &["f32[2, 3]", "f64[3, 5]"],
        Err("takes tensors of floats of one type, not of f32, f64"),
    );
    check(&product(false, false), &["u32[2, 3]", "u32[3, 5]"], Err("floats of one type"));
    check(&product(false, false), &["f32[2, 3]"], Err("takes 2 tensors, not 1"));
    // Outputs of small inputs may be too large.
    check(&product(false, false), &["f32[65536, 0]", "f32[0, 65536]"], Err("has more than 2147483648 values"));
    let three = ["f64[8, 90]", "f64[90]", "u32[11]"];
    check(&grouped(0.0), &three, Ok(&["f64[10, 9]", "u32[10]"]));
    check(&grouped(0.0), &["f64[8, 90]", "f64[90]", "u32[11]", "f64[90]"], Ok(&["f64[10, 9]", "u32[10]"]));
    check(&grouped(0.0), &["f64[8, 90]", "f64[90]", "u32[11]", "f64[91]"], disagree);
    check(&grouped(0.0), &["f64[8, 90]", "f64[90]", "u32[0]"], disagree);
    check(&grouped(0.0), &["f32[8, 90]", "f32[90]", "u32[11]"], Err("f64, f64, u32"));
    check(&grouped(0.0), &["f64[65, 90]", "f64[90]", "u32[11]"], Err("takes at most 64 columns"));
    check(&grouped(-1.0), &three, Err("its ridge is -1"));
    check(&grouped(f64::NAN), &three, Err("its ridge is NaN"));
    check(&Op::SolveCholesky, &["f64[4, 3, 3]", "f64[4, 3, 2]"], Ok(&["f64[4, 3, 2]"]));
    check(&Op::SolveCholesky, &["f64[4, 3]", "f64[4, 2]"], disagree);
    check(&Op::SolveQr, &["f64[4, 3]", "f64[4, 2]"], Ok(&["f64[3, 2]"]));
    check(&Op::SolveQr, &["f64[3, 4]", "f64[3, 2]"], disagree);
    check(&Op::SolveQr, &["f64[5, 4, 3]", "f64[4, 2]"], disagree);
    check(&Op::Reduce { with: Reduction::Sum, along: 1 }, &["f32[2, 3, 4]"], Ok(&["f32[2, 4]"]));
    check(&Op::Reduce { with: Reduction::ArgMax, along: 0 }, &["f32[2]"], Ok(&["u32[]"]));
    check(&Op::Reduce { with: Reduction::ArgMax, along: 0 }, &["f32[0]"], Err("finds no index"));
    check(&Op::Reduce { with: Reduction::Sum, along: 3 }, &["f32[2, 3, 4]"], Err("along dimension 3"));
    check(&Op::Softmax, &["f32[]"], disagree);
    check(&Op::LogSumExp, &["f32[2, 3]"], Ok(&["f32[2]"]));
    check(&Op::Convert(Dtype::F16), &["f64[2, 3]"], Ok(&["f16[2, 3]"]));
    check(&Op::Convert(Dtype::F64), &["u32[]"], Ok(&["f64[]"]));
    check(&Op::Convert(Dtype::U32), &["f64[2, 3]"], Err("converts to floats, not to u32"));
    check(&Op::Nearest, &["f32[9, 3]", "f32[2, 3]"], Ok(&["u32[9]", "f32[9]"]));
    check(&Op::Nearest, &["f32[9, 3]", "f32[0, 3]"], disagree);
    check(&Op::Histogram { bins: 16 }, &["u32[4, 90]", "f32[90, 2]"], Ok(&["f32[4, 16, 2]"]));
    check(&Op::Histogram { bins: u32::MAX }, &["u32[4, 90]", "f32[90, 2]"], Err("has more than"));
    check(&Op::Histogram { bins: 16 }, &["f32[4, 90]", "f32[90, 2]"], Err("u32 and floats"));
    check(&Op::Take, &["u32[9, 3]", "u32[4]"], Ok(&["u32[4, 3]"]));
    check(&Op::Take, &["f32[]", "u32[4]"], disagree);
}

#[test]
fn shapes_of_broadcasts() {
    let sum = Op::Map(Map::new(vec![Step::Input(0), Step::Input(1), Step::Two(Binary::Add)]).unwrap());
    for (inputs, expected) in [
        (["f32[2, 3]", "f32[2, 3]"], Ok("f32[2, 3]")),
        (["f32[3]", "f32[2, 3]"], Ok("f32[2, 3]")),
        (["f32[2, 3]", "f32[2, 1]"], Ok("f32[2, 3]")),
        (["f32[]", "f32[2, 3]"], Ok("f32[2, 3]")),
        (["f32[1, 1]", "f32[0]"], Ok("f32[0]")),
        (["f32[0, 1]", "f32[0, 5]"], Ok("f32[0, 5]")),
        (["f32[2]", "f32[2, 3]"], Err("don't agree")),
        (["f32[2, 1]", "f32[3]"], Err("don't agree")),
    ] {
        let expected = expected.as_ref().map(std::slice::from_ref).map_err(|expected_text| *expected_text);
        check(&sum, &inputs, expected);
    }
    check(&sum, &["f32[2, 3]"], Err("step 1 takes input 1, the number of inputs is 1"));
}

#[test]
fn functions_that_are_none() {
    for (steps, expected_text) in [
        (vec![], "it leaves 0 values"),
        (vec![Step::Input(0), Step::Input(0)], "it leaves 2 values"),
        (vec![Step::One(Unary::Exp)], "step 0 takes more values than the stack holds"),
        (vec![Step::Input(0), Step::Two(Binary::Add)], "step 1 takes more values"),
        (vec![Step::Input(0), Step::Input(0), Step::Select], "step 2 takes more values"),
        ([vec![Step::Input(0); 17], vec![Step::Two(Binary::Add); 16]].concat(), "leaves more than 16 values"),
        (vec![Step::One(Unary::Abs); 65], "it has 65 steps, the maximum is 64"),
    ] {
        let found = Map::new(steps).unwrap_err().to_string();
        assert!(found.contains(expected_text), "{found}");
    }
}

#[test]
fn shapes_that_are_none() {
    for (sizes, is_good) in [
        (&[][..], true),
        (&[0, u32::MAX], true),
        (&[1 << 16, 1 << 15], true),
        (&[1 << 16, (1 << 15) + 1], false),
        (&[u32::MAX, u32::MAX, u32::MAX, 0], false),
        (&[1, 1, 1, 1, 1], false),
    ] {
        assert_eq!(Shape::new(sizes).is_ok(), is_good, "{sizes:?}");
    }
}
