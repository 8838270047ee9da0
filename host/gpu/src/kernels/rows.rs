//! Reductions along a dimension.

use sandbar_dense::{Dtype, Reduction, Shape, Spec};

use super::kernel::{Kernel, Reduce, Softmax};
use super::step::{Immediates, Step, grid};
use super::wgsl::{arithmetic, binding, head};
use crate::GpuError;
use crate::tensor::{DeviceTensor, TensorMemory};

/// Threads of a group that reduces one line, and of a group whose threads reduce a line each.
const THREADS: usize = 256;
const LINES: usize = 64;
/// Lines shorter than this are reduced by one thread each.
const SHORT: usize = 64;
/// Number of lines that keep a device busy.
const MANY: usize = 1 << 14;
/// Minimum values of a slice, and maximum number of slices of all lines: few long lines are cut into slices.
const SLICE: usize = 4096;
const SLICES_MAX: usize = 1024;

fn is_index(with: Reduction) -> bool {
    matches!(with, Reduction::ArgMax | Reduction::ArgMin)
}

pub(super) fn reduce(
    memory: &TensorMemory,
    with: Reduction,
    along: usize,
    input: &DeviceTensor,
    output: &DeviceTensor,
) -> Result<Vec<Step>, GpuError> {
    let sizes = input.spec.shape.sizes();
    let product = |sizes: &[u32]| sizes.iter().map(|size| *size as usize).product::<usize>();
    let (before, size, after) = (product(&sizes[..along]), sizes[along] as usize, product(&sizes[along + 1..]));
    let lines = before * after;
    if lines == 0 {
        return Ok(Vec::new());
    }
    let geometry = LineGeometry { with, size, after, lines, divisor: size as f64 };
    let slices = match size.div_ceil(SLICE).min(SLICES_MAX / lines.min(SLICES_MAX)) {
        0 | 1 => return Ok(vec![geometry.step(input, None, output, None, 1)]),
        slices => slices,
    };
    // Reduces each slice of a line to a value, and these values to one.
    let parts = |dtype| memory.tensor(Spec { dtype, shape: shape(before, slices, after)? });
    let values = parts(arithmetic(input.spec.dtype))?;
    let indices = if is_index(with) { Some(parts(Dtype::U32)?) } else { None };
    let first = LineGeometry { divisor: 1.0, ..geometry }.step(input, None, &values, indices.as_ref(), slices);
    let second = LineGeometry { size: slices, ..geometry }.step(&values, indices.as_ref(), output, None, 1);
    Ok(vec![first, second])
}

fn shape(before: usize, size: usize, after: usize) -> Result<Shape, GpuError> {
    Ok(Shape::new(&[before as u32, size as u32, after as u32])?)
}

/// Geometry of the lines.
#[derive(Clone, Copy)]
struct LineGeometry {
    with: Reduction,
    size: usize,
    after: usize,
    lines: usize,
    /// Divisor of a mean.
    divisor: f64,
}

impl LineGeometry {
    /// Returns the launch that reduces slices of each line, with indices and values as requested.
    fn step(
        self,
        input: &DeviceTensor,
        in_indices: Option<&DeviceTensor>,
        output: &DeviceTensor,
        out_indices: Option<&DeviceTensor>,
        slices: usize,
    ) -> Step {
        let LineGeometry { with, size, after, lines, divisor } = self;
        let from = input.spec.dtype;
        let by_group = slices > 1 || size >= SHORT && (after == 1 || lines < MANY);
        let start = if matches!(with, Reduction::Min | Reduction::ArgMin) { f64::INFINITY } else { f64::NEG_INFINITY };
        let divisor = if with == Reduction::Mean { divisor } else { 1.0 };
        let immediates = Immediates::default().value(from, divisor).value(from, start).size(lines).size(size);
        let immediates = immediates.size(after).size(slices).size(size.div_ceil(slices));
        let bindings = [Some(input), in_indices, out_indices, Some(output)];
        let groups = if by_group { lines * slices } else { lines.div_ceil(LINES) };
        let to = output.spec.dtype;
        let (has_indices, returns_values) = (in_indices.is_some(), out_indices.is_some());
        Step {
            kernel: Kernel::Reduce(Reduce { from, to, with, by_group, has_indices, returns_values }),
            bindings: bindings.into_iter().flatten().map(|tensor| tensor.buffer.clone()).collect(),
            written: 1 + usize::from(returns_values),
            immediates: immediates.bytes(from),
            grid: grid(groups as u64),
        }
    }
}

impl Reduce {
    pub(super) fn source(&self) -> String {
        let mut text = head(self.from, self.to);
        text += "struct Params { divisor: A, start: A, lines: u32, size: u32, after: u32, slices: u32, length: u32 }\n\
                 var<immediate> params: Params;\n";
        let mut at = 0;
        let mut declare = |name: &str, values: &str, is_written| {
            at += 1;
            binding(at - 1, name, values, is_written)
        };
        text += &declare("values", "T", false);
        if self.has_indices {
            text += &declare("indices", "u32", false);
        }
        if self.returns_values {
            text += &declare("out_indices", "u32", true);
        }
        text += &declare("out", "U", true);
        let is_max = matches!(self.with, Reduction::Max | Reduction::ArgMax);
        text += &format!(
            "fn is_beyond(value: A, found: A) -> bool {{ return !is_nan(found) && (is_nan(value) || value {} found); }}\n",
            if is_max { ">" } else { "<" },
        );
        text += if is_index(self.with) {
            INDEXED
        } else if matches!(self.with, Reduction::Max | Reduction::Min) {
            "alias State = A;
fn start() -> State { return params.start; }
fn merge(first: State, second: State) -> State { return select(first, second, is_beyond(second, first)); }
fn load(at: u32, s: u32) -> State { return A(values[at]); }
"
        } else {
            "alias State = A;
fn start() -> State { return A(0); }
fn merge(first: State, second: State) -> State { return first + second; }
fn load(at: u32, s: u32) -> State { return A(values[at]); }
"
        };
        if is_index(self.with) {
            let index = if self.has_indices { "indices[at]" } else { "s" };
            text += &format!("fn load(at: u32, s: u32) -> State {{ return State(A(values[at]), {index}); }}\n");
        }
        text += match (is_index(self.with), self.returns_values) {
            (true, true) => {
                "fn store(at: u32, state: State) { out[at] = U(state.value); out_indices[at] = state.index; }\n"
            }
            (true, false) => "fn store(at: u32, state: State) { out[at] = state.index; }\n",
            (false, _) => "fn store(at: u32, state: State) { out[at] = U(state / params.divisor); }\n",
        };
        text + &if self.by_group {
            BY_GROUP.replace("THREADS", &THREADS.to_string())
        } else {
            BY_THREAD.replace("LINES", &LINES.to_string())
        }
    }
}

