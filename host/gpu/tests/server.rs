//! The GPU process and its clients: each gets its results, whatever the others do.
//!
//! The process is this test program, started as a server. Its GPU is lavapipe, or with `SANDBAR_GPU=0` the first GPU of this
//! machine (1 for the second, and so on).

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::task::Poll;
use std::time::{Duration, Instant};

use dense_cases::{Case, Random};
use sandbar_dense::remote::{
    GpuClient, GpuOptions, GpuProcess, GpuRequest, ProcessState, RemoteError, RemoteErrorKind, TransferData,
};
use sandbar_dense::{Binary, Dtype, Map, Op, OwnedValues, Spec, Step};
use sandbar_process::socket;
use sandbar_seeds::one_seed;

/// Set in the environment of a server process.
const SERVES: &str = "SANDBAR_TEST_SERVES";
const TIME_MAX: Duration = Duration::from_millis(300);

#[test]
fn serve() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    if gpu().is_none() {
        sandbar_gpu::use_software().expect("lavapipe");
    }
    sandbar_gpu::run_gpu(&["serve".to_owned()]).unwrap();
    std::process::exit(0);
}

/// The GPU to test, if it is not lavapipe.
fn gpu() -> Option<usize> {
    std::env::var("SANDBAR_GPU").ok().map(|place| place.parse().expect("a number"))
}

fn start(memory_bytes_max: u64) -> GpuProcess {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "serve", "--nocapture", "--"]).env(SERVES, "1").stderr(std::process::Stdio::null());
    let costs = sandbar_dense::Costs::PROCESSOR;
    let options = GpuOptions {
        index: gpu().unwrap_or(0),
        is_software: false,
        memory_bytes_max,
        costs: Some(costs),
        processor: None,
    };
    // Arguments behind `--` are test filters to libtest; they match no other test.
    GpuProcess::start(&mut program, &options).unwrap()
}

fn connect(process: &mut GpuProcess) -> GpuClient {
    let (socket, area): (OwnedFd, OwnedFd) = process.connect().unwrap();
    GpuClient::new(socket, area).unwrap()
}

fn upload(remote: &mut GpuClient, values: &[f32]) -> u32 {
    let spec = Spec::new(Dtype::F32, &[values.len() as u32]).unwrap();
    remote.tensor(spec, Some(OwnedValues::F32(values.to_vec()).values().bytes())).unwrap()
}

fn read(remote: &mut GpuClient, tensor: u32, count: usize) -> Result<Vec<f32>, RemoteError> {
    let mut bytes = vec![0; 4 * count];
    let mut offset = 0;
    for part in bytes.chunks_mut(sandbar_dense::remote::TRANSFER_BYTES_MAX) {
        let number = remote.begin_read(tensor, offset, part.len())?.expect("a place");
        let Poll::Ready(done) = remote.poll_read(number, part, true) else { panic!("it waits") };
        done?;
        offset += part.len() as u64;
    }
    let OwnedValues::F32(values) = OwnedValues::from_bytes(Dtype::F32, &bytes) else { unreachable!() };
    Ok(values)
}

fn twice() -> Op {
    Op::Map(Map::new(vec![Step::Input(0), Step::Constant(2.0), Step::Two(Binary::Multiply)]).unwrap())
}

const ENDLESS: &str = "
@group(0) @binding(0) var<storage, read_write> values: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = values[0];
    loop {
        x = sin(x) + 1.0;
        values[id.x % 64u] = x;
        if x < -5.0 { break; }
    }
}";

