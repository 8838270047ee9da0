//! Packets of a TUN device: `struct virtio_net_hdr`, an IPv4 header (RFC 791), a UDP header (RFC 768).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;

/// Bytes of `struct virtio_net_hdr`: flags, GSO type, then 16 bits each for header length, datagram size, checksum
/// start and checksum offset.
const HEADER: usize = 10;
const NEEDS_SUM: u8 = 1;
const SPLIT_NONE: u8 = 0;
const SPLIT_UDP: u8 = 5;
const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
/// Maximum bytes of a packet, headers included.
pub(crate) const BYTES_MAX: usize = HEADER + 65_535;

/// A UDP datagram, or several of one size (the last may be shorter) between the same sockets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Packet {
    bytes: Vec<u8>,
    /// Bytes of the IPv4 header.
    ip: usize,
    /// Payload bytes of each datagram but the last.
    each: usize,
}

/// Returns the destination address of any IPv4 packet. Its last byte identifies the node.
pub(crate) fn destination(bytes: &[u8]) -> Option<Ipv4Addr> {
    let ip = bytes.get(HEADER..HEADER + 20)?;
    (ip[0] >> 4 == 4).then(|| Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]))
}

impl Packet {
    /// Parses a UDP packet. Returns `None` for other protocols, fragments and truncated packets.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Packet> {
        let first = bytes.get(HEADER..HEADER + 20)?;
        let ip = usize::from(first[0] & 15) * 4;
        let is_part = u16::from_be_bytes([first[6], first[7]]) & 0x3fff != 0;
        if first[0] >> 4 != 4 || ip < 20 || first[9] != UDP || is_part || bytes.len() < HEADER + ip + UDP_HEADER {
            return None;
        }
        let payload = bytes.len() - HEADER - ip - UDP_HEADER;
        let each = match bytes[1] {
            SPLIT_UDP => usize::from(u16::from_le_bytes([bytes[4], bytes[5]])),
            _ => payload,
        };
        Some(Packet { bytes: bytes.to_vec(), ip, each: each.max(1) })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the number of datagrams.
    pub(crate) fn count(&self) -> usize {
        self.payload().len().div_ceil(self.each).max(1)
    }

    fn payload(&self) -> Range<usize> {
        HEADER + self.ip + UDP_HEADER..self.bytes.len()
    }

    /// Returns a range of the datagrams as one packet.
    pub(crate) fn part(&self, datagrams: Range<usize>) -> Packet {
        let all = self.payload();
        let at = |datagram: usize| (all.start + datagram * self.each).min(all.end);
        let (from, to) = (at(datagrams.start), at(datagrams.end));
        let mut bytes = Vec::with_capacity(all.start + to - from);
        bytes.extend_from_slice(&self.bytes[..all.start]);
        bytes.extend_from_slice(&self.bytes[from..to]);
        let mut part = Packet { bytes, ip: self.ip, each: self.each };
        part.seal();
        part
    }

    /// Flips one bit of the payload and updates the checksum, so that only the receiver's own check can detect the
    /// damage.
    pub(crate) fn damage(&mut self, bit: usize) {
        let payload = self.payload();
        if !payload.is_empty() {
            self.bytes[payload.start + bit / 8 % payload.len()] ^= 1 << (bit % 8);
            self.seal();
        }
    }

    /// Returns source and destination.
    pub(crate) fn ends(&self) -> [SocketAddrV4; 2] {
        [0, 1].map(|end| {
            let (ip, port) = (HEADER + 12 + end * 4, HEADER + self.ip + end * 2);
            let ip: [u8; 4] = std::array::from_fn(|i| self.bytes[ip + i]);
            SocketAddrV4::new(ip.into(), u16::from_be_bytes([self.bytes[port], self.bytes[port + 1]]))
        })
    }

    pub(crate) fn set_ends(&mut self, ends: [SocketAddrV4; 2]) {
        for (end, address) in ends.iter().enumerate() {
            let (ip, port) = (HEADER + 12 + end * 4, HEADER + self.ip + end * 2);
            self.bytes[ip..ip + 4].copy_from_slice(&address.ip().octets());
            self.bytes[port..port + 2].copy_from_slice(&address.port().to_be_bytes());
        }
        self.seal();
    }

