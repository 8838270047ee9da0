//! Attacks of guests on a GPU, and what they observe.

use sandbar_guest::dense::{DenseError, Device, Dtype, Expression, Kernel, Tensor, input, use_device};
use sandbar_guest::prelude::*;

/// Runs an attack and returns its result, and whether another task's work is right afterwards.
#[task]
fn attacked(kind: String) -> Result<String, TaskError> {
    let seen = attack::options().gpus(1.0).submit(kind).get()?;
    let is_well = is_well::options().gpus(1.0).submit().get()?;
    Ok(format!("{seen}, then {is_well}"))
}

/// Runs one attack `turns` times, and returns the distinct results.
#[task]
fn storm(kind: String, turns: usize) -> Result<Vec<String>, TaskError> {
    let mut seen = Vec::new();
    for _ in 0..turns {
        let now = attack::options().gpus(1.0).submit(kind.clone()).get()?;
        if !seen.contains(&now) {
            seen.push(now);
        }
    }
    Ok(seen)
}

#[task]
fn is_well() -> String {
    use_device(Device::Gpu);
    let half = || upload(&[1.0, 2.0, 3.0])?.to(Dtype::F16);
    let doubled = || Tensor::map(&(input(0) * 2.0), &[&half()?])?.to(Dtype::F32)?.to_vec::<f32>();
    outcome(doubled().map(|values| values == [2.0, 4.0, 6.0]))
}

fn upload(values: &[f32]) -> Result<Tensor, DenseError> {
    Tensor::new(&[values.len()], values)
}

fn outcome<T: std::fmt::Debug>(result: Result<T, DenseError>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}: {}", error.kind, error.message),
    }
}

/// Returns a kernel with this body over a writable array.
fn body(body: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read_write> values: array<f32>;
         @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{ {body} }}"
    )
}

/// Runs a kernel over sixteen ones, and returns the values.
fn runs(wgsl: &str) -> Result<Vec<f32>, DenseError> {
    let values = upload(&[1.0; 16])?;
    Kernel::new(wgsl)?.dispatch(&[&values], [1, 1, 1])?;
    values.to_vec()
}

/// Invalid kernels, and kernels over a limit.
const KERNELS: &[(&str, &str)] = &[
    ("no-text", "this is no kernel"),
    ("no-entry", "fn f() {}"),
    ("two-entries", "@compute @workgroup_size(1) fn a() {} @compute @workgroup_size(1) fn b() {}"),
    ("fragment", "@fragment fn main() {}"),
    ("recursion", "fn f() { f(); } @compute @workgroup_size(1) fn main() { f(); }"),
    ("many-threads", "@compute @workgroup_size(1048576) fn main() {}"),
    ("much-shared", "var<workgroup> x: array<u32, 262144>; @compute @workgroup_size(1) fn main() { x[0] = 1u; }"),
    (
        "huge-array",
        "@compute @workgroup_size(1) fn main(@builtin(local_invocation_index) i: u32) { var x: array<array<u32, 65536>, 65536>; x[i][i] = 1u; }",
    ),
    (
        "uniform",
        "struct S { x: vec4<f32> } @group(0) @binding(0) var<uniform> s: S; @compute @workgroup_size(1) fn main() { let x = s.x; }",
    ),
    (
        "texture",
        "@group(0) @binding(0) var t: texture_2d<f32>; @compute @workgroup_size(1) fn main() { let x = textureLoad(t, vec2(0, 0), 0); }",
    ),
    (
        "other-group",
        "@group(1) @binding(0) var<storage, read_write> v: array<f32>; @compute @workgroup_size(1) fn main() { v[0] = 2.0; }",
    ),
    ("override", "override n: u32; @compute @workgroup_size(n) fn main() {}"),
    ("not-const", "@compute @workgroup_size(1) fn main() { let x = 1 / 0; }"),
];

