//! Matrix products: tiles of the result, with a few values per thread in registers.

use std::fmt::Write as _;

use sandbar_dense::{Dtype, Reduction, Shape, Spec};

use super::cooperative;
use super::kernel::{Cooperative, Kernel, Layout, MatrixUnits, Product};
use super::rows;
use super::step::{Immediates, Step, grid};
use super::tiles::{PARAMS, TILE_INDEX};
use super::wgsl::{arithmetic, binding, head};
use crate::GpuError;
use crate::tensor::{DeviceTensor, TensorMemory};

/// Threads per group in each dimension.
const SIDE: u32 = 16;
/// Depth of the staged part of a tile.
const DEPTH: u32 = 16;
/// If the result has fewer tiles than this, its depth is cut into parts of at least this many values, which are summed
/// afterwards.
const TILES_FEW: usize = 128;
const PART: usize = 512;

/// Uses matrix units if available and worthwhile.
pub(super) fn plan(
    memory: &TensorMemory,
    units: Option<MatrixUnits>,
    [(first, first_transposed), (second, second_transposed)]: [(&DeviceTensor, bool); 2],
    output: &DeviceTensor,
) -> Result<Vec<Step>, GpuError> {
    let (count, rows, columns) = output.spec.shape.matrices().unwrap_or_default();
    let (_, first_rows, first_columns) = first.spec.shape.matrices().unwrap_or_default();
    let depth = if first_transposed { first_rows } else { first_columns };
    let from = first.spec.dtype;
    if output.spec.shape.count() == 0 {
        return Ok(Vec::new());
    }
    let units = units.filter(|_| cooperative::takes(from, rows, columns));
    let blocks = match units {
        Some(_) => cooperative::blocks(count, rows, columns, TILES_FEW),
        // In f64, two large tiles exceed the shared memory of some devices.
        None if from != Dtype::F64 && rows >= 128 && columns >= 128 => 2,
        None => 1,
    };
    let side = (4 * SIDE * blocks) as usize;
    let (down, across) = (rows.div_ceil(side), columns.div_ceil(side));
    let tiles = count * down * across;
    let parts = if tiles < TILES_FEW { (TILES_FEW / tiles).min(depth / PART).max(1) } else { 1 };
    let added = match parts {
        1 => None,
        _ => {
            let shape = Shape::new(&[count as u32, parts as u32, (rows * columns) as u32]);
            // Without memory for parts, the depth is not cut.
            shape.ok().map(|shape| memory.tensor(Spec { dtype: arithmetic(from), shape })).transpose()?
        }
    };
    let parts = if added.is_some() { parts } else { 1 };
    let to = added.as_ref().unwrap_or(output);
    let stacked = |tensor: &DeviceTensor| usize::from(tensor.spec.shape.rank() > 2);
    let immediates = [
        rows,
        columns,
        depth,
        stacked(first) * rows * depth,
        stacked(second) * depth * columns,
        down,
        across,
        parts,
        // No step of a kernel spans two parts.
        depth.div_ceil(parts).next_multiple_of(cooperative::DEPTH as usize),
        count,
    ];
    let kernel = match units {
        Some(units) => {
            let first = Layout::new(!first_transposed, depth, rows);
            let second = Layout::new(second_transposed, depth, columns);
            Kernel::Cooperative(Cooperative { units, to: to.spec.dtype, blocks, first, second })
        }
        None => Kernel::Product(Product { from, to: to.spec.dtype, first_transposed, second_transposed, blocks }),
    };
    let mut steps = vec![Step {
        kernel,
        bindings: [first, second, to].map(|tensor| tensor.buffer.clone()).to_vec(),
        written: 1,
        immediates: immediates.into_iter().fold(Immediates::default(), Immediates::size).bytes(Dtype::U32),
        grid: grid((tiles * parts) as u64),
    }];
    if let Some(added) = &added {
        steps.extend(rows::reduce(memory, Reduction::Sum, 1, added, output)?);
    }
    Ok(steps)
}

