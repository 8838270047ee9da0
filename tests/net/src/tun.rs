//! A TUN device: reads the packets that leave a namespace, and writes packets that arrive there.
//!
//! Each read returns the kernel's header (`struct virtio_net_hdr`) and a packet, which may hold many UDP datagrams
//! between the same two sockets. A few thousand reads a second therefore carry hundreds of megabytes.

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
/// `TUN_F_CSUM`, `TUN_F_USO4`, `TUN_F_USO6`: the reader computes checksums and segments UDP.
const OFFLOADS: usize = 0x01 | 0x20 | 0x40;

/// `struct ifreq`, of which the request reads name and flags.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

#[derive(Debug)]
pub(crate) struct Tun(File);

impl Tun {
    /// Creates a device in a namespace.
    pub(crate) fn new(namespace: &Namespace, name: &str) -> io::Result<Tun> {
        let mut request = Request { name: [0; 16], flags: IFF_TUN | IFF_NO_PI | IFF_VNET_HDR, rest: [0; 22] };
        request.name.iter_mut().take(15).zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        let file = namespace.within(move || {
            let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
            let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
            // SAFETY: the request reads an `ifreq`, and `Request` has its size and layout.
            unsafe { ioctl(&file, Setter::<TUNSETIFF, Request>::new(request)) }?;
            // SAFETY: the request takes a number.
            unsafe { ioctl(&file, IntegerSetter::<TUNSETOFFLOAD>::new_usize(OFFLOADS)) }?;
            Ok(file)
        });
        Ok(Tun(file?))
    }

    /// Returns the next packet that left the namespace, or `None` if none is pending.
    pub(crate) fn read<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let len = (&self.0).read(buffer).ok()?;
        buffer.get(..len)
    }

    /// Writes a packet into the namespace. Returns false if the kernel refuses it, as a device that is down does.
    pub(crate) fn write(&self, packet: &[u8]) -> bool {
        (&self.0).write(packet).is_ok()
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
