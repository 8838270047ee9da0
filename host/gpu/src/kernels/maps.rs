//! Element-wise functions: one kernel per sequence of steps, independent of its constants.

use sandbar_dense::{Binary, Broadcast, Dtype, Map, Step as Of, Unary, broadcast};

use super::kernel::{ElementwiseKernel, Kernel, MapStep};
use super::step::{Immediates, Step, grid};
use super::wgsl::{binding, head};
use crate::tensor::DeviceTensor;

/// Threads per group, and values per thread.
const THREADS: u64 = 256;
const EACH: u64 = 4;
/// Maximum number of constants that are passed as parameters; further ones are part of the text.
const CONSTANTS_MAX: usize = 12;

pub(super) fn plan(map: &Map, inputs: &[&DeviceTensor], output: &DeviceTensor) -> Vec<Step> {
    let (dtype, shape) = (output.spec.dtype, output.spec.shape);
    let count = shape.count();
    if count == 0 {
        return Vec::new();
    }
    let mut params = Vec::new();
    let steps = map.steps().iter().map(|step| match *step {
        Of::Input(input) => MapStep::Input(input),
        Of::Constant(value) if params.len() < CONSTANTS_MAX => {
            params.push(value);
            MapStep::Parameter(params.len() as u8 - 1)
        }
        Of::Constant(value) => MapStep::Constant(value.to_bits()),
        Of::One(function) => MapStep::One(function),
        Of::Two(function) => MapStep::Two(function),
        Of::Select => MapStep::Select,
    });
    let steps = steps.collect();
    let broadcasts =
        inputs.iter().map(|tensor| broadcast(tensor.spec.shape, shape).unwrap_or(Broadcast::Same)).collect();
    let immediates = params.iter().fold(Immediates::default(), |all, value| all.value(dtype, *value));
    let mut bindings: Vec<_> = inputs.iter().map(|tensor| tensor.buffer.clone()).collect();
    bindings.push(output.buffer.clone());
    vec![Step {
        kernel: Kernel::Map(ElementwiseKernel { dtype, inputs: broadcasts, steps }),
        bindings,
        written: 1,
        immediates: immediates.value(dtype, f64::NAN).size(count).size(shape.last()).bytes(dtype),
        grid: grid((count as u64).div_ceil(THREADS * EACH)),
    }]
}

impl ElementwiseKernel {
    pub(super) fn source(&self) -> String {
        let mut text = head(self.dtype, self.dtype);
        let params = self.steps.iter().filter(|step| matches!(step, MapStep::Parameter(_))).count();
        let constants: String = (0..params).map(|at| format!("c{at}: A, ")).collect();
        text += &format!(
            "struct Params {{ {constants}nan: A, count: u32, columns: u32 }}\nvar<immediate> params: Params;\n"
        );
        for at in 0..self.inputs.len() {
            text += &binding(at, &format!("in{at}"), "T", false);
        }
        text += &binding(self.inputs.len(), "out", "U", true);
        text += POW;
        text += &self.value();
        let each = |write: &dyn Fn(u64) -> String| (0..EACH).map(write).collect::<String>();
        let all = each(&|k| format!("        let value{k} = value(first + {});\n", k * THREADS))
            + &each(&|k| format!("        out[first + {}] = U(value{k});\n", k * THREADS));
        text + &format!(
            "@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let first = group_index(w, n) * {} + t;
    if first + {} < params.count {{
        // Reads all values before any is written, so that the reads do not wait for each other.
{all}    }} else {{
        for (var i = first; i < params.count; i += {THREADS}) {{ out[i] = U(value(i)); }}
    }}
}}
",
            THREADS * EACH,
            THREADS * (EACH - 1),
        )
    }

    /// Returns the function's text: each value on the stack has a name.
    fn value(&self) -> String {
        let mut text = String::from("fn value(i: u32) -> A {\n");
        let mut stack: Vec<usize> = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            let mut pop = || stack.pop().unwrap_or_default();
            let value = match *step {
                MapStep::Input(input) => {
                    let index = match self.inputs[usize::from(input)] {
                        Broadcast::Same => "i",
                        Broadcast::Value => "0u",
                        Broadcast::Row => "i % params.columns",
                        Broadcast::Column => "i / params.columns",
                    };
                    format!("A(in{input}[{index}])")
                }
                MapStep::Parameter(at) => format!("params.c{at}"),
                MapStep::Constant(bits) => constant(f64::from_bits(bits), self.dtype),
                MapStep::One(function) => one(function, pop()),
                MapStep::Two(function) => {
                    let second = pop();
                    two(function, pop(), second)
                }
                MapStep::Select => {
                    let (third, second, first) = (pop(), pop(), pop());
                    format!("select(v{second}, v{third}, v{first} == A(0))")
                }
            };
            text += &format!("    let v{at} = {value};\n");
            stack.push(at);
        }
        text + &format!("    return v{};\n}}\n", stack.pop().unwrap_or_default())
    }
}

fn one(function: Unary, operand: usize) -> String {
    match function {
        Unary::Negate => format!("-v{operand}"),
        Unary::Abs => format!("abs(v{operand})"),
        Unary::Floor => format!("floor(v{operand})"),
        Unary::Sqrt => format!("sqrt(v{operand})"),
        Unary::Exp => format!("exp(v{operand})"),
        Unary::Log => format!("log(v{operand})"),
        Unary::Tanh => format!("tanh_(v{operand})"),
    }
}

fn two(function: Binary, first: usize, second: usize) -> String {
    let infix = |operator| format!("v{first} {operator} v{second}");
    match function {
        Binary::Add => infix("+"),
        Binary::Subtract => infix("-"),
        Binary::Multiply => infix("*"),
        Binary::Divide => infix("/"),
        Binary::Min => format!("min(v{first}, v{second})"),
        Binary::Max => format!("max(v{first}, v{second})"),
        Binary::Pow => format!("pow_(v{first}, v{second})"),
        Binary::Less => format!("select(A(0), A(1), v{first} < v{second})"),
    }
}

/// Formats a number. NaN and infinities are composed from finite ones.
fn constant(value: f64, dtype: Dtype) -> String {
    if dtype == Dtype::F64 {
        return format!("A({value:e}lf)");
    }
    format!("bitcast<f32>({}u)", (value as f32).to_bits())
}

/// Cases that devices leave undefined: `pow` of bases below and at zero, `tanh` where its exponentials overflow.
const POW: &str = "
fn tanh_(x: A) -> A { return select(tanh(clamp(x, A(-20), A(20))), x, is_nan(x)); }
fn pow_(x: A, y: A) -> A {
    if y == A(0) { return A(1); }
    if x < A(0) { return params.nan; }
    if x == A(0) { return select(A(1) / x, A(0), y > A(0)); }
    return pow(x, y);
}
";
