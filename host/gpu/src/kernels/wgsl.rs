//! Parts of kernels' texts.

use sandbar_dense::Dtype;

/// Returns the type in which values of a type are computed.
pub(super) fn arithmetic(dtype: Dtype) -> Dtype {
    if dtype == Dtype::F16 { Dtype::F32 } else { dtype }
}

/// Returns the start of a text that reads type `T`, computes in `A` and writes `U`.
pub(super) fn head(reads: Dtype, writes: Dtype) -> String {
    let enable = if [reads, writes].contains(&Dtype::F16) { "enable f16;\n" } else { "" };
    // Comparisons of a value with itself may be optimised away; naga's `!=` is false if one operand is NaN.
    let is_nan = match arithmetic(reads) {
        Dtype::F64 => "!(x == x)",
        _ => "(bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u",
    };
    format!(
        "{enable}alias T = {reads};\nalias A = {};\nalias U = {writes};\n\
         fn is_nan(x: A) -> bool {{ return {is_nan}; }}\n\
         fn group_index(w: vec3<u32>, n: vec3<u32>) -> u32 {{ return w.x + w.y * n.x; }}\n",
        arithmetic(reads),
    )
}

/// Returns the declaration of a binding.
pub(super) fn binding(at: usize, name: &str, values: &str, is_written: bool) -> String {
    let access = if is_written { "read_write" } else { "read" };
    format!("@group(0) @binding({at}) var<storage, {access}> {name}: array<{values}>;\n")
}