#[test]
fn requested_values_arrive() {
    let mut process = start(1 << 30);
    let mut remotes = [connect(&mut process), connect(&mut process)];
    let users = remotes.each_mut().map(|remote| {
        let user = remote.add_user();
        remote.set_user(user);
        user
    });
    for count in [1, 3, 1000, 5000, 600_000, 3_000_001] {
        for (at, remote) in remotes.iter_mut().enumerate() {
            let values: Vec<f32> = (0..count).map(|x| (x % 1000 + at) as f32).collect();
            let mut tensor = upload(remote, &values);
            for _ in 0..3 {
                let next = remote.run(&twice(), &[tensor], 1).unwrap()[0];
                remote.drop_tensor(tensor);
                tensor = next;
            }
            let expected: Vec<f32> = values.iter().map(|value| value * 8.0).collect();
            assert_eq!(read(remote, tensor, count), Ok(expected));
            remote.drop_tensor(tensor);
        }
    }
    for (remote, user) in remotes.iter().zip(users) {
        assert!(remote.busy_nanos(user) > 0);
    }
    assert_eq!(process.check(TIME_MAX), ProcessState::Healthy);
    assert_eq!(process.connections(), 2);
    drop(remotes);
    let disconnected_at = Instant::now();
    while process.connections() > 0 && disconnected_at.elapsed() < Duration::from_secs(10) {
        process.check(TIME_MAX);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(process.connections(), 0);
}

/// A connection may reuse memory that another one dropped, but not before the other's work has used it.
#[test]
fn connections_beside_each_other() {
    let mut process = start(1 << 30);
    let remotes: Vec<GpuClient> = (0..3).map(|_| connect(&mut process)).collect();
    std::thread::scope(|scope| {
        for (at, mut remote) in remotes.into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..150 {
                    let values: Vec<f32> = (0..20_000).map(|x| (x % 77 + round * 3 + at) as f32).collect();
                    let tensor = upload(&mut remote, &values);
                    let doubled = remote.run(&twice(), &[tensor], 1).unwrap()[0];
                    remote.drop_tensor(tensor);
                    let expected: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
                    let found = read(&mut remote, doubled, values.len()).unwrap();
                    assert!(found == expected, "{at}, turn {round}: {}, not {}", found[0], expected[0]);
                    remote.drop_tensor(doubled);
                }
            });
        }
    });
}

#[test]
fn failures_are_reported_to_readers_of_the_result() {
    let mut process = start(64 << 20);
    let mut remote = connect(&mut process);
    let good = upload(&mut remote, &[1.0, 2.0]);
    // Invalid tensors, with their errors.
    let memory = remote.tensor(Spec::new(Dtype::F32, &[1 << 24]).unwrap(), None).unwrap();
    let after = remote.run(&twice(), &[memory], 1).unwrap()[0];
    let unknown = remote.run(&twice(), &[12345], 1).unwrap()[0];
    let wrong = remote.run(&Op::SolveQr, &[good, good], 1).unwrap()[0];
    for (tensor, kind, expected_text) in [
        (memory, RemoteErrorKind::Memory, "exceed the GPU memory limit"),
        (after, RemoteErrorKind::Memory, "exceed the GPU memory limit"),
        (unknown, RemoteErrorKind::Request, "unknown tensor"),
        (wrong, RemoteErrorKind::Request, "shapes don't agree"),
        (777, RemoteErrorKind::Request, "unknown tensor"),
    ] {
        let error = read(&mut remote, tensor, 1).unwrap_err();
        assert!(error.kind == kind && error.message.contains(expected_text), "{error:?}");
    }
    assert_eq!(read(&mut remote, good, 2), Ok(vec![1.0, 2.0]));
    // A read out of bounds closes the connection.
    assert_eq!(read(&mut remote, good, 3).unwrap_err().kind, RemoteErrorKind::Lost);
    let mut other = connect(&mut process);
    let fine = upload(&mut other, &[5.0]);
    assert_eq!(read(&mut other, fine, 1), Ok(vec![5.0]));
}

#[test]
fn guests_kernels() {
    let mut process = start(1 << 30);
    let mut remote = connect(&mut process);
    let kernel = remote
        .kernel(
            "@group(0) @binding(0) var<storage, read> from_: array<f32>;
             @group(0) @binding(1) var<storage, read_write> out: array<f32>;
             @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                 if id.x < arrayLength(&out) { out[id.x] = from_[id.x] + 1.0; }
             }",
        )
        .unwrap();
    let values = upload(&mut remote, &[1.0, 2.0, 3.0]);
    let out = remote.tensor(Spec::new(Dtype::F32, &[3]).unwrap(), None).unwrap();
    remote.dispatch(kernel, &[values, out], [1, 1, 1]).unwrap();
    assert_eq!(read(&mut remote, out, 3), Ok(vec![2.0, 3.0, 4.0]));
    let bad = remote.kernel("fn main() { this is no kernel }").unwrap();
    remote.dispatch(bad, &[out], [1, 1, 1]).unwrap();
    let error = read(&mut remote, out, 3).unwrap_err();
    assert!(error.kind == RemoteErrorKind::Kernel && error.message.contains("the kernel is invalid"), "{error:?}");
}

