//! Products of the kernel compared with f64, with matrix units and with emulated ones in plain WGSL.

use std::sync::Arc;

use sandbar_dense::{OwnedValues, Spec};
use wgpu::naga;

use super::*;
use crate::device::Device;
use crate::kernels::{Kernel, product};
use crate::{Adapter, DeviceTensor, Stream, use_software};

const UNITS: MatrixUnits = MatrixUnits { side: 16, lanes: 32 };

/// Emulated small matrices. Operands stay in the memory that they were loaded from; sums are eight values per thread of
/// a subgroup.
const EMULATED: &str = "
struct Small { at: u32, stride: u32, is_by_rows: bool }
alias First = Small;
alias Second = Small;
struct Sums { values: array<f32, 8> }
var<private> lane: u32;
fn load(at: u32, stride: u32, is_by_rows: bool) -> Small { return Small(at, stride, is_by_rows); }
fn place_of(small: Small, row: u32, column: u32) -> u32 {
    return 4 * small.at + select(row + 4 * small.stride * column, 4 * small.stride * row + column, small.is_by_rows);
}
fn coopMultiplyAdd(a: First, b: Second, c: Sums) -> Sums {
    var sums = c;
    // Compilers would unroll loops with known bounds, and take minutes.
    let is_any = min(params.count, 1);
    for (var at = 0u; at < 128 * is_any; at++) {
        let i = at / 16;
        let k = at % 16;
        let of_a = place_of(a, (8 * lane + i) / 16, k);
        let of_b = place_of(b, k, (8 * lane + i) % 16);
        sums.values[i] += f32(staged_first[of_a / 4][of_a % 4]) * f32(staged_second[of_b / 4][of_b % 4]);
    }
    return sums;
}
fn store(c: Sums, at: u32, stride: u32) {
    for (var i = 0u; i < 8; i++) { sums[at + (8 * lane + i) / 16 * stride + (8 * lane + i) % 16] = c.values[i]; }
}
";

/// Replaces the operations of matrix units in a kernel's text by plain WGSL.
pub(in crate::kernels) fn emulated(text: &str) -> String {
    let is_of_units = |line: &&str| line.contains("wgpu_cooperative_matrix") || line.contains("= coop_mat16x16<");
    let mut text: String = text.lines().filter(|line| !is_of_units(line)).map(|line| format!("{line}\n")).collect();
    for name in ["first", "second"] {
        let alias = if name == "first" { "First" } else { "Second" };
        for (load, is_by_rows) in [("coopLoadT", true), ("coopLoad", false)] {
            // Each operation starts an expression, and ends its line.
            let begins = format!("{load}<{alias}>(&staged_{name}[");
            let lines = text.lines().map(|line| match line.split_once(&begins) {
                Some((before, after)) => {
                    let (at, stride) = after.split_once("], ").unwrap();
                    format!("{before}load({at}, {}, {is_by_rows});\n", stride.trim_end_matches(");"))
                }
                None => format!("{line}\n"),
            });
            text = lines.collect();
        }
    }
    text.replace("coopStoreT(", "store(").replace("&sums[own]", "own").replace("let lane =", "lane =") + EMULATED
}

fn all() -> impl Iterator<Item = Cooperative> {
    let layouts = [0, 1, 2, 3].map(|at| Layout { is_deep: at & 1 != 0, is_by_four: at & 2 != 0 });
    let operands = layouts.into_iter().flat_map(move |first| layouts.map(|second| (first, second)));
    operands.flat_map(|(first, second)| {
        let kinds = [(16, 32), (16, 64), (8, 8), (8, 4)];
        kinds.into_iter().flat_map(move |(side, lanes)| {
            [(Dtype::F16, 1), (Dtype::F16, 2), (Dtype::F32, 1), (Dtype::F32, 2)].map(|(to, blocks)| Cooperative {
                units: MatrixUnits { side, lanes },
                to,
                blocks,
                first,
                second,
            })
        })
    })
}

