//! The SDK's bindings match the contract.

use sandbar_testnet::workspace;

/// Makes the test write the file instead of comparing it.
const WRITE: &str = "SANDBAR_WRITE_BINDINGS";

#[test]
fn bindings_of_the_sdk_are_those_of_the_contract() {
    let path = workspace().join("guest-sdk/src/bindings/with_tasks.rs");
    let generated = sandbar_bindings::generate(&workspace().join("wit/sandbar.wit"));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, generated).expect("the file can be written");
        return;
    }
    let there = std::fs::read_to_string(&path).expect("the bindings are there");
    let differs = there.lines().zip(generated.lines()).position(|(there, generated)| there != generated);
    assert!(
        there == generated,
        "{} does not match wit/sandbar.wit (line {:?}): regenerate it with `{WRITE}=1 cargo test --release -p sandbar-bindings`",
        path.display(),
        differs.map(|line| line + 1),
    );
}
