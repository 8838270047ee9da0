//! Products of f16 matrices by a GPU's matrix units: tiles of the result, with a few small matrices per subgroup. Their
//! operands are staged in shared memory, a few values of depth at a time.

use std::fmt::Write as _;

use sandbar_dense::Dtype;

use super::kernel::{Cooperative, Layout, MatrixUnits};
use super::tiles::{PARAMS, TILE_INDEX};
use super::wgsl::binding;

#[cfg(test)]
pub(super) mod tests;

/// Depth of the staged part of a tile.
pub(super) const DEPTH: u32 = 32;
/// Side of a tile per block.
const TILE: u32 = 64;
/// Maximum blocks per tile in each dimension.
const BLOCKS_MAX: u32 = 2;
/// Subgroups per thread group: this many vertically, and as many horizontally per block.
const SUBGROUPS: u32 = 2;
/// Padding between staged lines, in values: without it, concurrent reads would hit the same memory banks.
const GAP: u32 = 8;
/// Minimum side of matrices: smaller ones would leave most of a tile empty.
const SIDE_MIN: usize = 64;

impl MatrixUnits {
    /// Device features that matrix units require.
    pub(crate) const FEATURES: wgpu::Features =
        wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(wgpu::Features::SHADER_F16);

    /// Returns the matrix units of a GPU, if the kernel supports them.
    pub(crate) fn for_adapter(adapter: &wgpu::Adapter) -> Option<MatrixUnits> {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        // A software driver's matrix units are slower than its plain arithmetic.
        let is_worth_it = info.device_type != wgpu::DeviceType::Cpu;
        // The mapping of threads to subgroups is known only if all subgroups have the same size.
        let is_known = info.subgroup_min_size == info.subgroup_max_size;
        if !is_worth_it || !is_known || !adapter.features().contains(MatrixUnits::FEATURES) {
            return None;
        }
        let all = adapter.cooperative_matrix_properties();
        let multiplies = |side: &u32| {
            all.iter().any(|one| {
                [one.m_size, one.n_size, one.k_size] == [*side; 3]
                    && one.ab_type == wgpu::CooperativeScalarType::F16
                    && one.cr_type == wgpu::CooperativeScalarType::F32
            })
        };
        let units = MatrixUnits { side: [16, 8].into_iter().find(multiplies)?, lanes: info.subgroup_max_size };
        units.fits_limits(&limits).then_some(units)
    }

    fn fits_limits(self, limits: &wgpu::Limits) -> bool {
        let threads = self.lanes * SUBGROUPS * SUBGROUPS * BLOCKS_MAX;
        let staged = 2 * 2 * TILE * BLOCKS_MAX * (DEPTH + GAP);
        let sums = 4 * self.side * self.side * SUBGROUPS * SUBGROUPS * BLOCKS_MAX;
        // Each thread processes four values of a line at once.
        self.lanes.is_power_of_two()
            && (4..=64).contains(&self.lanes)
            && threads <= limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x)
            && staged + sums <= limits.max_compute_workgroup_storage_size
    }
}

impl Layout {
    pub(super) fn new(is_deep: bool, depth: usize, lines: usize) -> Layout {
        let length = if is_deep { depth } else { lines };
        Layout { is_deep, is_by_four: length.is_multiple_of(4) }
    }
}

/// Whether matrix units are worthwhile for such a product.
pub(super) fn takes(from: Dtype, rows: usize, columns: usize) -> bool {
    from == Dtype::F16 && rows >= SIDE_MIN && columns >= SIDE_MIN
}

/// Returns the blocks per tile: larger tiles are faster if there are enough of them.
pub(super) fn blocks(count: usize, rows: usize, columns: usize, tiles_few: usize) -> u32 {
    let side = (TILE * BLOCKS_MAX) as usize;
    let tiles = count * rows.div_ceil(side) * columns.div_ceil(side);
    if rows >= side && columns >= side && tiles >= tiles_few { BLOCKS_MAX } else { 1 }
}

/// An operand in a kernel's text.
struct Operand {
    name: &'static str,
    /// Alias of its small matrices.
    alias: &'static str,
    /// Number of lines.
    lines: &'static str,
    layout: Layout,
    /// First line of a tile, and of a subgroup within it.
    tile_begin: &'static str,
    begin: &'static str,
    /// Number of small matrices per subgroup, and the letter that names them.
    small: u32,
    letter: char,
}

