//! Nearest centres, histograms, row selection, and type conversions.

use sandbar_dense::{Dtype, Reduction, Shape, Spec};

use super::kernel::{Kernel, Points};
use super::rows;
use super::step::{Immediates, Step, grid};
use super::wgsl::{arithmetic, binding, head};
use crate::GpuError;
use crate::tensor::{DeviceTensor, TensorMemory};

/// Threads per group.
const THREADS: usize = 64;
/// Number of squares per partial sum.
const SUMMED: u32 = 256;
/// Bins per group, and rows that it processes together.
const BINS: usize = 256;
/// Minimum rows of a slice, and maximum number of slices, whose histograms are summed.
const SLICE: usize = 8192;
const SLICES_MAX: usize = 64;

pub(super) fn nearest([points, centres]: [&DeviceTensor; 2], [indices, squares]: [&DeviceTensor; 2]) -> Vec<Step> {
    let dtype = points.spec.dtype;
    let (count, width) = (points.spec.shape.sizes()[0] as usize, points.spec.shape.last());
    if count == 0 {
        return Vec::new();
    }
    let immediates = Immediates::default().value(dtype, f64::INFINITY).size(count).size(width);
    vec![Step {
        kernel: Kernel::Points(Points::Nearest(dtype)),
        bindings: [points, centres, indices, squares].map(|tensor| tensor.buffer.clone()).to_vec(),
        written: 2,
        immediates: immediates.size(centres.spec.shape.sizes()[0] as usize).bytes(dtype),
        grid: grid(count.div_ceil(THREADS) as u64),
    }]
}

pub(super) fn histogram(
    memory: &TensorMemory,
    [bins_of, values]: [&DeviceTensor; 2],
    bins: u32,
    output: &DeviceTensor,
) -> Result<Vec<Step>, GpuError> {
    let [features, rows] = [0, 1].map(|at| bins_of.spec.shape.sizes()[at] as usize);
    let (channels, count, bins) = (values.spec.shape.last(), output.spec.shape.count(), bins as usize);
    if count == 0 {
        return Ok(Vec::new());
    }
    let blocks = bins.div_ceil(BINS);
    let slices = rows.div_ceil(SLICE).clamp(1, SLICES_MAX);
    let from = values.spec.dtype;
    let parts = match slices {
        1 => None,
        _ => Some(memory.tensor(Spec { dtype: arithmetic(from), shape: Shape::new(&[slices as u32, count as u32])? })?),
    };
    let to = parts.as_ref().unwrap_or(output);
    let immediates = Immediates::default().size(features).size(rows).size(channels).size(bins);
    let mut steps = vec![Step {
        kernel: Kernel::Points(Points::Histogram(from, to.spec.dtype)),
        bindings: [bins_of, values, to].map(|tensor| tensor.buffer.clone()).to_vec(),
        written: 1,
        immediates: immediates.size(blocks).size(slices).size(rows.div_ceil(slices)).bytes(Dtype::U32),
        grid: grid((slices * features * channels * blocks) as u64),
    }];
    if let Some(parts) = &parts {
        steps.extend(rows::reduce(memory, Reduction::Sum, 0, parts, output)?);
    }
    Ok(steps)
}

pub(super) fn take([from, indices]: [&DeviceTensor; 2], output: &DeviceTensor) -> Vec<Step> {
    let count = output.spec.shape.count();
    let taken = indices.spec.shape.count();
    if count == 0 {
        return Vec::new();
    }
    let immediates = Immediates::default().size(count).size(count / taken).size(from.spec.shape.sizes()[0] as usize);
    vec![Step {
        kernel: Kernel::Points(Points::Take(from.spec.dtype)),
        bindings: [from, indices, output].map(|tensor| tensor.buffer.clone()).to_vec(),
        written: 1,
        immediates: immediates.bytes(Dtype::U32),
        grid: grid(count.div_ceil(THREADS) as u64),
    }]
}

pub(super) fn convert(from: &DeviceTensor, output: &DeviceTensor) -> Vec<Step> {
    let count = output.spec.shape.count();
    if count == 0 {
        return Vec::new();
    }
    vec![Step {
        kernel: Kernel::Points(Points::Convert(from.spec.dtype, output.spec.dtype)),
        bindings: [from, output].map(|tensor| tensor.buffer.clone()).to_vec(),
        written: 1,
        immediates: Immediates::default().size(count).bytes(Dtype::U32),
        grid: grid(count.div_ceil(THREADS) as u64),
    }]
}

