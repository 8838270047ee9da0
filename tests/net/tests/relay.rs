//! Faults that a relay injects between sockets of two nodes.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use sandbar_testnet::{LinkFaults, Net, Rate, print_line};

const SECOND: Duration = Duration::from_secs(1);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Returns a socket of each of two nodes, and the address of the second.
fn sockets(net: &Net) -> (UdpSocket, UdpSocket, SocketAddr) {
    let (one, other) = (net.socket(0).unwrap(), net.socket(1).unwrap());
    [&one, &other].iter().for_each(|socket| socket.set_read_timeout(Some(ms(300))).unwrap());
    let to = other.local_addr().unwrap();
    (one, other, to)
}

/// Receives datagrams until none arrives for a while.
fn receive_all(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut buffer = [0; 2000];
    loop {
        match socket.recv(&mut buffer) {
            Ok(len) => all.push(buffer[..len].to_vec()),
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => return all,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Numbers of the received datagrams in order of arrival, and whether each is unchanged.
type ReceivedDatagrams = Vec<(u32, bool)>;

/// Sends `count` datagrams of 1000 bytes each, and returns those received.
fn numbers(net: &Net, count: u32) -> ReceivedDatagrams {
    let (one, other, to) = sockets(net);
    let datagram = |number: u32| [&number.to_le_bytes()[..], &[7; 996]].concat();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_all(&other));
        for number in 0..count {
            one.send_to(&datagram(number), to).unwrap();
            if number % 32 == 31 {
                std::thread::sleep(ms(1));
            }
        }
        let number = |received: &Vec<u8>| u32::from_le_bytes(received[..4].try_into().unwrap());
        receiver
            .join()
            .unwrap()
            .iter()
            .map(|received| (number(received), *received == datagram(number(received))))
            .collect()
    })
}

#[test]
fn datagrams_come_once_in_order_and_whole() {
    for net in [Net::switched(2), Net::relayed(2, 1)] {
        // On loopback, the receive buffer may have its default size.
        let count = if net.is_real() { 2000 } else { 50 };
        let came = numbers(&net, count);
        assert!(came.iter().copied().eq((0..count).map(|number| (number, true))), "{} came", came.len());
    }
}

#[test]
fn a_link_has_its_configured_faults() {
    let net = Net::relayed(2, 2);
    let Some(relay) = net.relay() else { return };
    let count = 4000;
    let expect = |link: LinkFaults, check: fn(&ReceivedDatagrams) -> usize, expected: usize| {
        relay.set(0, 1, link);
        let found = check(&numbers(&net, count));
        assert!(found.abs_diff(expected) < 200, "{found} are not about {expected}: {link:?}, {:?}", relay.counts());
    };
    let overtaken = |came: &ReceivedDatagrams| {
        let last = came.iter().scan(0, |last, (number, _)| {
            *last = (*last).max(*number);
            Some(*last)
        });
        last.zip(came).filter(|(last, (number, _))| number < last).count()
    };
    expect(LinkFaults { loss: 0.1, ..LinkFaults::default() }, Vec::len, 3600);
    expect(LinkFaults { duplicate: 0.1, ..LinkFaults::default() }, Vec::len, 4400);
    expect(
        LinkFaults { corrupt: 0.1, ..LinkFaults::default() },
        |came| came.iter().filter(|(_, whole)| !whole).count(),
        400,
    );
    expect(LinkFaults { reorder: 0.1, reorder_by: ms(5), ..LinkFaults::default() }, overtaken, 400);
    expect(LinkFaults { jitter: ms(3), ..LinkFaults::default() }, overtaken, 0);
    let counts = relay.counts();
    assert!(counts.lost > 200 && counts.doubled > 200 && counts.damaged > 200 && counts.late > 200, "{counts:?}");
    assert_eq!((counts.sent, counts.refused), (5 * u64::from(count), 0));
}

/// Returns the sorted durations of some round trips.
fn round_trips(net: &Net, count: usize) -> Vec<Duration> {
    let (one, other, to) = sockets(net);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 100];
            while let Ok((len, from)) = other.recv_from(&mut buffer) {
                other.send_to(&buffer[..len], from).unwrap();
            }
        });
        let mut all: Vec<Duration> = (0..count)
            .map(|_| {
                let started = Instant::now();
                one.send_to(b"a datagram", to).unwrap();
                one.recv(&mut [0; 100]).unwrap();
                started.elapsed()
            })
            .collect();
        all.sort();
        all
    })
}