/// An endless kernel is killed with its process within its time limit. Its client gets the reason, and clients of other
/// processes notice nothing. `SANDBAR_TURNS` is the number of repetitions.
#[test]
fn work_without_end() {
    let mut neighbour = start(1 << 30);
    let mut other = connect(&mut neighbour);
    let rounds = std::env::var("SANDBAR_TURNS").map_or(3, |rounds| rounds.parse().expect("a number"));
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let mut process = start(1 << 30);
        let (mut remote, mut beside) = (connect(&mut process), connect(&mut process));
        let values = upload(&mut remote, &[0.5; 64]);
        let kernel = remote.kernel(ENDLESS).unwrap();
        remote.dispatch(kernel, &[values], [1, 1, 1]).unwrap();
        let number = remote.begin_read(values, 0, 4).unwrap().expect("a place");
        let (start, mut ended) = (Instant::now(), None);
        while ended.is_none() {
            std::thread::sleep(Duration::from_millis(10));
            ended = (process.check(TIME_MAX) == ProcessState::TimedOut).then(|| start.elapsed());
            assert!(start.elapsed() < Duration::from_secs(20), "the kernel still runs");
            let tensor = upload(&mut other, &[3.0]);
            assert_eq!(read(&mut other, tensor, 1), Ok(vec![3.0]));
            other.drop_tensor(tensor);
        }
        assert!(ended.unwrap() >= TIME_MAX, "{ended:?}");
        let Poll::Ready(done) = remote.poll_read(number, &mut [0; 4], true) else { panic!("it waits") };
        assert_eq!(done.unwrap_err().kind, RemoteErrorKind::TimeOut);
        longest = longest.max(start.elapsed());
        let lost = of_result(&mut beside);
        assert_eq!(lost.unwrap_err().kind, RemoteErrorKind::Lost);
    }
    let _ = writeln!(std::io::stderr(), "noticed after {longest:?} at most, of {TIME_MAX:?}");
}

#[test]
fn endless_work_of_a_disconnected_client_ends() {
    let mut process = start(1 << 30);
    let mut remote = connect(&mut process);
    let values = upload(&mut remote, &[0.5; 64]);
    let kernel = remote.kernel(ENDLESS).unwrap();
    remote.dispatch(kernel, &[values], [1, 1, 1]).unwrap();
    // The process receives the request before it notices the client's disconnection.
    drop(remote);
    let start = Instant::now();
    while process.check(TIME_MAX) != ProcessState::TimedOut {
        std::thread::sleep(Duration::from_millis(10));
        assert!(start.elapsed() < Duration::from_secs(20), "the kernel still runs");
    }
}

fn of_result(remote: &mut GpuClient) -> Result<Vec<f32>, RemoteError> {
    let tensor = remote.tensor(Spec::new(Dtype::F32, &[1]).unwrap(), Some(&[0; 4]))?;
    read(remote, tensor, 1)
}

