//! Least squares of many groups, with one thread group each.
//!
//! The algorithm is the processor's: means, then sums of products of centred values, then a Cholesky factor.

use sandbar_dense::{GroupedOptions, MEAN_NOISE, PIVOT_MIN, Spec};

use super::kernel::{GroupedKernel, Kernel};
use super::step::{Immediates, Step, grid};
use super::wgsl::{binding, head};
use crate::tensor::DeviceTensor;

/// Threads per group.
const THREADS: u32 = 64;
const F64: sandbar_dense::Dtype = sandbar_dense::Dtype::F64;

impl GroupedKernel {
    pub(super) fn new(inputs: &[Spec]) -> GroupedKernel {
        GroupedKernel { width: inputs[0].shape.sizes()[0], is_weighted: inputs.len() > 3 }
    }

    /// Returns the number of rows per block.
    fn rows(self) -> u32 {
        match self.width {
            0..16 => 64,
            16..32 => 32,
            _ => 16,
        }
    }

    fn pairs(self) -> u32 {
        (self.width + 1) * (self.width + 2) / 2
    }

    pub(super) fn source(self) -> String {
        let mut text = head(F64, F64);
        text += "struct Params { ridge: A, nan: A, largest: A, pivot_min: A, noise: A, groups: u32, rows: u32, intercept: u32, step: u32 }\n\
                 var<immediate> params: Params;\n";
        text += &binding(0, "columns", "A", false);
        text += &binding(1, "goal", "A", false);
        text += &binding(2, "offsets", "u32", false);
        let (at, weight) = if self.is_weighted { (4, "weights[row]") } else { (3, "A(1)") };
        if self.is_weighted {
            text += &binding(3, "weights", "A", false);
        }
        text += &binding(at, "coefficients", "A", true);
        text += &binding(at + 1, "statuses", "u32", true);
        text += &format!(
            "const W = {}u;\nconst N = {}u;\nconst ROWS = {}u;\nconst PAIRS = {}u;\nconst EACH = {}u;\n",
            self.width,
            self.width + 1,
            self.rows(),
            self.pairs(),
            self.pairs().div_ceil(THREADS),
        );
        text + &FIT.replace("WEIGHT", weight).replace("THREADS", &THREADS.to_string())
    }
}

/// Returns the bytes of memory that the threads of a group share.
pub(super) fn shared_bytes(width: u32) -> u64 {
    let fit = GroupedKernel { width, is_weighted: true };
    let (columns, rows) = (u64::from(width) + 1, u64::from(fit.rows()));
    8 * (columns * rows + columns + rows + u64::from(fit.pairs()) + u64::from(THREADS)) + 16
}

pub(super) fn plan(options: GroupedOptions, inputs: &[&DeviceTensor], outputs: &[&DeviceTensor]) -> Vec<Step> {
    let groups = outputs[1].spec.shape.count();
    if groups == 0 {
        return Vec::new();
    }
    let specs: Vec<Spec> = inputs.iter().map(|tensor| tensor.spec).collect();
    let immediates = [options.ridge, f64::NAN, f64::MAX, options.pivot_min.max(PIVOT_MIN), MEAN_NOISE]
        .into_iter()
        .fold(Immediates::default(), |all, value| all.value(F64, value));
    let immediates = immediates.size(groups).size(specs[1].shape.count()).size(options.intercept.into());
    let immediates = immediates.size(specs[2].shape.rank());
    vec![Step {
        kernel: Kernel::Grouped(GroupedKernel::new(&specs)),
        bindings: inputs.iter().chain(outputs).map(|tensor| tensor.buffer.clone()).collect(),
        written: 2,
        immediates: immediates.bytes(F64),
        grid: grid(groups as u64),
    }]
}

/// `block` holds centred columns, `sums` the lower triangle of their products, then the factor.
const FIT: &str = "
var<workgroup> block: array<A, N * ROWS>;
var<workgroup> scales: array<A, ROWS>;
var<workgroup> means: array<A, N>;
var<workgroup> sums: array<A, PAIRS>;
var<workgroup> parts: array<A, THREADS>;
var<workgroup> state: u32;

fn lower(i: u32, j: u32) -> u32 { return i * (i + 1) / 2 + j; }
fn is_finite(x: A) -> bool { return abs(x) <= params.largest; }

