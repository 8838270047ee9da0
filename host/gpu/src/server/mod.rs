//! The process that has a device: it serves those that its node connects to it.
//!
//! A thread for each connection hands the device what it is asked for; one more waits for the device. Nothing here waits
//! for a client: what a connection has on its way is bounded, and one that does not take its answers is ended. Work
//! without an end, of the device or in a driver that makes a kernel, is seen by the node in the shared memory.

mod busy;
mod connection;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sandbar_dense::remote::{AREA_BYTES, FromServer, ToServer};
use sandbar_dense::{Costs, Described};
use sandbar_process::{confine, socket};
use sandbar_store::SharedMemory;

use self::busy::Queue;
use self::connection::Connection;
use crate::{Adapter, Device, GpuError, Stream, software};

/// Sockets and memory of connections, and what drivers open.
const FILES_MAX: u64 = 4096;
/// Deeply nested text of a kernel takes stack to read.
const STACK_BYTES: usize = 16 << 20;

/// Describes the GPUs that there are; `measures` those that may be used.
pub fn list(measures: bool) -> Vec<Described> {
    let begun = Instant::now();
    let adapters = Adapter::all();
    let finding = begun.elapsed();
    let describe = |adapter: Adapter| {
        let mut about = adapter.about().clone();
        let mut start_nanos = 0.0;
        let costs = match (measures && about.refused.is_none()).then(|| measured(&adapter)) {
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
        Described { about, costs, processor: costs.and_then(|_| Costs::of_processor().ok()), start_nanos }
    };
    adapters.into_iter().map(describe).collect()
}

/// A device that computes right, its costs, and how long it takes until it is there.
fn measured(adapter: &Adapter) -> Result<(Arc<Device>, Costs, Duration), GpuError> {
    let begun = Instant::now();
    let (device, mut stream) = open(adapter, u64::MAX)?;
    let start = begun.elapsed();
    Ok((device, stream.measure()?, start))
}

/// A device that computes right.
fn open(adapter: &Adapter, memory_bytes_max: u64) -> Result<(Arc<Device>, Stream), GpuError> {
    // The rest is the driver's, and other programs'.
    let most = match adapter.about().memory_bytes {
        0 => u64::MAX,
        bytes => bytes / 10 * 9,
    };
    let device = Arc::new(Device::open(adapter, memory_bytes_max.min(most))?);
    let mut stream = Stream::new(device.clone());
    stream.check_device()?;
    Ok((device, stream))
}

/// Serves a node until it closes the socket, as a process that drives a device and does no more.
///
/// # Errors
/// Of its set-up, and of what its node says.
pub fn serve(node: impl AsFd) -> io::Result<()> {
    // It waits for the device, and not for whom it serves.
    std::panic::set_hook(Box::new(|_| std::process::exit(1)));
    confine::leave_signals_to_node()?;
    // It ends when its node closes the socket. By then the thread that started it may be long gone.
    confine::limit_resources(FILES_MAX)?;
    let own = [software::folder(), std::env::current_exe()?.parent().map(Path::to_owned)];
    confine::files_of_drivers(&own.iter().flatten().map(PathBuf::as_path).collect::<Vec<_>>())?;
    let node = node.as_fd();
    let (mut received, mut frame) = (Vec::new(), Vec::new());
    let Some((hello, _)) = socket::receive(node, &mut received)? else { return Ok(()) };
    let ToServer::Hello { place, memory_bytes_max, costs, processor } = hello else {
        return Err(io::Error::other("the first message is not a hello"));
    };
    let opened = Adapter::at(place).and_then(|adapter| {
        let (device, mut stream) = open(&adapter, memory_bytes_max)?;
        Ok((device, costs.map_or_else(|| stream.measure(), Ok)?))
    });
    let (device, costs) = match opened {
        Ok(opened) => opened,
        Err(e) => return socket::send(node, socket::frame(&FromServer::Failed(e.to_string()), &mut frame)?, &[]),
    };
    let queue = Arc::new(Queue::new(device.clone()));
    let waits = queue.clone();
    let named = |name: &str| thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    named("wait").spawn(move || waits.wait_for_device())?;
    confine::drivers()?;
    // It has started.
    let described = Described { about: device.describe(), costs: Some(costs), processor, start_nanos: 0.0 };
    socket::send(node, socket::frame(&FromServer::Ready(Box::new(described)), &mut frame)?, &[])?;
    while let Some((message, files)) = socket::receive(node, &mut received)? {
        let (ToServer::Connect, Ok([socket, area])) = (message, <[OwnedFd; 2]>::try_from(files)) else {
            return Err(io::Error::other("it was told something else than whom to serve"));
        };
        let area = Arc::new(SharedMemory::open(area, AREA_BYTES)?);
        let connection = Connection::new(socket, area, queue.clone())?;
        named("serve").spawn(move || connection.serve())?;
    }
    Ok(())
}