/// GPU time is attributed to the right guest of a connection, in any interleaving.
#[test]
fn time_is_attributed_to_its_user() {
    let mut process = start(1 << 30);
    let mut remote = connect(&mut process);
    let side = 512_u32;
    let spec = Spec::new(Dtype::F32, &[side, side]).unwrap();
    let [busy, idle] = [(); 2].map(|()| remote.add_user());
    let square = remote.tensor(spec, None).unwrap();
    let product = Op::Product { first_transposed: false, second_transposed: false };
    let start = Instant::now();
    for _ in 0..4 {
        remote.set_user(busy);
        let output = remote.run(&product, &[square, square], 1).unwrap()[0];
        remote.set_user(idle);
        let little = upload(&mut remote, &[1.0]);
        read(&mut remote, little, 1).unwrap();
        remote.set_user(busy);
        read(&mut remote, output, 1).unwrap();
        remote.drop_tensor(output);
    }
    let all = start.elapsed().as_nanos() as u64;
    let [busy_nanos, idle_nanos] = [busy, idle].map(|user| remote.busy_nanos(user));
    assert!(busy_nanos > 10 * idle_nanos && idle_nanos > 0, "{busy_nanos} and {idle_nanos}");
    // With a fast GPU, most of the time passes in its driver.
    let least = if gpu().is_none() { all / 2 } else { 0 };
    assert!((least..=all).contains(&(busy_nanos + idle_nanos)), "{busy_nanos} and {idle_nanos} of {all}");
    remote.remove_user(busy);
    assert_eq!(remote.busy_nanos(busy), 0);
}

/// Invalid messages close the sender's connection, and affect no other. `SANDBAR_SEED` replays them.
#[test]
fn messages_that_make_no_sense() {
    let mut random = Random::new(one_seed(std::process::id().into()));
    let mut process = start(16 << 20);
    let mut neighbour = connect(&mut process);
    let mut frame = Vec::new();
    for _ in 0..60 {
        let (socket, area) = process.connect().unwrap();
        for _ in 0..40 {
            let message = any_message(&mut random);
            let bytes = socket::frame(&message, &mut frame).unwrap();
            let mut bytes = bytes.to_vec();
            if random.below(20) == 0 {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            // The connection is closed, or its socket is full.
            if socket::send(&socket, &bytes, &[]).is_err() {
                break;
            }
        }
        let values = upload(&mut neighbour, &[1.0, 2.0]);
        let output = neighbour.run(&twice(), &[values], 1).unwrap()[0];
        assert_eq!(read(&mut neighbour, output, 2), Ok(vec![2.0, 4.0]));
        assert_eq!(process.check(Duration::from_secs(60)), ProcessState::Healthy);
        neighbour.drop_tensor(values);
        neighbour.drop_tensor(output);
        drop((socket, area));
    }
}

/// Uses few tensor numbers, so that they often exist.
fn any_message(random: &mut Random) -> GpuRequest {
    let number = |random: &mut Random| random.below(6) as u32;
    let numbers = |random: &mut Random, max| (0..random.below(max)).map(|_| number(random)).collect::<Vec<_>>();
    match random.below(12) {
        0..3 => {
            let Case { inputs, .. } = Case::random(random);
            GpuRequest::Tensor { tensor: number(random), spec: inputs[0].0, is_written: random.below(2) == 0 }
        }
        3..6 => {
            let outputs = numbers(random, 4);
            GpuRequest::Run { op: Case::random(random).op, inputs: numbers(random, 5), outputs }
        }
        6 => {
            let spec = Case::random(random).inputs[0].0;
            GpuRequest::Reshape { from: number(random), tensor: number(random), spec }
        }
        7 => {
            let moved = match random.below(3) {
                0 => TransferData::Slot(random.below(4 << 20) as u32),
                _ => TransferData::Inline(vec![1; random.below(64)]),
            };
            GpuRequest::Write { tensor: number(random), offset: 4 * random.below(5) as u64, values: moved }
        }
        8 => {
            let wgsl = ["no kernel", "@compute @workgroup_size(8) fn main() {}"][random.below(2)];
            GpuRequest::Kernel { kernel: number(random), wgsl: wgsl.to_owned() }
        }
        9 => {
            let grid = [(); 3].map(|()| random.below(3) as u32 * if random.below(9) == 0 { 1 << 20 } else { 1 });
            GpuRequest::Dispatch { kernel: number(random), bindings: numbers(random, 10), grid }
        }
        10 => GpuRequest::Read {
            tensor: number(random),
            offset: 4 * random.below(5) as u64,
            bytes: random.below(64) as u32,
        },
        _ => match random.below(3) {
            0 => GpuRequest::User,
            1 => GpuRequest::Drop { tensors: numbers(random, 4) },
            _ => GpuRequest::DropKernel { kernel: number(random) },
        },
    }
}
