//! Results of operations on a GPU: on lavapipe, or with `SANDBAR_GPU=0` on the machine's first GPU (1 for the second,
//! and so on).

use std::io::Write as _;
use std::sync::Arc;

use sandbar_dense::{Dtype, GroupedOptions, Op, OwnedValues, Spec, Tensor};
use sandbar_gpu::{Adapter, Device, DeviceTensor, GpuError, Stream};

fn device() -> Arc<Device> {
    let place = match std::env::var("SANDBAR_GPU") {
        Ok(place) => place.parse().expect("a number"),
        Err(_) => {
            sandbar_gpu::use_software().expect("lavapipe");
            0
        }
    };
    Arc::new(Device::open(&Adapter::at(place).expect("a GPU"), 1 << 30).expect("a device"))
}

#[test]
fn the_gpu_computes_reference_results() {
    let device = device();
    let mut stream = Stream::new(device.clone());
    // With matrix units, if available.
    stream.check_device().unwrap();
    let taken = dense_cases::check(2000, |case| {
        let inputs = case.inputs.iter().map(|(spec, values)| {
            let tensor = stream.tensor(*spec).unwrap();
            stream.write(&tensor, 0, values.values().bytes()).unwrap();
            tensor
        });
        let inputs: Vec<DeviceTensor> = inputs.collect();
        let outputs = match stream.run(&case.op, &inputs.iter().collect::<Vec<_>>()) {
            Err(GpuError::Unsupported(_)) => return None,
            outputs => outputs.unwrap(),
        };
        Some(outputs.into_iter().map(|tensor| (tensor.spec(), download(&mut stream, &tensor))).collect())
    });
    assert!(taken > 0);
    assert_eq!(device.memory_bytes(), 0);
}

fn download(stream: &mut Stream, tensor: &DeviceTensor) -> OwnedValues {
    let Spec { dtype, .. } = tensor.spec();
    let mut bytes = vec![0; tensor.spec().bytes() as usize];
    stream.download(tensor, 0, &mut bytes).unwrap();
    OwnedValues::from_bytes(dtype, &bytes)
}

#[test]
fn the_gpu_is_right_and_its_costs_are_numbers() {
    let mut stream = Stream::new(device());
    stream.check_device().unwrap();
    let costs = stream.measure().unwrap();
    for (name, value) in [
        ("fixed", costs.fixed_nanos),
        ("up", costs.up_bytes_s),
        ("down", costs.down_bytes_s),
        ("memory", costs.memory_bytes_s),
        ("f32", costs.f32_operations_s),
    ] {
        assert!(value.is_finite() && value > 0.0, "{name}: {costs:?}");
    }
    let _ = writeln!(std::io::stderr(), "{costs:?} of {:?}", stream.device().describe());
}

/// Groups of many rows, separated by rows of no group, in more than one tensor of the device's maximum size.
#[test]
fn groups_of_many_rows() {
    let mut stream = Stream::new(device());
    for (rows, width) in [(5_000_u32, 1_u32), (70_001, 1), (20_000, 9)] {
        let column =
            |at: u32| (0..rows).map(move |row| f64::from(row.wrapping_mul(2_654_435_761) >> (8 + at % 8)) / 1e3);
        let columns = OwnedValues::F64((0..width).flat_map(column).collect());
        let target = OwnedValues::F64(column(9).map(|y| 3.0 + y).collect());
        let ends = OwnedValues::U32(vec![0, rows / 3, rows / 2, rows - 7, rows - 7, rows, 5, 5]);
        let specs = [
            Spec::new(Dtype::F64, &[width, rows]).unwrap(),
            Spec::new(Dtype::F64, &[rows]).unwrap(),
            Spec::new(Dtype::U32, &[4, 2]).unwrap(),
        ];
        let all = [&columns, &target, &ends];
        let op = Op::GroupedLeastSquares(GroupedOptions { intercept: true, ridge: 0.0, pivot_min: 0.0 });
        let inputs: Vec<Tensor<'_>> =
            specs.iter().zip(all).map(|(spec, values)| Tensor::new(*spec, values.values()).unwrap()).collect();
        let expected = sandbar_dense::cpu::run(&op, &inputs).unwrap();
        let inputs = specs.iter().zip(all).map(|(spec, values)| {
            let tensor = stream.tensor(*spec).unwrap();
            stream.write(&tensor, 0, values.values().bytes()).unwrap();
            tensor
        });
        let inputs: Vec<DeviceTensor> = inputs.collect();
        let outputs = stream.run(&op, &inputs.iter().collect::<Vec<_>>()).unwrap();
        let found: Vec<OwnedValues> = outputs.iter().map(|tensor| download(&mut stream, tensor)).collect();
        assert_eq!(found[1], expected[1], "{rows} rows of {width}");
        let (OwnedValues::F64(found), OwnedValues::F64(expected)) = (&found[0], &expected[0]) else { panic!("of f64") };
        for (found, expected) in found.iter().zip(expected) {
            let is_close = (found - expected).abs() <= 1e-9 * expected.abs().max(1.0);
            assert!(is_close || found.is_nan() && expected.is_nan(), "{rows} rows of {width}: {found}, not {expected}");
        }
    }
}
