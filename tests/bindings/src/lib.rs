//! Generates the SDK's bindings of the contract.
//!
//! They lie in `guest-sdk` as text, since to generate them wherever functions are compiled takes longer than to compile
//! them. The test of this crate says when they are out of date, and writes them anew.

use std::path::Path;

use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_core::{Files, WorldGenerator as _};
use wit_bindgen_rust::{Opts, Ownership};

/// The bindings of the SDK's world in this contract.
///
/// # Panics
/// When the file is no contract, or has no such world.
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