fn load(first: u32, count: u32, t: u32) {
    for (var at = t; at < N * ROWS; at += THREADS) {
        let column = at / ROWS;
        let r = at % ROWS;
        var x = A(0);
        if r < count {
            let row = first + r;
            if column < W { x = columns[column * params.rows + row]; } else { x = goal[row]; }
            x -= means[column];
        }
        block[at] = x;
    }
    for (var r = t; r < ROWS; r += THREADS) {
        var weight = A(0);
        if r < count {
            let row = first + r;
            weight = WEIGHT;
        }
        scales[r] = weight;
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let group = group_index(w, n);
    if group >= params.groups { return; }
    let first = offsets[group * params.step];
    let end = offsets[group * params.step + 1];
    let is_rows = first <= end && end <= params.rows;
    let count = select(0u, end - first, is_rows);
    if t == 0u { state = select(4u, 0u, is_rows); }
    for (var j = t; j < N; j += THREADS) { means[j] = A(0); }
    workgroupBarrier();

    // The sum of the weights, and whether all are valid.
    var part = A(0);
    for (var row = first + t; row < first + count; row += THREADS) {
        let weight = WEIGHT;
        if !(weight >= A(0)) { state = 3u; }
        part += weight;
    }
    parts[t] = part;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if t < half { parts[t] += parts[t + half]; }
        workgroupBarrier();
    }
    let total = parts[0];
    if t == 0u && state == 0u && total == A(0) { state = 1u; }
    workgroupBarrier();

    if params.intercept != 0u {
        // Each thread sums a column over one block of rows at a time.
        var own: array<A, (N + THREADS - 1) / THREADS>;
        for (var k = 0u; k < (N + THREADS - 1) / THREADS; k++) { own[k] = A(0); }
        for (var begin = 0u; begin < count; begin += ROWS) {
            load(first + begin, min(ROWS, count - begin), t);
            workgroupBarrier();
            for (var k = 0u; k < (N + THREADS - 1) / THREADS; k++) {
                let column = t + k * THREADS;
                if column < N {
                    var sum = A(0);
                    for (var r = 0u; r < ROWS; r++) { sum += block[column * ROWS + r] * scales[r]; }
                    own[k] += sum;
                }
            }
            workgroupBarrier();
        }
        for (var k = 0u; k < (N + THREADS - 1) / THREADS; k++) {
            let column = t + k * THREADS;
            if column < N { means[column] = own[k] / total; }
        }
        workgroupBarrier();
    }

    var own: array<A, EACH>;
    var pairs: array<vec2<u32>, EACH>;
    for (var k = 0u; k < EACH; k++) {
        own[k] = A(0);
        let pair = min(t + k * THREADS, PAIRS - 1);
        var i = u32((sqrt(8.0 * f32(pair) + 1.0) - 1.0) / 2.0);
        // Corrects a rounded root.
        if lower(i, 0u) > pair { i -= 1u; }
        if lower(i + 1, 0u) <= pair { i += 1u; }
        pairs[k] = vec2(i, pair - lower(i, 0u));
    }
    for (var begin = 0u; begin < count; begin += ROWS) {
        load(first + begin, min(ROWS, count - begin), t);
        workgroupBarrier();
        for (var k = 0u; k < EACH; k++) {
            let left = pairs[k].x * ROWS;
            let right = pairs[k].y * ROWS;
            var sum = A(0);
            for (var r = 0u; r < ROWS; r++) { sum += block[left + r] * scales[r] * block[right + r]; }
            own[k] += sum;
        }
        workgroupBarrier();
    }
    for (var k = 0u; k < EACH; k++) {
        let pair = t + k * THREADS;
        if pair < PAIRS {
            sums[pair] = own[k];
            if !is_finite(own[k]) && state == 0u { state = 3u; }
        }
    }
    workgroupBarrier();

    // Computes the factor column by column, and the target's row below it.
    for (var j = 0u; j < W; j++) {
        let whole = sums[lower(j, j)] + params.ridge;
        var previous = A(0);
        for (var k = 0u; k < j; k++) { previous += sums[lower(j, k)] * sums[lower(j, k)]; }
        let pivot = whole - previous;
        let rounding = means[j] * params.noise;
        let is_good = pivot > max(whole * params.pivot_min, rounding * rounding * total);
        let root = sqrt(max(pivot, A(0)));
        workgroupBarrier();
        if t == 0u && state == 0u && !is_good { state = 2u; }
        for (var i = j + t; i <= W; i += THREADS) {
            if i == j {
                sums[lower(j, j)] = root;
            } else {
                var sum = sums[lower(i, j)];
                for (var k = 0u; k < j; k++) { sum -= sums[lower(i, k)] * sums[lower(j, k)]; }
                sums[lower(i, j)] = sum / root;
            }
        }
        workgroupBarrier();
    }
    if t != 0u { return; }
    // Computes the coefficients in place of the target's row.
    let at = group * N;
    var intercept = means[W];
    for (var back = 0u; back < W; back++) {
        let i = W - 1 - back;
        var sum = sums[lower(W, i)];
        for (var k = i + 1; k < W; k++) { sum -= sums[lower(k, i)] * sums[lower(W, k)]; }
        let c = sum / sums[lower(i, i)];
        sums[lower(W, i)] = c;
        intercept -= c * means[i];
        if !is_finite(c) && state == 0u { state = 3u; }
    }
    if params.intercept == 0u { intercept = A(0); }
    if !is_finite(intercept) && state == 0u { state = 3u; }
    for (var j = 0u; j < W; j++) {
        coefficients[at + j] = select(params.nan, sums[lower(W, j)], state == 0u);
    }
    coefficients[at + W] = select(params.nan, intercept, state == 0u);
    statuses[group] = state;
}
";
