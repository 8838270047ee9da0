//! The process that owns a device and serves the clients that its node connects.
//!
//! One thread per connection passes requests to the device; one more thread waits for the device. Nothing waits for a
//! client: its requests in flight are limited, and a client that does not receive its responses is disconnected.
//! Endless work, on the device or in a driver's compiler, is visible to the node in the shared memory.

mod connection;
mod submissions;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sandbar_dense::remote::{AREA_BYTES, ServerRequest, ServerResponse};
use sandbar_dense::{Costs, DeviceProfile};
use sandbar_process::{FileAccess, ProcessKind, Profile, confine, socket};
use sandbar_store::SharedMemory;

use self::connection::Connection;
use self::submissions::SubmissionQueue;
use crate::{Adapter, Device, GpuError, Stream, software};

/// Stack size of threads: deeply nested kernel text takes stack to parse.
const STACK_BYTES: usize = 16 << 20;

/// Describes all GPUs; `measures` the usable ones.
pub fn list(measures: bool) -> Vec<DeviceProfile> {
    let started = Instant::now();
    let adapters = Adapter::all();
    let finding = started.elapsed();
    let describe = |adapter: Adapter| {
        let mut about = adapter.about().clone();
        let mut start_nanos = 0.0;
        let costs = match (measures && about.refused.is_none()).then(|| measure_device(&adapter)) {
            Some(Ok((device, costs, start))) => {
                about = device.describe();
                start_nanos = (finding + start).as_nanos() as f64;
                Some(costs)
            }
            Some(Err(e)) => {
                about.refused = Some(e.to_string());
                None
            }
            None => None,
        };
        DeviceProfile { about, costs, processor: costs.and_then(|_| Costs::of_processor().ok()), start_nanos }
    };
    adapters.into_iter().map(describe).collect()
}

/// Opens and checks a device, and measures its costs. Returns its start time as well.
fn measure_device(adapter: &Adapter) -> Result<(Arc<Device>, Costs, Duration), GpuError> {
    let started = Instant::now();
    let (device, mut stream) = open(adapter, u64::MAX)?;
    let start = started.elapsed();
    Ok((device, stream.measure()?, start))
}

/// Opens and checks a device.
fn open(adapter: &Adapter, memory_bytes_max: u64) -> Result<(Arc<Device>, Stream), GpuError> {
    // The rest of the memory is for the driver and other programs.
    let max = match adapter.about().memory_bytes {
        0 => u64::MAX,
        bytes => bytes / 10 * 9,
    };
    let device = Arc::new(Device::open(adapter, memory_bytes_max.min(max))?);
    let mut stream = Stream::new(device.clone());
    stream.check_device()?;
    Ok((device, stream))
}

/// Serves a node until it closes the socket, in a process that does nothing else.
///
/// # Errors
/// Errors of the set-up, and invalid messages of the node.
pub fn serve(node: impl AsFd) -> io::Result<()> {
    // A panic ends the process, because other threads would wait for the device forever.
    std::panic::set_hook(Box::new(|_| std::process::exit(1)));
    confine::start(ProcessKind::Gpu)?;
    let node = node.as_fd();
    let (mut received, mut frame) = (Vec::new(), Vec::new());
    let Some((hello, _)) = socket::receive(node, &mut received)? else { return Ok(()) };
    let ServerRequest::Hello { index, memory_bytes_max, costs, processor } = hello else {
        return Err(io::Error::other("the first message is not a hello"));
    };
    let own = [software::folder(), std::env::current_exe()?.parent().map(Path::to_owned)];
    let folders: Vec<&Path> = own.iter().flatten().map(PathBuf::as_path).collect();
    let thread_builder = |name: &str| thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    let set_up = || {
        let opened = Adapter::at(index).and_then(|adapter| {
            let (device, mut stream) = open(&adapter, memory_bytes_max)?;
            Ok((device, costs.map_or_else(|| stream.measure(), Ok)?))
        });
        let (device, costs) = match opened {
            Ok(opened) => opened,
            Err(e) => return Ok(Err(e)),
        };
        let queue = Arc::new(SubmissionQueue::new(device.clone()));
        let waiter = queue.clone();
        thread_builder("wait").spawn(move || waiter.wait_for_device())?;
        Ok(Ok((device, costs, queue)))
    };
    let (_, opened) = confine::confine(&Profile::gpu(FileAccess::Drivers(&folders)), set_up)?;
    let (device, costs, queue) = match opened {
        Ok(opened) => opened,
        Err(e) => return socket::send(node, socket::frame(&ServerResponse::Failed(e.to_string()), &mut frame)?, &[]),
    };
    // The start time is unknown here.
    let described = DeviceProfile { about: device.describe(), costs: Some(costs), processor, start_nanos: 0.0 };
    socket::send(node, socket::frame(&ServerResponse::Ready(Box::new(described)), &mut frame)?, &[])?;
    while let Some((message, files)) = socket::receive(node, &mut received)? {
        let (ServerRequest::Connect, Ok([socket, area])) = (message, <[OwnedFd; 2]>::try_from(files)) else {
            return Err(io::Error::other("the node sent another message than a connection with two files"));
        };
        let area = Arc::new(SharedMemory::open(area, AREA_BYTES)?);
        let connection = Connection::new(socket, area, queue.clone())?;
        thread_builder("serve").spawn(move || connection.serve())?;
    }
    Ok(())
}
