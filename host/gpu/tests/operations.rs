//! What the GPU makes of operations: of lavapipe, which computes as GPUs do, or with `SANDBAR_GPU=0` of the first one
//! of this machine (1 of the second, and so on).

use std::io::Write as _;
use std::sync::Arc;

use sandbar_dense::{Owned, Spec};
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
fn the_gpu_does_what_operations_say() {
    let device = device();
    let mut stream = Stream::new(device.clone());
    let taken = dense_cases::check(2000, |case| {
        let inputs = case.inputs.iter().map(|(spec, values)| {
            let tensor = stream.tensor(*spec).unwrap();
            stream.write(&tensor, 0, values.values().bytes()).unwrap();
            tensor
        });
        let inputs: Vec<DeviceTensor> = inputs.collect();
        let outputs = match stream.run(&case.op, &inputs.iter().collect::<Vec<_>>()) {
            Err(GpuError::NotHere(_)) => return None,
            outputs => outputs.unwrap(),
        };
        Some(outputs.into_iter().map(|tensor| (tensor.spec(), download(&mut stream, &tensor))).collect())
    });
    assert!(taken > 0);
    assert_eq!(device.memory_bytes(), 0);
}

fn download(stream: &mut Stream, tensor: &DeviceTensor) -> Owned {
    let Spec { dtype, .. } = tensor.spec();
    let mut bytes = vec![0; tensor.spec().bytes() as usize];
    stream.download(tensor, 0, &mut bytes).unwrap();
    Owned::from_bytes(dtype, &bytes)
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
    let _ = writeln!(std::io::stderr(), "{costs:?}");
}
