//! What the compiler says of functions that can't be called by a host: in words, at the user's line.

#[test]
fn compile_errors() {
    trybuild::TestCases::new().compile_fail("tests/errors/*.rs");
}
