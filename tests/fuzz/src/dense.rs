//! Fuzz targets: tensor operations of guests, and messages of the GPU process.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use sandbar_dense::remote::{AREA_BYTES, GpuClient, GpuResponse, RemoteError, RemoteErrorKind, TransferData};
use sandbar_dense::{Binary, DenseError, Dtype, GroupedOptions, Map, Op, Operand, Reduction, Session, Spec, Step};
use sandbar_process::socket;
use sandbar_store::SharedMemory;
use serde::{Deserialize, Serialize};

use crate::programs::encode_value;

/// Maximum bytes of a guest's tensors.
const BYTES_MAX: u64 = 1 << 20;
const REQUESTS_MAX: usize = 64;
/// Bytes of a value that the GPU client reads.
const READ_BYTES: usize = 64;

/// A request of a guest. Tensors are numbered from 1.
#[derive(Debug, Serialize, Deserialize)]
enum GuestRequest {
    Create(Spec, Option<Vec<u8>>),
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

/// Decodes a guest's requests, and runs them on the processor.
///
/// # Panics
/// Panics if an operation does, or if a result has a wrong shape or exceeds the limit.
pub fn dense(bytes: &[u8]) -> bool {
    let Ok(requests) = postcard::from_bytes::<Vec<GuestRequest>>(bytes) else { return false };
    let mut session = Session::new(None, None, BYTES_MAX);
    let mut all_succeed = true;
    for request in requests.into_iter().take(REQUESTS_MAX) {
        all_succeed &= run_request(&mut session, request).is_ok();
        assert!(session.bytes() <= BYTES_MAX, "{} bytes", session.bytes());
    }
    all_succeed
}

fn run_request(session: &mut Session, request: GuestRequest) -> Result<(), DenseError> {
    match request {
        GuestRequest::Create(spec, values) => session.tensor(spec, values.as_deref()).map(drop),
        GuestRequest::Reshape(tensor, sizes) => {
            let reshaped = session.reshape(tensor, &sizes)?;
            assert_eq!(session.spec(reshaped)?.shape.sizes(), sizes);
            Ok(())
        }
        GuestRequest::Run(op, inputs) => {
            let spec = |input: &InputTensor| match input {
                InputTensor::Tensor(tensor) => session.spec(*tensor),
                InputTensor::Values(spec, _) => Ok(*spec),
            };
            let specs: Result<Vec<Spec>, _> = inputs.iter().map(spec).collect();
            let operands = inputs.iter().map(|input| match input {
                InputTensor::Tensor(tensor) => Operand::Tensor(*tensor),
                InputTensor::Values(spec, values) => Operand::Values(*spec, values),
            });
            let outputs = session.run(&op, &operands.collect::<Vec<_>>())?;
            let expected = op.outputs(&specs?)?;
            let found: Vec<Spec> = outputs.iter().map(|tensor| session.spec(*tensor)).collect::<Result<_, _>>()?;
            assert_eq!(found, expected, "{op:?}");
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

/// Returns valid requests of guests.
pub fn guest_requests() -> Vec<Vec<u8>> {
    let spec = |dtype, sizes: &[u32]| Spec::new(dtype, sizes).expect("the tensor is small");
    let create = |spec: Spec| GuestRequest::Create(spec, Some((0..spec.bytes()).map(|at| (at % 60) as u8).collect()));
    let tensors = |numbers: &[u32]| numbers.iter().map(|number| InputTensor::Tensor(*number)).collect::<Vec<_>>();
    let square = spec(Dtype::F64, &[4, 4]);
    let product = |first_transposed| Op::Product { first_transposed, second_transposed: false };
    let steps =
        vec![Step::Input(0), Step::Constant(2.0), Step::Two(Binary::Multiply), Step::Input(1), Step::Two(Binary::Add)];
    let offsets: Vec<u8> = [0_u32, 3, 4, 6].iter().flat_map(|at| at.to_le_bytes()).collect();
    let grouped = Op::GroupedLeastSquares(GroupedOptions { intercept: true, ridge: 0.5, pivot_min: 0.0 });
    let indices = InputTensor::Values(spec(Dtype::U32, &[2]), vec![1, 0, 0, 0, 9, 9, 9, 9]);
    let all = [
        vec![
            create(spec(Dtype::F32, &[2, 3])),
            GuestRequest::Run(product(true), tensors(&[1, 1])),
            GuestRequest::Read(2, 0, 36),
            GuestRequest::Reshape(2, vec![9]),
            GuestRequest::Drop(2),
            GuestRequest::Run(Op::Map(Map::new(steps).expect("the steps are valid")), tensors(&[1, 1])),
            GuestRequest::Kernel("@compute".to_owned()),
        ],
        vec![
            create(square),
            GuestRequest::Run(product(false), tensors(&[1, 1])),
            GuestRequest::Run(Op::SolveCholesky, tensors(&[2, 1])),
            GuestRequest::Run(Op::SolveQr, tensors(&[1, 2])),
            GuestRequest::Run(Op::Softmax, tensors(&[1])),
            GuestRequest::Run(Op::LogSumExp, tensors(&[1])),
            GuestRequest::Run(Op::Nearest, tensors(&[1, 2])),
        ],
        vec![
            create(spec(Dtype::F64, &[2, 6])),
            create(spec(Dtype::F64, &[6])),
            GuestRequest::Create(spec(Dtype::U32, &[4]), Some(offsets)),
            GuestRequest::Run(grouped, tensors(&[1, 2, 3])),
            GuestRequest::Read(4, 8, 16),
        ],
        vec![
            create(spec(Dtype::F16, &[3, 5, 2])),
            GuestRequest::Run(Op::Reduce { with: Reduction::Mean, along: 1 }, tensors(&[1])),
            GuestRequest::Run(Op::Reduce { with: Reduction::ArgMax, along: 0 }, tensors(&[1])),
            GuestRequest::Run(Op::Take, vec![InputTensor::Tensor(1), indices]),
            GuestRequest::Create(spec(Dtype::U32, &[2, 4]), None),
            create(spec(Dtype::F32, &[4, 2])),
            GuestRequest::Run(Op::Histogram { bins: 3 }, tensors(&[5, 6])),
        ],
    ];
    all.iter().map(encode_value).collect()
}

/// Decodes messages of the GPU process, and sends them to a client with pending requests.
///
/// # Panics
/// Panics if the client does, or if a read is pending after the connection has closed.
pub fn gpu(bytes: &[u8]) -> bool {
    let Ok(frames) = postcard::from_bytes::<Vec<Vec<u8>>>(bytes) else { return false };
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None);
    let (client_socket, process_socket) = pair.expect("a pair of sockets");
    let area = SharedMemory::new(AREA_BYTES).expect("shared memory");
    let area: OwnedFd = area.as_fd().try_clone_to_owned().expect("a second descriptor");
    let mut client = GpuClient::new(client_socket, area).expect("a client");
    let requested = request_reads(&mut client);
    for frame in frames {
        // Fails once the receiver's buffer is full.
        let _ = socket::send(&process_socket, &frame, &[]);
    }
    shutdown(&process_socket, Shutdown::Write).expect("the socket is connected");
    let Ok(reads) = requested else { return false };
    let mut values = [7; READ_BYTES];
    let results = reads.map(|read| client.poll_read(read, &mut values, true));
    // The socket is closed: all reads have ended, whatever the messages were.
    assert!(results.iter().all(|result| result.is_ready()));
    results.iter().all(|result| matches!(result, std::task::Poll::Ready(Ok(()))))
}

/// Requests the values of a tensor twice. The messages are numbered: a user's, a tensor, an operation, two reads.
fn request_reads(client: &mut GpuClient) -> Result<[sandbar_dense::remote::ReadNumber; 2], RemoteError> {
    let user = client.add_user();
    client.set_user(user);
    let spec = Spec::new(Dtype::F32, &[16]).expect("the tensor is small");
    let input = client.tensor(spec, None)?;
    let output = client.run(&Op::Softmax, &[input], 1)?[0];
    let mut read = || client.begin_read(output, 0, READ_BYTES).map(|read| read.expect("a free slot"));
    Ok([read()?, read()?])
}

/// Returns valid responses of the GPU process.
pub fn gpu_responses() -> Vec<Vec<u8>> {
    let frame = |message: &GpuResponse| {
        let mut buffer = Vec::new();
        socket::frame(message, &mut buffer).expect("the message is short").to_vec()
    };
    let values = |read, values| GpuResponse::Values { read, values };
    let done = |message| GpuResponse::Done { message, nanos: 1000 };
    let inline = || Ok(TransferData::Inline(vec![1; READ_BYTES]));
    let error = || RemoteError { kind: RemoteErrorKind::TimeOut, message: "too long".to_owned() };
    let all = [
        vec![done(3), values(4, inline()), done(4), values(5, inline()), done(5)],
        vec![values(5, inline()), values(4, inline()), done(5), done(4)],
        vec![done(5), values(4, Ok(TransferData::Slot(READ_BYTES as u32))), values(5, inline())],
        vec![values(4, Err(error())), values(5, Err(error()))],
    ];
    all.iter().map(|responses| encode_value(&responses.iter().map(frame).collect::<Vec<_>>())).collect()
}
