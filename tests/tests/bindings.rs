//! The SDK's bindings of the contract lie beside it as text: to generate them where functions are compiled takes longer than
//! to compile these.

use std::path::PathBuf;

use sandbar_tests::workspace;
use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_core::{Files, WorldGenerator as _};
use wit_bindgen_rust::{Opts, Ownership};

/// Writes the file instead of comparing it.
const WRITE: &str = "SANDBAR_WRITE_BINDINGS";

#[test]
fn bindings_of_the_sdk_are_those_of_the_contract() {
    let path = bindings();
    let generated = generate();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, generated).expect("the file can be written");
        return;
    }
    let there = std::fs::read_to_string(&path).expect("the bindings are there");
    let differs = there.lines().zip(generated.lines()).position(|(there, generated)| there != generated);
    assert!(
        there == generated,
        "{} is not what wit/sandbar.wit gives (line {}): write it anew by \
         `{WRITE}=1 cargo test --release -p sandbar-tests --test bindings`",
        path.display(),
        differs.map_or_else(|| "the last".to_owned(), |line| (line + 1).to_string()),
    );
}

fn bindings() -> PathBuf {
    workspace().join("guest-sdk/src/bindings/with_tasks.rs")
}

fn generate() -> String {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(workspace().join("wit/sandbar.wit")).expect("the contract is WIT");
    let world = resolve.select_world(&[package], Some("with-tasks")).expect("there is this world");
    let options =
        Opts { format: true, ownership: Ownership::Borrowing { duplicate_if_necessary: false }, ..Opts::default() };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files).expect("there are bindings");
    let (_, text) = files.iter().next().expect("they are one file");
    String::from_utf8(text.to_vec()).expect("they are text")
}
