//! The compiler's errors for functions that the host can't call: plain text, at the user's line.

#[test]
fn compile_errors() {
    trybuild::TestCases::new().compile_fail("tests/errors/*.rs");
}
