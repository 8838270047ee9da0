//! Generates the SDK's bindings of the contract.
//!
//! The bindings are stored as text in `guest-sdk`, because generating them in every build of a function takes longer
//! than compiling them. This crate's test detects outdated bindings and rewrites them.

use std::path::Path;

use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_core::{Files, WorldGenerator as _};
use wit_bindgen_rust::{Opts, Ownership};

/// Returns the bindings of the SDK's world.
///
/// # Panics
/// Panics when the file is not valid WIT, or lacks the world `with-tasks`.
pub fn generate(contract: &Path) -> String {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(contract).expect("the contract is WIT");
    let world = resolve.select_world(&[package], Some("with-tasks")).expect("there is this world");
    let options =
        Opts { format: true, ownership: Ownership::Borrowing { duplicate_if_necessary: false }, ..Opts::default() };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files).expect("there are bindings");
    let (_, text) = files.iter().next().expect("they are one file");
    String::from_utf8(text.to_vec()).expect("they are text")
}