#[test]
fn a_delay_is_at_least_its_configured_time() {
    let net = Net::relayed(2, 3);
    let Some(relay) = net.relay() else { return };
    for delay in [Duration::ZERO, ms(1), ms(20)] {
        relay.set_all(LinkFaults::of_delay(delay));
        let all = round_trips(&net, 40);
        print_line(format_args!("{:?} there and back: {:?}, {:?}, {:?}", 2 * delay, all[0], all[20], all[39]));
        assert!(all[0] >= 2 * delay, "{:?}", all[0]);
    }
}

/// Returns whether a datagram from one socket reaches the other.
fn comes(from: &UdpSocket, to: &UdpSocket) -> bool {
    from.send_to(b"a datagram", to.local_addr().unwrap()).unwrap();
    !receive_all(to).is_empty()
}

#[test]
fn a_disconnected_node_receives_nothing_until_it_reconnects() {
    for net in [Net::switched(3), Net::relayed(3, 4)] {
        if !net.is_real() {
            continue;
        }
        let sockets = [0, 1, 2].map(|node| net.socket(node).unwrap());
        sockets.iter().for_each(|socket| socket.set_read_timeout(Some(ms(200))).unwrap());
        let joined = |from: usize, to: usize| comes(&sockets[from], &sockets[to]);
        assert!(joined(0, 1) && joined(1, 2) && joined(2, 0));
        net.join(1, false).unwrap();
        assert!(!joined(0, 1) && !joined(1, 2) && joined(2, 0));
        net.join(1, true).unwrap();
        // The bridge learns first which port leads to the node.
        let since = Instant::now();
        while !(joined(0, 1) && joined(1, 0)) {
            assert!(since.elapsed() < 20 * SECOND);
        }
        // One direction only.
        if let Some(relay) = net.relay() {
            relay.change_from(1, |link| link.cut = true);
            assert!(joined(0, 1) && !joined(1, 0) && !joined(1, 2));
            relay.change_from(1, |link| link.cut = false);
            relay.change_to(1, |link| link.cut = true);
            assert!(!joined(0, 1) && joined(1, 0) && joined(1, 2));
        }
    }
}

#[test]
fn a_moved_node_has_another_address() {
    let net = Net::relayed(2, 5);
    let Some(relay) = net.relay() else { return };
    let (one, other, to) = sockets(&net);
    let own = one.local_addr().unwrap();
    let mut buffer = [0; 100];
    let mut seen = || {
        one.send_to(b"asks", to).unwrap();
        other.recv_from(&mut buffer).unwrap().1
    };
    let before = seen();
    assert_eq!(before, own);
    relay.move_node(0);
    // Datagrams to the old address are lost.
    other.send_to(b"too late", before).unwrap();
    assert_eq!(receive_all(&one), [] as [&[u8]; 0]);
    let after = seen();
    assert_eq!(after, SocketAddr::new([10, 77, 1, 1].into(), own.port()));
    other.send_to(b"answers", after).unwrap();
    assert_eq!(receive_all(&one), [b"answers"]);
    // A new flow to the node's own address reaches it.
    let third = net.socket(1).unwrap();
    third.set_read_timeout(Some(ms(300))).unwrap();
    third.send_to(b"asks", own).unwrap();
    assert_eq!(receive_all(&one), [b"asks"]);
    one.send_to(b"answers", third.local_addr().unwrap()).unwrap();
    assert_eq!(third.recv_from(&mut [0; 100]).unwrap(), (7, own));
}

#[test]
fn a_rate_is_kept() {
    for net in [Net::switched(2), Net::relayed(2, 6)] {
        if !net.is_real() {
            continue;
        }
        net.rate(0, Rate::Bits(8_000_000)).unwrap();
        let (one, other, to) = sockets(&net);
        let (started, mut bytes) = (Instant::now(), 0);
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive_all(&other).len() * 1000);
            while started.elapsed() < SECOND {
                // The send fails when the queue is full.
                let _ = one.send_to(&[0; 1000], to);
                std::thread::sleep(Duration::from_micros(100));
            }
            bytes = receiver.join().unwrap();
        });
        // A megabyte a second, plus the queue.
        assert!((300_000..1_500_000).contains(&bytes), "{bytes}");
        net.rate(0, Rate::Full).unwrap();
        assert_eq!(numbers(&net, 2000).len(), 2000);
    }
}