#[test]
fn texts_are_valid() {
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    let used = Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX | Capabilities::IMMEDIATES;
    for kernel in all() {
        let text = kernel.source();
        let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&text)));
        let info = Validator::new(ValidationFlags::all(), used).validate(&module);
        let info = info.unwrap_or_else(|e| panic!("{}\n{text}", e.emit_to_string(&text)));
        let options = naga::back::spv::Options { lang_version: (1, 6), ..naga::back::spv::Options::default() };
        let words = naga::back::spv::write_vec(&module, &info, &options, None).unwrap();
        assert!(!words.is_empty());
    }
}

#[test]
fn there_is_room_within_usual_limits() {
    let limits = wgpu::Limits { max_compute_workgroup_storage_size: 32 << 10, ..wgpu::Limits::default() };
    assert!(UNITS.fits_limits(&limits));
    let small = wgpu::Limits { max_compute_workgroup_storage_size: 16 << 10, ..limits.clone() };
    assert!(!UNITS.fits_limits(&small));
    assert!(!MatrixUnits { lanes: 64, ..UNITS }.fits_limits(&limits), "it has 512 threads");
}

/// Products in all layouts, on a device without matrix units.
#[test]
fn products_are_right() {
    use_software().unwrap();
    let device = Arc::new(Device::open(&Adapter::at(0).unwrap(), 1 << 30).unwrap());
    check_on(device, UNITS, |kernel| match kernel {
        Kernel::Cooperative(kernel) => Kernel::Emulated(kernel),
        Kernel::Product(kernel) => panic!("{kernel:?}"),
        other => other,
    });
}

/// The same products and the check, on a GPU with matrix units: `SANDBAR_GPU` is its index, 0 for the machine's first.
#[test]
fn products_of_units_are_right() {
    let Ok(place) = std::env::var("SANDBAR_GPU") else { return };
    let adapter = Adapter::at(place.parse().expect("a number")).unwrap();
    let device = Arc::new(Device::open(&adapter, 1 << 30).unwrap());
    Stream::new(device.clone()).check_device().unwrap();
    assert!(device.describe().has_matrix_units);
    check_on(device, MatrixUnits::for_adapter(&adapter.inner).unwrap(), |kernel| kernel);
}

fn check_on(device: Arc<Device>, units: MatrixUnits, run: fn(Kernel) -> Kernel) {
    let mut checked = KernelCheck { stream: Stream::new(device), units, run, seed: 1 };
    // Operands: the number of matrices of each, 0 for a single matrix, and rows, depth and columns. Either all reads
    // cover four values or none: each kernel takes a second to compile.
    for (stacks, sizes) in [
        ([0, 0], [65, 1, 127]),
        ([0, 0], [127, 15, 66]),
        ([0, 0], [129, 17, 65]),
        ([0, 0], [130, 63, 129]),
        ([0, 3], [65, 127, 130]),
        ([0, 0], [64, 4, 128]),
        ([0, 0], [128, 16, 64]),
        ([0, 0], [200, 64, 68]),
        ([2, 2], [68, 200, 200]),
        ([0, 0], [72, 0, 72]),
    ] {
        for turned in [[false, false], [false, true], [true, false], [true, true]] {
            checked.check(stacks, sizes, turned);
        }
    }
    for (stacks, sizes, turned) in [
        // One operand is read by four.
        ([0, 0], [64, 33, 65], [true, false]),
        // Parts that are summed in f32.
        ([2, 0], [65, 1091, 66], [true, true]),
        ([3, 3], [64, 2000, 68], [false, true]),
        // Large tiles.
        ([128, 128], [128, 16, 128], [false, true]),
        ([64, 0], [129, 33, 131], [false, true]),
        ([0, 32], [132, 36, 200], [true, false]),
        ([32, 32], [130, 65, 129], [true, false]),
    ] {
        checked.check(stacks, sizes, turned);
    }
}

