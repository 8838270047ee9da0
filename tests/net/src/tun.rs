//! A TUN device: the packets that leave a namespace by it are read here, and what is written here arrives there.
//!
//! What is read is the kernel's header of virtual networks (`struct virtio_net_hdr`) and a packet, which may be many UDP
//! datagrams that go from one socket to another at once: so a few thousand reads a second carry hundreds of megabytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl};

use crate::namespace::Namespace;

/// From `linux/if_tun.h`.
const TUNSETIFF: Opcode = 0x4004_54ca;
const TUNSETOFFLOAD: Opcode = 0x4004_54d0;
const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
/// Checksums are left to who reads, and so is splitting UDP.
const OFFLOADS: usize = 0x01 | 0x20 | 0x40;

/// `struct ifreq`, of which this request reads a name and flags.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

#[derive(Debug)]
pub(crate) struct Tun(File);

impl Tun {
    /// Makes one in a namespace.
    pub(crate) fn new(namespace: &Namespace, name: &str) -> io::Result<Tun> {
        let mut request = Request { name: [0; 16], flags: IFF_TUN | IFF_NO_PI | IFF_VNET_HDR, rest: [0; 22] };
        request.name.iter_mut().take(15).zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        let file = namespace.within(move || {
            let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
            let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
            // SAFETY: the request reads an `ifreq`, and so much is handed over.
            unsafe { ioctl(&file, Setter::<TUNSETIFF, Request>::new(request)) }?;
            // SAFETY: it takes a number.
            unsafe { ioctl(&file, IntegerSetter::<TUNSETOFFLOAD>::new_usize(OFFLOADS)) }?;
            Ok(file)
        });
        Ok(Tun(file?))
    }

    /// The next packet that left the namespace; none when there is none now.
    pub(crate) fn read<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let len = (&self.0).read(buffer).ok()?;
        buffer.get(..len)
    }

    /// A packet arrives, if the kernel takes it: a device that is down takes none.
    pub(crate) fn write(&self, packet: &[u8]) -> bool {
        (&self.0).write(packet).is_ok()
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