impl Product {
    pub(super) fn source(&self) -> String {
        let mut text = head(self.from, self.to);
        text += PARAMS;
        text += "alias V = vec4<A>;\n";
        text += &(binding(0, "first", "T", false) + &binding(1, "second", "T", false) + &binding(2, "out", "U", true));
        // Adjacent threads read adjacent values in either layout.
        let (first_lane, first_at) = lanes(!self.first_transposed, "row", "params.rows");
        let (second_lane, second_at) = lanes(self.second_transposed, "column", "params.columns");
        let loaded = 4 * self.blocks * DEPTH / SIDE;
        text + &TILE
            .replace("TILE_INDEX", TILE_INDEX)
            .replace("FIRST_LANE", first_lane)
            .replace("SECOND_LANE", second_lane)
            .replace("FIRST_AT", &first_at)
            .replace("SECOND_AT", &second_at)
            .replace("ZERO", &self.zero())
            .replace("MULTIPLY", &self.multiply())
            .replace("STORE", &self.store())
            .replace("TILE", &format!("{}u", 4 * SIDE * self.blocks))
            .replace("LOADED", &format!("{loaded}u"))
            .replace("SIDE", &format!("{SIDE}u"))
            .replace("DEPTH", &format!("{DEPTH}u"))
    }

    /// Returns the names of a thread's rows, and their index in the tile.
    fn rows(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let blocks = self.blocks;
        (0..blocks).flat_map(|block| (0..4).map(move |row| (block, row)))
    }

    fn zero(&self) -> String {
        let mut text = String::new();
        for (block, row) in self.rows() {
            for column in 0..self.blocks {
                let _ = writeln!(text, "    var c{block}{row}{column} = V();");
            }
        }
        text
    }

    fn multiply(&self) -> String {
        let mut text = String::new();
        for block in 0..self.blocks {
            let _ = writeln!(text, "            let a{block} = left[k * (TILE / 4) + {block} * SIDE + down];");
            let _ = writeln!(text, "            let b{block} = right[k * (TILE / 4) + {block} * SIDE + across];");
        }
        for (block, row) in self.rows() {
            let component = ["x", "y", "z", "w"][row as usize];
            for column in 0..self.blocks {
                let _ = writeln!(text, "            c{block}{row}{column} += a{block}.{component} * b{column};");
            }
        }
        text
    }

    fn store(&self) -> String {
        let mut text = String::new();
        for (block, row) in self.rows() {
            for column in 0..self.blocks {
                let at =
                    format!("top + ({block} * SIDE + down) * 4 + {row}, leftmost + ({column} * SIDE + across) * 4");
                let _ = writeln!(text, "    store(base, {at}, c{block}{row}{column});");
            }
        }
        text
    }
}

/// Returns how threads share the loading of a tile, and the position of a value in it. `is_deep` is set if values of
/// consecutive depths are adjacent, instead of those of consecutive `lines`.
fn lanes(is_deep: bool, line: &str, lines: &str) -> (&'static str, String) {
    match is_deep {
        true => ("let line = at / DEPTH; let k = at % DEPTH;", format!("{line} * params.depth + depth")),
        false => ("let line = at % TILE; let k = at / TILE;", format!("depth * {lines} + {line}")),
    }
}

const TILE: &str = "
var<workgroup> left: array<V, DEPTH * TILE / 4>;
var<workgroup> right: array<V, DEPTH * TILE / 4>;

fn store(base: u32, row: u32, column: u32, values: V) {
    if row >= params.rows { return; }
    let at = base + row * params.columns + column;
    if column < params.columns { out[at] = U(values.x); }
    if column + 1 < params.columns { out[at + 1] = U(values.y); }
    if column + 2 < params.columns { out[at + 2] = U(values.z); }
    if column + 3 < params.columns { out[at + 3] = U(values.w); }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let group = group_index(w, n);
TILE_INDEX
    let down = t / SIDE;
    let across = t % SIDE;
    let first_base = stacked * params.first_step;
    let second_base = stacked * params.second_step;
    let to = min((part + 1) * params.length, params.depth);
ZERO
    for (var begin = part * params.length; begin < to; begin += DEPTH) {
        for (var l = 0u; l < LOADED; l++) {
            let at = t + l * 256;
            {
                FIRST_LANE
                let row = top + line;
                let depth = begin + k;
                var value = A(0);
                if row < params.rows && depth < to { value = A(first[first_base + FIRST_AT]); }
                left[(k * TILE + line) / 4][line % 4] = value;
            }
            {
                SECOND_LANE
                let column = leftmost + line;
                let depth = begin + k;
                var value = A(0);
                if column < params.columns && depth < to { value = A(second[second_base + SECOND_AT]); }
                right[(k * TILE + line) / 4][line % 4] = value;
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
MULTIPLY
        }
        workgroupBarrier();
    }
    let base = (stacked * params.parts + part) * params.rows * params.columns;
STORE
}
";