struct KernelCheck {
    stream: Stream,
    units: MatrixUnits,
    /// Replacement of each kernel.
    run: fn(Kernel) -> Kernel,
    seed: u64,
}

impl KernelCheck {
    /// Compares a product with one in f64. The result is rounded to f16 once, and the sum to f32 at each step.
    fn check(&mut self, stacks: [usize; 2], [rows, depth, columns]: [usize; 3], turned: [bool; 2]) {
        let (first, a) = self.operand(stacks[0], [rows, depth], turned[0]);
        let (second, b) = self.operand(stacks[1], [depth, columns], turned[1]);
        let stack = (stacks != [0, 0]).then_some(stacks[0].max(stacks[1]));
        let out = self.tensor(stack, [rows, columns]);
        let found = self.multiply([(&first, turned[0]), (&second, turned[1])], &out);
        for (at, found) in found.iter().enumerate() {
            let (stacked, row, column) = (at / columns / rows, at / columns % rows, at % columns);
            let (mut due, mut size) = (0.0, 0.0);
            for k in 0..depth {
                let term = a(stacked, row, k) * b(stacked, k, column);
                (due, size) = (due + term, size + term.abs());
            }
            let off = due.abs() / 2048.0 + size * depth as f64 * f64::from(f32::EPSILON) + 1e-7;
            let at = format!("{stacks:?} of {rows} x {depth} x {columns}, {turned:?}: {row}, {column} of {stacked}");
            assert!((found - due).abs() <= off, "{at}: {found}, not {due}");
        }
    }

    fn tensor(&self, stack: Option<usize>, sizes: [usize; 2]) -> DeviceTensor {
        let sizes: Vec<u32> = stack.into_iter().chain(sizes).map(|size| size as u32).collect();
        self.stream.tensor(Spec::new(Dtype::F16, &sizes).unwrap()).unwrap()
    }

    /// Returns an operand with values from 1/4 to 4 of either sign, and a function for the value at a row and column of
    /// a matrix in the stack.
    fn operand(
        &mut self,
        stack: usize,
        [rows, columns]: [usize; 2],
        is_turned: bool,
    ) -> (DeviceTensor, impl Fn(usize, usize, usize) -> f64 + use<>) {
        let sizes = if is_turned { [columns, rows] } else { [rows, columns] };
        let tensor = self.tensor((stack > 0).then_some(stack), sizes);
        let bits = (0..stack.max(1) * rows * columns).flat_map(|_| {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bits = (self.seed >> 48) as u16;
            (bits & 0x83ff | (13 + (bits >> 10 & 3)) << 10).to_le_bytes()
        });
        let bytes: Vec<u8> = bits.collect();
        self.stream.write(&tensor, 0, &bytes).unwrap();
        let values = wide(&bytes);
        let value = move |stacked: usize, row: usize, column: usize| {
            let at = if is_turned { column * rows + row } else { row * columns + column };
            values[if stack > 0 { stacked * rows * columns } else { 0 } + at]
        };
        (tensor, value)
    }

    fn multiply(&mut self, operands: [(&DeviceTensor, bool); 2], out: &DeviceTensor) -> Vec<f64> {
        let device = self.stream.device().clone();
        for mut step in product::plan(&device.memory, Some(self.units), operands, out).unwrap() {
            step.kernel = (self.run)(step.kernel);
            self.stream.record(step);
        }
        let mut bytes = vec![0; out.spec().bytes() as usize];
        self.stream.download(out, 0, &mut bytes).unwrap();
        wide(&bytes)
    }
}

fn wide(bytes: &[u8]) -> Vec<f64> {
    let OwnedValues::F16(values) = OwnedValues::from_bytes(Dtype::F16, bytes) else { panic!("of f16") };
    values.iter().map(|value| value.to_f64()).collect()
}