#[task]
fn attack(kind: String) -> String {
    use_device(Device::Gpu);
    if let Some((_, wgsl)) = KERNELS.iter().find(|(name, _)| *name == kind) {
        return outcome(runs(wgsl));
    }
    match kind.as_str() {
        "endless" => outcome(runs(&body(
            "var x = values[0]; loop { x = sin(x) + 1.0; values[id.x % 16u] = x; if x < -5.0 { break; } }",
        ))),
        "endless-barrier" => outcome(runs(&body(
            "var x = 0u; loop { workgroupBarrier(); x += 1u; if x == 0u && values[0] < -5.0 { break; } } values[0] = f32(x);",
        ))),
        // Out-of-bounds writes hit the kernel's own tensor or nothing.
        "writes-behind" => {
            let neighbours: Vec<Tensor> = (0..20).filter_map(|_| upload(&[7.0; 16]).ok()).collect();
            let wrote = runs(&body("for (var k = 0u; k < 100000u; k++) { values[16u + id.x + k * 64u] = 9.0; }"));
            let untouched = neighbours.iter().filter(|tensor| tensor.to_vec::<f32>() == Ok(vec![7.0; 16])).count();
            format!("{untouched} of {}, {}", neighbours.len(), wrote.is_ok())
        }
        "reads-behind" => {
            // Memory that other tasks of the job used before.
            for _ in 0..20 {
                let _ = upload(&[7.0; 16]).and_then(|tensor| tensor.to_vec::<f32>());
            }
            let found = runs(&body("if id.x < 16u { values[id.x] = values[16u + id.x * 1000u]; }"));
            outcome(found.map(|found| found.iter().all(|value| [0.0, 1.0].contains(value))))
        }
        "reads-fresh" => {
            for _ in 0..20 {
                let _ = upload(&[7.0; 1000]).and_then(|tensor| tensor.to_vec::<f32>());
            }
            let fresh = Tensor::zeros(Dtype::F32, &[1000]);
            outcome(fresh.and_then(|fresh| {
                Kernel::new(&body("if id.x > 4000000u { values[0] = 1.0; }"))?.dispatch(&[&fresh], [1, 1, 1])?;
                Ok(fresh.to_vec::<f32>()?.iter().all(|value| *value == 0.0))
            }))
        }
        "reads-shared" => outcome(
            runs(
                "var<workgroup> x: array<f32, 1000>;
             @group(0) @binding(0) var<storage, read_write> values: array<f32>;
             @compute @workgroup_size(16) fn main(@builtin(local_invocation_index) i: u32) { values[i] = x[i * 50u]; }",
            )
            .map(|found| found == [0.0; 16]),
        ),
        "huge-index" => outcome(
            runs(&body("values[4294967295u - id.x] = 9.0; values[id.x * 1000000007u] = 1.0;")).map(|found| found.len()),
        ),
        "long-text" => outcome(runs(&format!("{}{}", body(""), " ".repeat(70_000)))),
        "deep-text" => {
            let deep = format!("values[0] = {}1.0{};", "(".repeat(30_000), ")".repeat(30_000));
            outcome(runs(&body(&deep)))
        }
        "deep-blocks" => outcome(runs(&body(&format!("{}{}", "{".repeat(30_000), "}".repeat(30_000))))),
        "large-grid" => outcome(upload(&[1.0; 16]).and_then(|values| {
            Kernel::new(&body("values[0] = 2.0;"))?.dispatch(&[&values], [65_535, 65_535, 65_535])?;
            values.to_vec::<f32>()
        })),
        "many-bindings" => outcome(upload(&[1.0; 16]).and_then(|values| {
            Kernel::new(&body("values[0] = 2.0;"))?.dispatch(&[&values; 9], [1, 1, 1])?;
            values.to_vec::<f32>()
        })),
        "bound-twice" => outcome(upload(&[1.0; 16]).and_then(|values| {
            let both = "@group(0) @binding(0) var<storage, read> a: array<f32>;
                        @group(0) @binding(1) var<storage, read_write> b: array<f32>;
                        @compute @workgroup_size(1) fn main() { b[0] = a[1]; }";
            Kernel::new(both)?.dispatch(&[&values, &values], [1, 1, 1])?;
            values.to_vec::<f32>()
        })),
        "many-kernels" => {
            let all: Vec<Result<Kernel, DenseError>> =
                (0..100).map(|_| Kernel::new(&body("values[0] = 2.0;"))).collect();
            let last = all.into_iter().last().expect("there are some");
            outcome(last.map(|_| ()))
        }
        "many-tensors" => {
            let all: Result<Vec<Tensor>, DenseError> = (0..70_000).map(|_| upload(&[1.0])).collect();
            outcome(all.map(|all| all.len()))
        }
        "much-memory" => {
            let mut all = Vec::new();
            let full = loop {
                match Tensor::zeros(Dtype::F32, &[1 << 24]) {
                    Ok(tensor) => all.push(tensor),
                    Err(error) => break error,
                }
            };
            outcome::<()>(Err(full))
        }
        "large-shape" => outcome(Tensor::zeros(Dtype::U32, &[65_536, 65_536]).map(|_| ())),
        "five-directions" => outcome(Tensor::zeros(Dtype::U32, &[1; 5]).map(|_| ())),
        "few-values" => outcome(Tensor::new(&[4], &[1.0_f32]).map(|_| ())),
        "disagreeing" => outcome(upload(&[1.0; 6]).and_then(|a| {
            let (a, b) = (a.reshaped(&[2, 3])?, upload(&[1.0; 8])?.reshaped(&[4, 2])?);
            a.dot(&b)?.to_vec::<f32>()
        })),
        "large-product" => {
            outcome(Tensor::zeros(Dtype::F32, &[1 << 20, 1]).and_then(|a| a.dot_transposed(&a).map(|_| ())))
        }
        "no-places" => outcome(upload(&[1.0, 2.0]).and_then(|values| {
            let places = Tensor::new(&[3], &[1_u32, 2, u32::MAX])?;
            values.take(&places)?.to_vec::<f32>()
        })),
        "many-steps" => {
            let steps = (0..100).fold(input(0), |steps: Expression, _| steps + 1.0);
            outcome(upload(&[1.0]).and_then(|x| Tensor::map(&steps, &[&x])?.to_vec::<f32>()))
        }
        "other-input" => outcome(upload(&[1.0]).and_then(|x| Tensor::map(&input(3), &[&x])?.to_vec::<f32>())),
        "outside" => outcome(upload(&[1.0; 4]).and_then(|x| {
            let mut two = [0.0_f32; 2];
            x.read(3, &mut two)
        })),
        _ => format!("nobody knows `{kind}`"),
    }
}
