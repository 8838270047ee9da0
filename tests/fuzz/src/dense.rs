//! Fuzz targets: tensor operations of guests, and messages of the GPU process.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use sandbar_dense::remote::{AREA_BYTES, GpuClient, GpuResponse, RemoteError, RemoteErrorKind, TransferData};
use sandbar_dense::{
    Binary, DenseError, Dtype, GroupedOptions, Map, Op, Operand, Reduction, Session, Spec, Step as Of,
};
use sandbar_process::socket;
use sandbar_store::SharedMemory;
use serde::{Deserialize, Serialize};

use crate::programs::bytes_of;

/// Maximum bytes of a guest's tensors.
const BYTES_MAX: u64 = 1 << 20;
const STEPS_MAX: usize = 64;

/// An operation of a guest. Tensors are numbered from 1.
#[derive(Debug, Serialize, Deserialize)]
enum GuestRequest {
    Make(Spec, Option<Vec<u8>>),
    Reshape(u32, Vec<u32>),
    Run(Op, Vec<InputTensor>),
    Read(u32, u64, u32),
    Drop(u32),
    Kernel(String),
}

#[derive(Debug, Serialize, Deserialize)]
enum InputTensor {
    Tensor(u32),
    Values(Spec, Vec<u8>),
}

/// Runs a guest's operations on the processor.
///
/// # Panics
/// Panics if an operation does, or if a result has a wrong shape or exceeds the limit.
pub fn dense(bytes: &[u8]) -> bool {
    let Ok(all) = postcard::from_bytes::<Vec<GuestRequest>>(bytes) else { return false };
    let mut session = Session::new(None, None, BYTES_MAX);
    let mut is_well = true;
    for wanted in all.into_iter().take(STEPS_MAX) {
        is_well &= does(&mut session, wanted).is_ok();
        assert!(session.bytes() <= BYTES_MAX, "{} bytes", session.bytes());
    }
    is_well
}

fn does(session: &mut Session, wanted: GuestRequest) -> Result<(), DenseError> {
    match wanted {
        GuestRequest::Make(spec, values) => session.tensor(spec, values.as_deref()).map(drop),
        GuestRequest::Reshape(tensor, sizes) => {
            let made = session.reshape(tensor, &sizes)?;
            assert_eq!(session.spec(made)?.shape.sizes(), sizes);
            Ok(())
        }
        GuestRequest::Run(op, given) => {
            let spec = |given: &InputTensor| match given {
                InputTensor::Tensor(tensor) => session.spec(*tensor),
                InputTensor::Values(spec, _) => Ok(*spec),
            };
            let specs: Result<Vec<Spec>, _> = given.iter().map(spec).collect();
            let given = given.iter().map(|given| match given {
                InputTensor::Tensor(tensor) => Operand::Tensor(*tensor),
                InputTensor::Values(spec, values) => Operand::Values(*spec, values),
            });
            let made = session.run(&op, &given.collect::<Vec<_>>())?;
            let specs = op.outputs(&specs?)?;
            let found: Vec<Spec> = made.iter().map(|made| session.spec(*made)).collect::<Result<_, _>>()?;
            assert_eq!(found, specs, "{op:?}");
            Ok(())
        }
        GuestRequest::Read(tensor, offset, count) => {
            session.begin_read(tensor, offset, count.into())?;
            let read = session.poll_read(&mut vec![0; count as usize], true);
            assert!(read.is_ready(), "a read on the processor is ready at once");
            Ok(())
        }
        GuestRequest::Drop(tensor) => {
            session.drop_tensor(tensor);
            Ok(())
        }
        GuestRequest::Kernel(wgsl) => {
            assert_eq!(session.kernel(&wgsl), Err(DenseError::NoGpu));
            Ok(())
        }
    }
}

