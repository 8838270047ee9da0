//! Packs the relocations of the program.

#[path = "../worker-program/pack_relocations.rs"]
mod pack_relocations;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../worker-program/pack_relocations.rs");
    pack_relocations::pack_relocations();
}