impl Points {
    pub(super) fn source(&self) -> String {
        let text = match *self {
            Points::Nearest(dtype) => {
                head(dtype, dtype)
                    + "struct Params { start: A, count: u32, width: u32, centres: u32 }\nvar<immediate> params: Params;\n"
                    + &binding(0, "points", "T", false)
                    + &binding(1, "centres", "T", false)
                    + &binding(2, "indices", "u32", true)
                    + &binding(3, "squares", "U", true)
                    + NEAREST
            }
            Points::Histogram(from, to) => {
                head(from, to)
                    + "struct Params { features: u32, rows: u32, channels: u32, bins: u32, blocks: u32, slices: u32, length: u32 }\n\
                       var<immediate> params: Params;\n"
                    + &binding(0, "indices", "u32", false)
                    + &binding(1, "values", "T", false)
                    + &binding(2, "out", "U", true)
                    + HISTOGRAM
            }
            Points::Take(dtype) => {
                // Rows are copied without arithmetic.
                let (enable, element) =
                    if dtype == Dtype::F16 { ("enable f16;\n", "f16") } else { ("", dtype.as_str()) };
                format!("{enable}alias T = {element};\n")
                    + "struct Params { count: u32, width: u32, rows: u32 }\nvar<immediate> params: Params;\n"
                    + &binding(0, "values", "T", false)
                    + &binding(1, "indices", "u32", false)
                    + &binding(2, "out", "T", true)
                    + TAKE
            }
            Points::Convert(from, to) => {
                let enable = if [from, to].contains(&Dtype::F16) { "enable f16;\n" } else { "" };
                // Drivers lack conversions between the narrowest and the widest type.
                let value = match (from, to) {
                    (Dtype::F16, Dtype::F64) | (Dtype::F64, Dtype::F16) => "U(f32(values[i]))",
                    _ => "U(values[i])",
                };
                format!("{enable}struct Params {{ count: u32 }}\nvar<immediate> params: Params;\nalias U = {to};\n")
                    + &binding(0, "values", from.as_str(), false)
                    + &binding(1, "out", "U", true)
                    + &CONVERT.replace("VALUE", value)
            }
        };
        text.replace("THREADS", &THREADS.to_string())
            .replace("BINS", &BINS.to_string())
            .replace("SUMMED", &format!("{SUMMED}u"))
    }
}

const NEAREST: &str = "
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let point = group_index(w, n) * THREADS + t;
    if point >= params.count { return; }
    var best = 0u;
    var least = params.start;
    var own = A(0);
    for (var c = 0u; c < params.centres; c++) {
        var square = A(0);
        for (var begin = 0u; begin < params.width; begin += SUMMED) {
            // Sums of short partial sums, for little rounding error.
            var part = A(0);
            for (var k = begin; k < min(begin + SUMMED, params.width); k++) {
                let by = A(points[point * params.width + k]) - A(centres[c * params.width + k]);
                part += by * by;
            }
            square += part;
        }
        if c == 0u { own = square; }
        if square < least {
            best = c;
            least = square;
        }
    }
    indices[point] = best;
    // If no distance is below infinity, uses the first centre's distance, NaN or not.
    squares[point] = U(select(least, own, best == 0u));
}
";

const HISTOGRAM: &str = "
var<workgroup> bin: array<u32, BINS>;
var<workgroup> value: array<A, BINS>;
@compute @workgroup_size(BINS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let at = group_index(w, n);
    let block = at % params.blocks;
    let channel = at / params.blocks % params.channels;
    let feature = at / params.blocks / params.channels % params.features;
    let slice = at / params.blocks / params.channels / params.features;
    if slice >= params.slices { return; }
    let own = block * BINS + t;
    let begin = slice * params.length;
    let to = min(begin + params.length, params.rows);
    var sum = A(0);
    for (var first = begin; first < to; first += BINS) {
        let row = first + t;
        if row < to {
            bin[t] = indices[feature * params.rows + row];
            value[t] = A(values[row * params.channels + channel]);
        }
        workgroupBarrier();
        let count = min(BINS, to - first);
        for (var k = 0u; k < count; k++) {
            if bin[k] == own { sum += value[k]; }
        }
        workgroupBarrier();
    }
    if own < params.bins {
        out[((slice * params.features + feature) * params.bins + own) * params.channels + channel] = U(sum);
    }
}
";

const TAKE: &str = "
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let i = (w.x + w.y * n.x) * THREADS + t;
    if i >= params.count { return; }
    let row = indices[i / params.width];
    if row < params.rows { out[i] = values[row * params.width + i % params.width]; } else { out[i] = T(0); }
}
";

const CONVERT: &str = "
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let i = (w.x + w.y * n.x) * THREADS + t;
    if i < params.count { out[i] = VALUE; }
}
";
