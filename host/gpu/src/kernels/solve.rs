//! Systems of equations, one thread group each, in device memory.

use super::kernel::{Kernel, Solve};
use super::step::{Immediates, Step, grid};
use super::wgsl::{arithmetic, binding, head};
use crate::GpuError;
use crate::tensor::{DeviceTensor, TensorMemory};
use sandbar_dense::{Shape, Spec};

/// Threads per group.
const THREADS: usize = 64;

pub(super) fn plan(
    memory: &TensorMemory,
    is_cholesky: bool,
    [systems, right]: [&DeviceTensor; 2],
    output: &DeviceTensor,
) -> Result<Vec<Step>, GpuError> {
    let dtype = systems.spec.dtype;
    let (count, rows, unknowns) = systems.spec.shape.matrices().unwrap_or_default();
    if output.spec.shape.count() == 0 {
        return Ok(Vec::new());
    }
    let columns = right.spec.shape.last();
    // Copies of systems and right sides side by side, solved in place.
    let space = Shape::new(&[count as u32, rows as u32, (unknowns + columns) as u32])?;
    let space = memory.tensor(Spec { dtype: arithmetic(dtype), shape: space })?;
    let immediates = Immediates::default().value(dtype, f64::NAN).size(count).size(rows).size(unknowns).size(columns);
    Ok(vec![Step {
        kernel: Kernel::Solve(Solve { dtype, is_cholesky }),
        bindings: [systems, right, &space, output].map(|tensor| tensor.buffer.clone()).to_vec(),
        written: 2,
        immediates: immediates.bytes(dtype),
        grid: grid(count as u64),
    }])
}

impl Solve {
    pub(super) fn source(&self) -> String {
        let text = head(self.dtype, self.dtype)
            + "struct Params { nan: A, count: u32, rows: u32, unknowns: u32, columns: u32 }\nvar<immediate> params: Params;\n"
            + &binding(0, "systems", "T", false)
            + &binding(1, "right", "T", false)
            + &binding(2, "space", "A", true)
            + &binding(3, "out", "U", true);
        let factor = if self.is_cholesky { CHOLESKY } else { QR };
        (text + &SOLVE.replace("FACTOR", factor)).replace("THREADS", &THREADS.to_string())
    }
}

/// Afterwards the upper triangle of the factored matrix and the right sides form a triangular system.
const SOLVE: &str = "
var<workgroup> parts: array<A, THREADS>;
var<workgroup> is_bad: u32;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let system = group_index(w, n);
    if system >= params.count { return; }
    let wide = params.unknowns + params.columns;
    let base = system * params.rows * wide;
    if t == 0u { is_bad = 0u; }
    for (var at = t; at < params.rows * wide; at += THREADS) {
        let row = at / wide;
        let column = at % wide;
        if column < params.unknowns {
            space[base + at] = A(systems[(system * params.rows + row) * params.unknowns + column]);
        } else {
            space[base + at] = A(right[(system * params.rows + row) * params.columns + column - params.unknowns]);
        }
    }
    storageBarrier();
    workgroupBarrier();
    FACTOR
    // Each thread solves a right side.
    for (var column = params.unknowns + t; column < wide; column += THREADS) {
        for (var back = 0u; back < params.unknowns; back++) {
            let i = params.unknowns - 1 - back;
            var sum = space[base + i * wide + column];
            for (var k = i + 1; k < params.unknowns; k++) {
                sum -= space[base + i * wide + k] * space[base + k * wide + column];
            }
            let x = sum / space[base + i * wide + i];
            space[base + i * wide + column] = x;
            let at = (system * params.unknowns + i) * params.columns + column - params.unknowns;
            out[at] = U(select(x, params.nan, is_bad != 0u));
        }
    }
}
";

/// Factors by rows above the diagonal: `Lᵀ`, and `L⁻¹` times the right sides.
const CHOLESKY: &str = "
    // Reads the lower triangle of a system, and works on the columns of the upper one.
    for (var at = t; at < params.unknowns * params.unknowns; at += THREADS) {
        let row = at / params.unknowns;
        let column = at % params.unknowns;
        if row < column { space[base + row * wide + column] = space[base + column * wide + row]; }
    }
    storageBarrier();
    workgroupBarrier();
    for (var j = 0u; j < params.unknowns; j++) {
        let pivot = space[base + j * wide + j];
        if !(pivot > A(0)) { is_bad = 1u; }
        let root = sqrt(pivot);
        storageBarrier();
        workgroupBarrier();
        for (var column = j + t; column < wide; column += THREADS) {
            if column == j { space[base + j * wide + j] = root; } else { space[base + j * wide + column] /= root; }
        }
        storageBarrier();
        workgroupBarrier();
        // Updates the rows below.
        for (var column = j + 1 + t; column < wide; column += THREADS) {
            let times = space[base + j * wide + column];
            let last = select(params.unknowns, column + 1, column < params.unknowns);
            for (var i = j + 1; i < last; i++) { space[base + i * wide + column] -= space[base + j * wide + i] * times; }
        }
        storageBarrier();
        workgroupBarrier();
    }
";

/// Householder reflections. Source: Golub and Van Loan, *Matrix Computations*, 5.2.
const QR: &str = "
    for (var j = 0u; j < params.unknowns; j++) {
        var part = A(0);
        for (var i = j + t; i < params.rows; i += THREADS) {
            let x = space[base + i * wide + j];
            part += x * x;
        }
        parts[t] = part;
        workgroupBarrier();
        for (var half = THREADS / 2u; half > 0u; half /= 2u) {
            if t < half { parts[t] += parts[t + half]; }
            workgroupBarrier();
        }
        let norm = sqrt(parts[0]);
        let x = space[base + j * wide + j];
        let diagonal = select(-norm, norm, x < A(0));
        // The reflection vector is the column with this first value.
        let v = x - diagonal;
        storageBarrier();
        workgroupBarrier();
        if norm > A(0) {
            for (var column = j + 1 + t; column < wide; column += THREADS) {
                var sum = v * space[base + j * wide + column];
                for (var i = j + 1; i < params.rows; i++) { sum += space[base + i * wide + j] * space[base + i * wide + column]; }
                let times = sum / (diagonal * v);
                space[base + j * wide + column] += times * v;
                for (var i = j + 1; i < params.rows; i++) { space[base + i * wide + column] += times * space[base + i * wide + j]; }
            }
        }
        if t == 0u { space[base + j * wide + j] = diagonal; }
        storageBarrier();
        workgroupBarrier();
    }
";
