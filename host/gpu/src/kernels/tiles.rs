//! Texts that kernels of matrix products share: parameters, and tiles of the result.

/// Parameters of a kernel.
pub(super) const PARAMS: &str = "struct Params { rows: u32, columns: u32, depth: u32, first_step: u32, second_step: u32, \
                               down: u32, across: u32, parts: u32, length: u32, count: u32 }\n\
                               var<immediate> params: Params;\n";

/// Computes a group's tile, product and part of the depth. Not a function, because naga does not see that a function's
/// result is uniform across threads, which matrix units require.
pub(super) const TILE_INDEX: &str = "    let tile = group % (params.down * params.across);
    let stacked = group / (params.down * params.across) / params.parts;
    let part = group / (params.down * params.across) % params.parts;
    if stacked >= params.count { return; }
    let top = tile / params.across * TILE;
    let leftmost = tile % params.across * TILE;";
