//! A socket of QUIC's over one of turmoil's.

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
use sandbar_wire::{Ground, PROTOCOL_VERSION};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use turmoil::net::UdpSocket;

use crate::clock::SimulatedClock;
use crate::net::{Fate, Net};

/// A socket. It hears for as long as it lives.
#[derive(Debug)]
pub struct Socket {
    udp: Arc<UdpSocket>,
    address: SocketAddr,
    net: Net,
    inbox: Arc<Inbox>,
    hears: AbortHandle,
}

/// What has come and was not read.
#[derive(Debug, Default)]
struct Inbox(Mutex<Unread>);

#[derive(Debug, Default)]
struct Unread {
    datagrams: VecDeque<(SocketAddr, Bytes)>,
    reader: Option<Waker>,
}

/// What an endpoint stands on, on the host that this is called on. QUIC's timers run on tokio's clock, which is paused.
///
/// # Errors
/// When the port is taken.
pub async fn ground(net: &Net, address: SocketAddr, clock: SimulatedClock, seed: [u8; 32]) -> io::Result<Ground> {
    Ok(Ground {
        socket: Arc::new(Socket::bind(net, address).await?),
        runtime: Arc::new(quinn::TokioRuntime),
        clock: Arc::new(clock),
        version: PROTOCOL_VERSION,
        seed: Some(seed),
    })
}

impl Socket {
    /// On the host that this is called on, whose address this is.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn bind(net: &Net, address: SocketAddr) -> io::Result<Socket> {
        let udp = Arc::new(UdpSocket::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port())).await?);
        let address = SocketAddr::new(address.ip(), udp.local_addr()?.port());
        let inbox = Arc::new(Inbox::default());
        let hears = tokio::spawn(hear(udp.clone(), address.ip(), net.clone(), inbox.clone())).abort_handle();
        Ok(Socket { udp, address, net: net.clone(), inbox, hears })
    }
}

/// Takes in what comes, until it is aborted.
async fn hear(udp: Arc<UdpSocket>, to: IpAddr, net: Net, inbox: Arc<Inbox>) {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut late: BTreeMap<(Instant, u64), (SocketAddr, Bytes)> = BTreeMap::new();
    let mut number = 0;
    loop {
        let next = late.first_key_value().map_or_else(Instant::now, |((due, _), _)| *due);
        tokio::select! {
            biased;
            () = sleep_until(next), if !late.is_empty() => {
                if let Some((_, (from, datagram))) = late.pop_first() {
                    net.hears(to, from.ip());
                    inbox.put(from, datagram);
                }
            }
            came = udp.recv_from(&mut buffer) => {
                // It fails for nobody.
                let Ok((len, from)) = came else { return };
                let fate = net.fate(len);
                if fate != Fate::Comes(0) {
                    net.note(format_args!("{to} <- {from} {len} {fate:?}"));
                }
                let mut comes = |after_ms: u64| {
                    number += 1;
                    let due = Instant::now() + Duration::from_millis(after_ms);
                    late.insert((due, number), (from, Bytes::copy_from_slice(&buffer[..len])));
                };
                match fate {
                    Fate::Lost => {}
                    Fate::Comes(0) => {
                        net.hears(to, from.ip());
                        inbox.put(from, Bytes::copy_from_slice(&buffer[..len]));
                    }
                    Fate::Comes(after_ms) => comes(after_ms),
                    Fate::Twice(after_ms, again_ms) => [after_ms, again_ms].into_iter().for_each(&mut comes),
                    Fate::Damaged(bit) => {
                        buffer[bit / 8] ^= 1 << (bit % 8);
                        inbox.put(from, Bytes::copy_from_slice(&buffer[..len]));
                    }
                    Fate::Cut(len) => inbox.put(from, Bytes::copy_from_slice(&buffer[..len])),
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

    fn lock(&self) -> MutexGuard<'_, Unread> {
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
            // As of any socket: what does not fit is cut off.
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
        self.hears.abort();
    }
}

/// The network takes whatever it is given.
#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
