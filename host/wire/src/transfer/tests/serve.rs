//! Invalid and excessive requests: the server keeps answering other peers.

use std::time::Duration;

use quinn::Connection;

use super::super::layout::GROUP_BYTES;
use super::super::message::{PieceRequest, SmallRequest, TransferRequest};
use super::super::*;
use super::world::{Host, OBJECT, limits, noise};

const GROUP: usize = GROUP_BYTES as usize;
const MALFORMED: u8 = 5;

/// Sends bytes on a new stream and returns the answer.
async fn response_to(connection: &Connection, request: &[u8]) -> Option<Vec<u8>> {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    // A server that refuses may stop reading before everything is written.
    let _ = send.write_all(request).await;
    let _ = send.finish();
    receive.read_to_end(10 << 20).await.ok()
}

fn piece(bytes: &[u8], groups: std::ops::Range<u32>) -> PieceRequest {
    PieceRequest {
        fetch: 0,
        object: OBJECT,
        bytes: bytes.len() as u64,
        root: RootHash::hash(bytes),
        groups,
        wants_blocks: true,
        wants_groups: true,
        priority: Priority::Get,
        goodput: 0,
    }
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let bytes = noise(300 * GROUP, 5);
    let (requester, host) = (Host::start(0, limits()), Host::start(1, limits()));
    host.put(OBJECT, &bytes);
    let connection = requester.holder_of(&host).link.connect().await.unwrap();
    let groups = |groups| TransferRequest::Piece(piece(&bytes, groups)).write();
    let small = |count, bytes| {
        let objects = vec![SmallRequest { object: OBJECT, bytes }; count];
        TransferRequest::Small { priority: Priority::Get, objects }.write()
    };
    let long = PieceRequest { bytes: u64::MAX, ..piece(&bytes, 0..1) };
    for (name, request) in [
        ("no groups", groups(3..3)),
        ("groups backwards", groups(std::ops::Range { start: 3, end: 2 })),
        ("more groups than there are", groups(299..301)),
        ("groups of two blocks", groups(255..257)),
        ("an object of all bytes", TransferRequest::Piece(long).write()),
        ("nothing", vec![TRANSFER_STREAM]),
        ("no request", [&[TRANSFER_STREAM][..], &[200; 100]].concat()),
        ("more than a request", [&groups(0..1)[..], &[0]].concat()),
        ("a long request", [&[TRANSFER_STREAM][..], &vec![1; 1 << 20]].concat()),
        ("too many small objects", small(1025, 1)),
        ("large ones", small(1, 65 << 10)),
        ("too much of small ones", small(1000, 60 << 10)),
    ] {
        assert_eq!(response_to(&connection, &request).await, Some(vec![MALFORMED]), "{name}");
    }
    // Streams of another kind are finished without an answer.
    assert_eq!(response_to(&connection, b"x").await, Some(Vec::new()));
    let right = response_to(&connection, &groups(0..1)).await.unwrap();
    assert_eq!(right.len(), 1 + 2 * 32 + 256 * 32 + 7 + GROUP);
    assert!(right.ends_with(&bytes[..GROUP]));
}

#[tokio::test]
async fn a_slow_receiver_does_not_delay_others() {
    let bytes = noise(400 * GROUP, 5);
    let bounds = TransferLimits {
        responses_per_peer_max: 4,
        request_ms_max: 300,
        idle_ms_max: 500,
        sending_peer_bytes_max: 16 << 20,
        sending_bytes_max: 24 << 20,
        ..limits()
    };
    let (bad, good, host) = (Host::start(0, limits()), Host::start(2, limits()), Host::start(1, bounds));
    host.put(OBJECT, &bytes);
    let connection = bad.holder_of(&host).link.connect().await.unwrap();
    let mut kept = Vec::new();
    for i in 0..40 {
        let (mut send, receive) = connection.open_bi().await.unwrap();
        match i % 3 {
            // Requests a lot and reads nothing.
            0 => send.write_all(&TransferRequest::Piece(piece(&bytes, 0..256)).write()).await.unwrap(),
            // Sends half a request.
            1 => send.write_all(&[TRANSFER_STREAM, 0]).await.unwrap(),
            // Sends only the first byte.
            _ => send.write_all(&[TRANSFER_STREAM]).await.unwrap(),
        }
        if i % 3 == 0 {
            send.finish().unwrap();
        }
        kept.push((send, receive));
    }
    for _ in 0..3 {
        let fetch = good.fetch(&bytes, vec![good.holder_of(&host)]);
        tokio::time::timeout(Duration::from_secs(20), fetch).await.unwrap().unwrap();
    }
    drop(kept);
    // The same peer is served again once it behaves.
    let fetch = bad.fetch(&bytes, vec![bad.holder_of(&host)]);
    tokio::time::timeout(Duration::from_secs(20), fetch).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_prefetch_yields_to_an_awaited_fetch() {
    let bytes = noise(40 * GROUP, 5);
    let (requester, host) = (Host::start(0, limits()), Host::start(1, limits()));
    host.put(OBJECT, &bytes);
    let admission = Admission::new(bytes.len() as u64, 10);
    let transfers = Transfers::new(limits(), admission.clone(), None, Offload::Threads).unwrap();
    let fetch = |priority, holders| {
        let mut spec = super::world::spec(&bytes, holders);
        spec.priority = priority;
        transfers.fetch(spec, HeapTarget::reserve)
    };
    // A holder that never answers.
    let silent = super::world::Liar::start(
        7,
        super::world::lie(|_, send, _| async move {
            std::future::pending::<()>().await;
            drop(send);
        }),
    );
    let prefetch = fetch(Priority::Prefetch, vec![requester.holder_of_liar(&silent)]);
    let get = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        fetch(Priority::Get, vec![requester.holder_of(&host)]).await
    };
    let (prefetched, fetched) = tokio::join!(prefetch, get);
    assert!(matches!(prefetched, Err(FetchError::Yielded { object: OBJECT })), "{prefetched:?}");
    assert!(fetched.unwrap().target.into_bytes().as_ref() == bytes);
    assert_eq!((admission.used(), admission.waiting()), (0, 0));
}