/// Finds the maximum or minimum and its index, the first of several.
const INDEXED: &str = "
struct State { value: A, index: u32 }
const NONE = 0xffffffffu;
fn start() -> State { return State(params.start, NONE); }
fn merge(first: State, second: State) -> State {
    if second.index == NONE { return first; }
    if first.index == NONE || is_beyond(second.value, first.value) { return second; }
    if is_beyond(first.value, second.value) || first.index < second.index { return first; }
    return second;
}
";

const BY_THREAD: &str = "
@compute @workgroup_size(LINES)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let line = group_index(w, n) * LINES + t;
    if line >= params.lines { return; }
    let first = line / params.after * params.size * params.after + line % params.after;
    var state = start();
    for (var s = 0u; s < params.size; s++) { state = merge(state, load(first + s * params.after, s)); }
    store(line, state);
}
";

const BY_GROUP: &str = "
var<workgroup> states: array<State, THREADS>;
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let at = group_index(w, n);
    if at >= params.lines * params.slices { return; }
    let line = at / params.slices;
    let slice = at % params.slices;
    let before = line / params.after;
    let column = line % params.after;
    let first = before * params.size * params.after + column;
    let begin = slice * params.length;
    let to = min(begin + params.length, params.size);
    var state = start();
    var s = begin + t;
    // Reads four values at once, so that the reads do not wait for each other.
    for (; s + 3 * THREADS < to; s += 4 * THREADS) {
        let a = load(first + s * params.after, s);
        let b = load(first + (s + THREADS) * params.after, s + THREADS);
        let c = load(first + (s + 2 * THREADS) * params.after, s + 2 * THREADS);
        let d = load(first + (s + 3 * THREADS) * params.after, s + 3 * THREADS);
        state = merge(state, merge(merge(a, b), merge(c, d)));
    }
    for (; s < to; s += THREADS) { state = merge(state, load(first + s * params.after, s)); }
    states[t] = state;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if t < half { states[t] = merge(states[t], states[t + half]); }
        workgroupBarrier();
    }
    if t == 0u { store((before * params.slices + slice) * params.after + column, states[0]); }
}
";

pub(super) fn softmax(input: &DeviceTensor, output: &DeviceTensor, is_log_sum: bool) -> Vec<Step> {
    let (dtype, shape) = (input.spec.dtype, input.spec.shape);
    let columns = shape.last();
    let rows: usize = shape.sizes()[..shape.rank() - 1].iter().map(|size| *size as usize).product();
    if output.spec.shape.count() == 0 {
        return Vec::new();
    }
    vec![Step {
        kernel: Kernel::Softmax(Softmax { dtype, is_log_sum }),
        bindings: vec![input.buffer.clone(), output.buffer.clone()],
        written: 1,
        immediates: Immediates::default().value(dtype, f64::NEG_INFINITY).size(rows).size(columns).bytes(dtype),
        grid: grid(rows as u64),
    }]
}

impl Softmax {
    pub(super) fn source(&self) -> String {
        let mut text = head(self.dtype, self.dtype);
        text += "struct Params { start: A, rows: u32, columns: u32 }\nvar<immediate> params: Params;\n";
        text += &(binding(0, "values", "T", false) + &binding(1, "out", "U", true));
        let end = if self.is_log_sum {
            "if t == 0u { out[row] = U(select(largest + log(sum), largest, abs(largest) == -params.start)); }"
        } else {
            "for (var s = t; s < params.columns; s += THREADS) { out[first + s] = U(exp(A(values[first + s]) - largest) / sum); }"
        };
        text + &SOFTMAX.replace("END", end).replace("THREADS", &LINES.to_string())
    }
}

const SOFTMAX: &str = "
fn larger(first: A, second: A) -> A { return select(first, second, !is_nan(first) && (is_nan(second) || second > first)); }
var<workgroup> parts: array<A, THREADS>;
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group_index(w, n);
    if row >= params.rows { return; }
    let first = row * params.columns;
    var part = params.start;
    for (var s = t; s < params.columns; s += THREADS) { part = larger(part, A(values[first + s])); }
    parts[t] = part;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if t < half { parts[t] = larger(parts[t], parts[t + half]); }
        workgroupBarrier();
    }
    let largest = parts[0];
    workgroupBarrier();
    part = A(0);
    for (var s = t; s < params.columns; s += THREADS) { part += exp(A(values[first + s]) - largest); }
    parts[t] = part;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if t < half { parts[t] += parts[t + half]; }
        workgroupBarrier();
    }
    let sum = parts[0];
    END
}
";
