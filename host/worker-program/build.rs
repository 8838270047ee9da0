//! Packs the relocations of the program.

mod pack_relocations;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=pack_relocations.rs");
    pack_relocations::pack_relocations();
}
