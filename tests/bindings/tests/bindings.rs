//! The SDK's bindings are those of the contract.

use sandbar_testnet::workspace;

/// Has the file written instead of compared.
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
        "{} is not what wit/sandbar.wit gives (line {:?}): write it anew by `{WRITE}=1 cargo test --release -p sandbar-bindings`",
        path.display(),
        differs.map(|line| line + 1),
    );
}