/// Returns valid operations of guests.
pub fn wanted() -> Vec<Vec<u8>> {
    let of = |dtype, sizes: &[u32]| Spec::new(dtype, sizes).expect("it is small");
    let make = |spec: Spec| GuestRequest::Make(spec, Some((0..spec.bytes()).map(|at| (at % 60) as u8).collect()));
    let tensors = |numbers: &[u32]| numbers.iter().map(|number| InputTensor::Tensor(*number)).collect::<Vec<_>>();
    let square = of(Dtype::F64, &[4, 4]);
    let product = |first_transposed| Op::Product { first_transposed, second_transposed: false };
    let steps = vec![Of::Input(0), Of::Constant(2.0), Of::Two(Binary::Multiply), Of::Input(1), Of::Two(Binary::Add)];
    let offsets: Vec<u8> = [0_u32, 3, 4, 6].iter().flat_map(|at| at.to_le_bytes()).collect();
    let grouped = Op::GroupedLeastSquares(GroupedOptions { intercept: true, ridge: 0.5, pivot_min: 0.0 });
    let places = InputTensor::Values(of(Dtype::U32, &[2]), vec![1, 0, 0, 0, 9, 9, 9, 9]);
    let all = [
        vec![
            make(of(Dtype::F32, &[2, 3])),
            GuestRequest::Run(product(true), tensors(&[1, 1])),
            GuestRequest::Read(2, 0, 36),
            GuestRequest::Reshape(2, vec![9]),
            GuestRequest::Drop(2),
            GuestRequest::Run(Op::Map(Map::new(steps).expect("it is one")), tensors(&[1, 1])),
            GuestRequest::Kernel("@compute".to_owned()),
        ],
        vec![
            make(square),
            GuestRequest::Run(product(false), tensors(&[1, 1])),
            GuestRequest::Run(Op::SolveCholesky, tensors(&[2, 1])),
            GuestRequest::Run(Op::SolveQr, tensors(&[1, 2])),
            GuestRequest::Run(Op::Softmax, tensors(&[1])),
            GuestRequest::Run(Op::LogSumExp, tensors(&[1])),
            GuestRequest::Run(Op::Nearest, tensors(&[1, 2])),
        ],
        vec![
            make(of(Dtype::F64, &[2, 6])),
            make(of(Dtype::F64, &[6])),
            GuestRequest::Make(of(Dtype::U32, &[4]), Some(offsets)),
            GuestRequest::Run(grouped, tensors(&[1, 2, 3])),
            GuestRequest::Read(4, 8, 16),
        ],
        vec![
            make(of(Dtype::F16, &[3, 5, 2])),
            GuestRequest::Run(Op::Reduce { with: Reduction::Mean, along: 1 }, tensors(&[1])),
            GuestRequest::Run(Op::Reduce { with: Reduction::ArgMax, along: 0 }, tensors(&[1])),
            GuestRequest::Run(Op::Take, vec![InputTensor::Tensor(1), places]),
            GuestRequest::Make(of(Dtype::U32, &[2, 4]), None),
            make(of(Dtype::F32, &[4, 2])),
            GuestRequest::Run(Op::Histogram { bins: 3 }, tensors(&[5, 6])),
        ],
    ];
    all.iter().map(bytes_of).collect()
}

/// Sends a client the GPU process's messages that the bytes encode, while requests are pending.
///
/// # Panics
/// Panics if the client does.
pub fn gpu(bytes: &[u8]) -> bool {
    let Ok(frames) = postcard::from_bytes::<Vec<Vec<u8>>>(bytes) else { return false };
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None);
    let (ours, theirs) = pair.expect("there are sockets");
    let area = SharedMemory::new(AREA_BYTES).expect("there is memory");
    let area: OwnedFd = area.as_fd().try_clone_to_owned().expect("there are files");
    let mut remote = GpuClient::new(ours, area).expect("it is one");
    let asked = request_reads(&mut remote);
    for frame in frames {
        // A receiver accepts no more than fits.
        let _ = socket::send(&theirs, &frame, &[]);
    }
    shutdown(&theirs, Shutdown::Write).expect("it is connected");
    let Ok(reads) = asked else { return false };
    let mut values = [7; ANSWERED];
    let come = reads.map(|read| remote.poll_read(read, &mut values, true));
    // The socket is closed: all reads have ended, whatever the messages were.
    assert!(come.iter().all(|come| come.is_ready()));
    come.iter().all(|come| matches!(come, std::task::Poll::Ready(Ok(()))))
}

/// Bytes of a read value.
const ANSWERED: usize = 64;

/// Requests the values of a tensor twice. The messages are numbered: a user's, a tensor, an operation, two reads.
fn request_reads(remote: &mut GpuClient) -> Result<[sandbar_dense::remote::ReadNumber; 2], RemoteError> {
    let user = remote.add_user();
    remote.set_user(user);
    let spec = Spec::new(Dtype::F32, &[16]).expect("it is small");
    let tensor = remote.tensor(spec, None)?;
    let made = remote.run(&Op::Softmax, &[tensor], 1)?[0];
    let mut read = || remote.begin_read(made, 0, ANSWERED).map(|read| read.expect("there is a place"));
    Ok([read()?, read()?])
}

/// Returns valid answers.
pub fn answered() -> Vec<Vec<u8>> {
    let framed = |message: &GpuResponse| {
        let mut buffer = Vec::new();
        socket::frame(message, &mut buffer).expect("it is short").to_vec()
    };
    let values = |read, values| GpuResponse::Values { read, values };
    let done = |message| GpuResponse::Done { message, nanos: 1000 };
    let inline = || Ok(TransferData::Inline(vec![1; ANSWERED]));
    let error = || RemoteError { kind: RemoteErrorKind::TimeOut, message: "too long".to_owned() };
    let all = [
        vec![done(3), values(4, inline()), done(4), values(5, inline()), done(5)],
        vec![values(5, inline()), values(4, inline()), done(5), done(4)],
        vec![done(5), values(4, Ok(TransferData::Slot(ANSWERED as u32))), values(5, inline())],
        vec![values(4, Err(error())), values(5, Err(error()))],
    ];
    all.iter().map(|frames| bytes_of(&frames.iter().map(framed).collect::<Vec<_>>())).collect()
}
