//! A QUIC socket over a turmoil socket.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use sandbar_wire::{EndpointEnvironment, PROTOCOL_VERSION};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use turmoil::net::UdpSocket;

use crate::clock::SimulatedClock;
use crate::net::{Delivery, Net};

/// A socket. It receives until it is dropped.
#[derive(Debug)]
pub struct Socket {
    udp: Arc<UdpSocket>,
    address: SocketAddr,
    net: Net,
    inbox: Arc<Inbox>,
    receiver: AbortHandle,
}

/// Datagrams that have arrived but were not read.
#[derive(Debug, Default)]
struct Inbox(Mutex<InboxState>);

#[derive(Debug, Default)]
struct InboxState {
    datagrams: VecDeque<(SocketAddr, Bytes)>,
    reader: Option<Waker>,
}

/// Creates an endpoint's environment on the current host. QUIC's timers use tokio's clock, which is paused.
///
/// # Errors
/// The port is in use.
pub async fn environment(
    net: &Net,
    address: SocketAddr,
    clock: SimulatedClock,
    seed: [u8; 32],
) -> io::Result<EndpointEnvironment> {
    Ok(EndpointEnvironment {
        socket: Arc::new(Socket::bind(net, address).await?),
        runtime: Arc::new(quinn::TokioRuntime),
        clock: Arc::new(clock),
        version: PROTOCOL_VERSION,
        seed: Some(seed),
    })
}

impl Socket {
    /// Binds a socket on the current host, whose address must be `address`.
    ///
    /// # Errors
    /// The port is in use.
    pub async fn bind(net: &Net, address: SocketAddr) -> io::Result<Socket> {
        let udp = Arc::new(UdpSocket::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port())).await?);
        let address = SocketAddr::new(address.ip(), udp.local_addr()?.port());
        let inbox = Arc::new(Inbox::default());
        let receiver = tokio::spawn(receive_loop(udp.clone(), address.ip(), net.clone(), inbox.clone())).abort_handle();
        Ok(Socket { udp, address, net: net.clone(), inbox, receiver })
    }
}

/// Receives datagrams until it is aborted.
async fn receive_loop(udp: Arc<UdpSocket>, to: IpAddr, net: Net, inbox: Arc<Inbox>) {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut late: BTreeMap<(Instant, u64), (SocketAddr, Bytes)> = BTreeMap::new();
    let mut number = 0;
    loop {
        let next = late.first_key_value().map_or_else(Instant::now, |((due, _), _)| *due);
        tokio::select! {
            biased;
            () = sleep_until(next), if !late.is_empty() => {
                if let Some((_, (from, datagram))) = late.pop_first() {
                    net.record_received(to, from.ip());
                    inbox.put(from, datagram);
                }
            }
            came = udp.recv_from(&mut buffer) => {
                // turmoil's sockets do not fail.
                let Ok((len, from)) = came else { return };
                let delivery = net.draw_delivery(len);
                if delivery != Delivery::Delayed(0) {
                    net.note(format_args!("{to} <- {from} {len} {delivery:?}"));
                }
                let mut comes = |after_ms: u64| {
                    number += 1;
                    let due = Instant::now() + Duration::from_millis(after_ms);
                    late.insert((due, number), (from, Bytes::copy_from_slice(&buffer[..len])));
                };
                match delivery {
                    Delivery::Lost => {}
                    Delivery::Delayed(0) => {
                        net.record_received(to, from.ip());
                        inbox.put(from, Bytes::copy_from_slice(&buffer[..len]));
                    }
                    Delivery::Delayed(after_ms) => comes(after_ms),
                    Delivery::Duplicated(after_ms, again_ms) => [after_ms, again_ms].into_iter().for_each(&mut comes),
                    Delivery::Damaged(bit) => {
                        buffer[bit / 8] ^= 1 << (bit % 8);
                        inbox.put(from, Bytes::copy_from_slice(&buffer[..len]));
                    }
                    Delivery::Truncated(len) => inbox.put(from, Bytes::copy_from_slice(&buffer[..len])),
                }
            }
        }
    }
}

impl Inbox {
    fn put(&self, from: SocketAddr, datagram: Bytes) {
        let unread = &mut *self.lock();
        unread.datagrams.push_back((from, datagram));
        if let Some(reader) = unread.reader.take() {
            reader.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let (to, len) = (transmit.destination, transmit.contents.len());
        self.net.note(format_args!("{} -> {to} {len}", self.address));
        self.udp.try_send_to(transmit.contents, to).map(drop)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let unread = &mut *self.inbox.lock();
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some((from, datagram)) = unread.datagrams.pop_front() else { break };
            // Like any socket, truncates what does not fit.
            let len = datagram.len().min(buffer.len());
            buffer[..len].copy_from_slice(&datagram[..len]);
            *meta = RecvMeta { addr: from, len, stride: len, ecn: None, dst_ip: None };
            count += 1;
        }
        if count == 0 {
            unread.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.receiver.abort();
    }
}

/// Always writable: the network accepts every datagram.
#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