impl Cooperative {
    pub(super) fn source(&self) -> String {
        let MatrixUnits { side, lanes } = self.units;
        let to = self.to;
        let mut text = format!(
            "enable f16;\nenable wgpu_cooperative_matrix;\nalias Four = vec4<f16>;\nalias U = {to};\n\
             alias First = coop_mat{side}x{side}<f16, A>;\nalias Second = coop_mat{side}x{side}<f16, B>;\n\
             alias Sums = coop_mat{side}x{side}<f32, C>;\n{PARAMS}"
        );
        let operands = self.operands();
        for (at, operand) in operands.iter().enumerate() {
            text += &binding(at, operand.name, if operand.layout.is_by_four { "Four" } else { "f16" }, false);
        }
        text += &binding(2, "out", "U", true);
        operands.iter().for_each(|operand| text += &self.fetch_function(operand));
        let each = |describe: &dyn Fn(&Operand) -> String| operands.iter().map(describe).collect::<String>();
        text + &MAIN
            .replace("TILE_INDEX", TILE_INDEX)
            .replace("PLACES", &each(&|operand| self.places(operand)))
            .replace("BEGIN_FETCH", &each(&|operand| self.fetch(operand, "    var ", "begin")))
            .replace("ZERO", &self.zero())
            .replace("STAGE", &each(&|operand| self.stage(operand)))
            .replace("NEXT_FETCH", &each(&|operand| self.fetch(operand, "        ", "begin + DEPTH")))
            .replace("MULTIPLY", &self.multiply(&operands))
            .replace("STORE", &self.store())
            .replace("THREADS", &format!("{}u", self.threads()))
            .replace("SUBGROUPS", &format!("{}u", self.threads() / lanes))
            .replace("ACROSS", &format!("{}u", SUBGROUPS * self.blocks))
            .replace("ROWS", &format!("{}u", self.small_down() * side))
            .replace("COLUMNS", &format!("{}u", self.small_across() * side))
            .replace("TILE", &format!("{}u", self.tile()))
            .replace("LANES", &format!("{lanes}u"))
            .replace("DEPTH", &format!("{DEPTH}u"))
            .replace("SIDE", &format!("{side}u"))
    }

    fn operands(&self) -> [Operand; 2] {
        let first = Operand {
            name: "first",
            alias: "First",
            lines: "params.rows",
            layout: self.first,
            tile_begin: "top",
            begin: "down",
            small: self.small_down(),
            letter: 'a',
        };
        let second = Operand {
            name: "second",
            alias: "Second",
            lines: "params.columns",
            layout: self.second,
            tile_begin: "leftmost",
            begin: "across",
            small: self.small_across(),
            letter: 'b',
        };
        [first, second]
    }

    fn tile(&self) -> u32 {
        TILE * self.blocks
    }

    fn threads(&self) -> u32 {
        self.units.lanes * SUBGROUPS * SUBGROUPS * self.blocks
    }

    /// Returns the number of a subgroup's small matrices vertically.
    fn small_down(&self) -> u32 {
        self.tile() / SUBGROUPS / self.units.side
    }

    fn small_across(&self) -> u32 {
        self.tile() / (SUBGROUPS * self.blocks) / self.units.side
    }

    /// Returns the number of adjacent staged values of an operand, and the number of such lines.
    fn staged(&self, operand: &Operand) -> (u32, u32) {
        if operand.layout.is_deep { (DEPTH, self.tile()) } else { (self.tile(), DEPTH) }
    }

    /// Returns the text of the staging memory and of the function that reads four values of an operand, with zeros out
    /// of bounds.
    fn fetch_function(&self, operand: &Operand) -> String {
        let Operand { name, lines, layout, .. } = operand;
        let (length, count) = self.staged(operand);
        let (at, room) = match layout.is_deep {
            true => ("line * params.depth + depth".to_owned(), "to - depth".to_owned()),
            false => (format!("depth * {lines} + line"), format!("{lines} - line")),
        };
        let read = match layout.is_by_four {
            true => format!("values = {name}[at / 4];"),
            false => format!(
                "let room = {room};\n        values.x = {name}[at];\n        \
                 if room > 1 {{ values.y = {name}[at + 1]; }}\n        \
                 if room > 2 {{ values.z = {name}[at + 2]; }}\n        \
                 if room > 3 {{ values.w = {name}[at + 3]; }}"
            ),
        };
        format!(
            "var<workgroup> staged_{name}: array<Four, {}>;\n\
             fn fetch_{name}(base: u32, line: u32, depth: u32, to: u32) -> Four {{\n    var values = Four();\n    \
             if line < {lines} && depth < to {{\n        let at = base + {at};\n        {read}\n    }}\n    return values;\n}}\n",
            count * (length + GAP) / 4,
        )
    }

    /// Returns the text for the first four values that a thread fetches.
    fn places(&self, operand: &Operand) -> String {
        let (name, four) = (operand.name, self.staged(operand).0 / 4);
        format!(
            "    let {name}_base = stacked * params.{name}_step;\n    let {name}_line = t / {four}u;\n    \
             let {name}_four = t % {four}u;\n"
        )
    }