    /// Updates lengths and checksums. Sets only the pseudo-header's part of the UDP checksum: the kernel completes it,
    /// or does not check it.
    fn seal(&mut self) {
        let (ip, each, count) = (self.ip, self.each, self.count());
        let len = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX);
        let (kernel, packet) = self.bytes.split_at_mut(HEADER);
        let (total, udp_len) = (len(packet.len()), len(packet.len() - ip));
        let (split, size) = if count > 1 { (SPLIT_UDP, len(each)) } else { (SPLIT_NONE, 0) };
        (kernel[0], kernel[1]) = (NEEDS_SUM, split);
        for (at, value) in [(2, len(ip + UDP_HEADER)), (4, size), (6, len(ip)), (8, 6)] {
            kernel[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[10..12].fill(0);
        let sum = !sum(&packet[..ip]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet[ip + 4..ip + 6].copy_from_slice(&udp_len.to_be_bytes());
        let mut pseudo = [0; 12];
        pseudo[..8].copy_from_slice(&packet[12..20]);
        pseudo[9] = UDP;
        pseudo[10..].copy_from_slice(&udp_len.to_be_bytes());
        packet[ip + 6..ip + 8].copy_from_slice(&self::sum(&pseudo).to_be_bytes());
    }
}

/// Checksum of RFC 1071, not complemented.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [&str; 2] = ["10.77.0.1:1000", "10.77.0.2:2000"];

    fn packet(payload: &[u8], each: usize) -> Packet {
        let mut bytes = vec![0; HEADER + 20 + UDP_HEADER];
        (bytes[HEADER], bytes[HEADER + 9]) = (0x45, UDP);
        bytes.extend_from_slice(payload);
        let mut packet = Packet { bytes, ip: 20, each };
        packet.set_ends(ENDS.map(|end| end.parse().unwrap()));
        packet
    }

    #[test]
    fn parts_are_packets() {
        let payload: Vec<u8> = (0..25).collect();
        let whole = packet(&payload, 10);
        assert_eq!((whole.count(), Packet::parse(whole.bytes())), (3, Some(whole.clone())));
        for (datagrams, bytes, count) in [
            (0..3, 0..25, 3),
            (0..1, 0..10, 1),
            (1..2, 10..20, 1),
            (1..3, 10..25, 2),
            (2..3, 20..25, 1),
            (3..4, 25..25, 1),
        ] {
            let part = whole.part(datagrams.clone());
            assert_eq!(&part.bytes[part.payload()], &payload[bytes], "{datagrams:?}");
            let read = Packet::parse(part.bytes()).unwrap();
            assert_eq!((read.count(), read.ends()), (count, ENDS.map(|end| end.parse().unwrap())), "{datagrams:?}");
            // A header with a valid checksum sums to all ones.
            assert_eq!(sum(&part.bytes[HEADER..HEADER + 20]), 0xffff);
        }
    }

    #[test]
    fn damage_is_one_bit() {
        let whole = packet(&[0; 9], 9);
        for bit in 0..200 {
            let mut damaged = whole.clone();
            damaged.damage(bit);
            let bits: u32 = damaged.bytes[damaged.payload()].iter().map(|byte| byte.count_ones()).sum();
            assert_eq!((bits, damaged.ends()), (1, whole.ends()));
        }
        let mut empty = packet(&[], 9);
        empty.damage(3);
        assert_eq!(empty, packet(&[], 9));
    }

    #[test]
    fn other_protocols_have_no_datagrams() {
        let udp = packet(b"bytes", 5).bytes;
        let changed = |at: usize, to: u8| {
            let mut bytes = udp.clone();
            bytes[HEADER + at] = to;
            bytes
        };
        let cases = [(udp.clone(), true), (changed(0, 0x60), false), (changed(0, 0x41), false), (changed(9, 6), false)];
        let parts =
            [(changed(6, 0x20), false), (changed(7, 1), false), (changed(6, 0x40), true), (changed(0, 0x4f), false)];
        for (bytes, is_udp) in cases.into_iter().chain(parts).chain((0..38).map(|len| (udp[..len].to_vec(), false))) {
            assert_eq!(Packet::parse(&bytes).is_some(), is_udp, "{bytes:?}");
        }
    }
}