    /// Iterates over the lines from which a thread fetches four values, relative to its first.
    fn lines(&self, operand: &Operand) -> impl Iterator<Item = u32> + use<> {
        let (length, count) = self.staged(operand);
        // Lines have at most four values per thread, and are powers of two, so that they divide them.
        (0..count).step_by((self.threads() * 4 / length) as usize)
    }

    fn fetch(&self, operand: &Operand, begins: &str, depth: &str) -> String {
        let Operand { name, tile_begin, .. } = operand;
        let mut text = String::new();
        for line in self.lines(operand) {
            let (line_at, depth_at) = match operand.layout.is_deep {
                true => (format!("{name}_line + {line}u"), format!("{name}_four * 4u")),
                false => (format!("{name}_four * 4u"), format!("{name}_line + {line}u")),
            };
            let _ = writeln!(
                text,
                "{begins}{name}{line} = fetch_{name}({name}_base, {tile_begin} + {line_at}, {depth} + {depth_at}, to);"
            );
        }
        text
    }

    fn stage(&self, operand: &Operand) -> String {
        let (name, stride) = (operand.name, (self.staged(operand).0 + GAP) / 4);
        let mut text = String::new();
        for line in self.lines(operand) {
            let _ = writeln!(
                text,
                "        staged_{name}[({name}_line + {line}u) * {stride}u + {name}_four] = {name}{line};"
            );
        }
        text
    }

    fn zero(&self) -> String {
        let mut text = String::new();
        for (down, across) in self.small() {
            let _ = writeln!(text, "    var c{down}{across} = Sums();");
        }
        text
    }

    fn multiply(&self, operands: &[Operand]) -> String {
        let mut text = String::new();
        for depth in (0..DEPTH).step_by(self.units.side as usize) {
            text += "        {\n";
            for operand in operands {
                let (name, letter, begin) = (operand.name, operand.letter, operand.begin);
                let stride = (self.staged(operand).0 + GAP) / 4;
                // Lines of the first operand are rows.
                let loads = if operand.layout.is_deep == (letter == 'a') { "coopLoadT" } else { "coopLoad" };
                for small in 0..operand.small {
                    let line = small * self.units.side;
                    let at = match operand.layout.is_deep {
                        true => format!("({begin} + {line}u) * {stride}u + {}u", depth / 4),
                        false => format!("{begin} / 4u + {}u", depth * stride + line / 4),
                    };
                    let _ = writeln!(
                        text,
                        "            let {letter}{small} = {loads}<{}>(&staged_{name}[{at}], {stride}u);",
                        operand.alias,
                    );
                }
            }
            for (down, across) in self.small() {
                let _ = writeln!(
                    text,
                    "            c{down}{across} = coopMultiplyAdd(a{down}, b{across}, c{down}{across});"
                );
            }
            text += "        }\n";
        }
        text
    }

    fn store(&self) -> String {
        let mut text = String::new();
        for (down, across) in self.small() {
            let side = self.units.side;
            let (row, column) = (down * side, across * side);
            let _ = writeln!(
                text,
                "    coopStoreT(c{down}{across}, &sums[own], {side}u);\n    workgroupBarrier();\n    \
                 put(base, top + down + {row}u, leftmost + across + {column}u, own, lane);\n    workgroupBarrier();"
            );
        }
        text
    }

    /// Iterates over a subgroup's small matrices.
    fn small(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let across = self.small_across();
        (0..self.small_down()).flat_map(move |row| (0..across).map(move |column| (row, column)))
    }
}

const MAIN: &str = "
var<workgroup> sums: array<f32, SUBGROUPS * SIDE * SIDE>;

fn put(base: u32, top: u32, leftmost: u32, own: u32, lane: u32) {
    for (var at = lane; at < SIDE * SIDE; at += LANES) {
        let row = top + at / SIDE;
        let column = leftmost + at % SIDE;
        if row < params.rows && column < params.columns { out[base + row * params.columns + column] = U(sums[own + at]); }
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let group = w.x + w.y * n.x;
TILE_INDEX
    let lane = t % LANES;
    let subgroup = t / LANES;
    let down = subgroup / ACROSS * ROWS;
    let across = subgroup % ACROSS * COLUMNS;
    let own = subgroup * SIDE * SIDE;
    let to = min((part + 1) * params.length, params.depth);
    var begin = part * params.length;
PLACES
BEGIN_FETCH
ZERO
    for (; begin < to; begin += DEPTH) {
STAGE
        workgroupBarrier();
        // Fetches the next values while these are multiplied.
NEXT_FETCH
MULTIPLY
        workgroupBarrier();
    }
    let base = (stacked * params.parts + part) * params.rows * params.columns;
STORE
}
";
