//! Fetches from honest nodes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use sandbar_core::ObjectId;

use super::super::layout::{BLOCK_GROUPS, GROUP_BYTES};
use super::super::*;
use super::hostile::ScriptedResponse;
use super::world::{Host, Liar, OBJECT, lie, limits, noise, spec};

const GROUP: usize = GROUP_BYTES as usize;
const BLOCK: usize = GROUP * BLOCK_GROUPS as usize;

/// Fetches an object of `len` bytes from a number of holders.
async fn check(len: usize, holders: u32) -> FetchReport {
    let bytes = noise(len, 1);
    let receiver = Host::start(0, limits());
    let hosts: Vec<Host> = (1..=holders).map(|node| Host::start(node, limits())).collect();
    hosts.iter().for_each(|host| host.put(OBJECT, &bytes));
    let holders = hosts.iter().map(|host| receiver.holder_of(host)).collect();
    let report = receiver.fetch(&bytes, holders).await.unwrap();
    assert_eq!(report.failed, FailedHolders::default());
    report
}

#[tokio::test]
async fn objects_of_all_lengths_come() {
    for len in [0, 1, 1023, 1025, GROUP - 1, GROUP, GROUP + 1, 4 * GROUP, 4 * GROUP + 1, 10 * GROUP + 77] {
        let report = check(len, 1).await;
        let from: u64 = report.from.iter().map(|(_, bytes)| bytes).sum();
        assert!(from >= len as u64 && from < len as u64 + 4000, "{len} bytes took {from}");
    }
    for len in [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + GROUP + 1] {
        check(len, 1).await;
    }
}

#[tokio::test]
async fn several_holders_share_the_work() {
    let len = 2 * BLOCK + 5;
    let report = check(len, 3).await;
    assert_eq!(report.from.len(), 3);
    for (node, bytes) in &report.from {
        assert!(*bytes > GROUP_BYTES, "node {node} sent {bytes}");
    }
    // Hash lists are requested from several holders; a stolen piece loses only what did not arrive.
    assert!(report.from.iter().map(|(_, bytes)| bytes).sum::<u64>() < (len + len / 4) as u64);
}

#[tokio::test]
async fn other_holders_are_tried_after_a_refusal() {
    let bytes = noise(GROUP * 3, 1);
    let (receiver, first, second) = (Host::start(0, limits()), Host::start(1, limits()), Host::start(2, limits()));
    let holders = || vec![receiver.holder_of(&first), receiver.holder_of(&second)];
    let error = receiver.fetch(&bytes, holders()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "object 0-42: no holder is left: node 1 does not have the object; node 2 does not have the object"
    );
    assert_eq!(error.blame(), TransferBlame::Owner);
    second.put(OBJECT, &bytes);
    let report = receiver.fetch(&bytes, holders()).await.unwrap();
    assert_eq!(report.failed.0.len(), 1);
    first.put(OBJECT, &bytes[1..]);
    let report = receiver.fetch(&bytes, holders()).await.unwrap();
    let (announced, actual) = (bytes.len() as u64, bytes.len() as u64 - 1);
    assert_eq!(report.failed.0[0].error, HolderError::OtherLength { announced, actual });
    first.put(OBJECT, &noise(GROUP * 3, 2));
    let report = receiver.fetch(&bytes, holders()).await.unwrap();
    assert_eq!(report.failed.0[0].error, HolderError::OtherRoot);
    assert_eq!(receiver.admission.used(), 0);
}

#[tokio::test]
async fn a_holder_of_other_bytes_is_not_blamed() {
    for len in [1, GROUP, GROUP * 3] {
        let bytes = noise(len, 1);
        let (receiver, holder) = (Host::start(0, limits()), Host::start(1, limits()));
        holder.put(OBJECT, &noise(len, 2));
        let error = receiver.fetch(&bytes, vec![receiver.holder_of(&holder)]).await.unwrap_err();
        let FetchError::NoHolder { failed, .. } = &error else { panic!("{error}") };
        assert_eq!((&failed.0[0].error, error.blame()), (&HolderError::OtherRoot, TransferBlame::Owner), "{len} bytes");
    }
}

#[tokio::test]
async fn a_stolen_range_is_fetched_by_its_thief() {
    // One piece. Each of three holders sends so little in a tick that another one seems faster.
    let bytes = Arc::new(noise(GROUP * 4, 1));
    let receiver = Host::start(0, limits());
    let slow = || {
        let (bytes, tree) = (bytes.clone(), Arc::new(HashTree::build(&bytes)));
        lie(move |request, mut send, _| {
            let all = ScriptedResponse::new(&bytes, &tree, &request).bytes();
            async move {
                for some in all.chunks(8 << 10) {
                    let _ = send.write_all(some).await;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        })
    };
    let slow: Vec<Liar> = (1..4).map(|node| Liar::start(node, slow())).collect();
    let holders = slow.iter().map(|holder| receiver.holder_of_liar(holder)).collect();
    let fetching = tokio::time::timeout(Duration::from_secs(20), receiver.fetch(&bytes, holders));
    let report = fetching.await.expect("it is taken over for ever").unwrap();
    assert!(report.failed.0.is_empty() && report.stolen <= 6, "{report:?}");
}

#[tokio::test]
async fn a_holder_that_serves_more_urgent_fetches_is_kept() {
    // The lower priority gets nothing for longer than the idle limit.
    let (bytes, started) = (Arc::new(noise(GROUP * 40, 1)), Instant::now());
    let receiver = Host::start(0, limits());
    let busy_ms = limits().idle_ms_max + 500;
    let holder = Liar::start(1, {
        let (bytes, tree) = (bytes.clone(), Arc::new(HashTree::build(&bytes)));
        lie(move |request, mut send, _| {
            let all = ScriptedResponse::new(&bytes, &tree, &request).bytes();
            async move {
                let is_busy = started.elapsed() < Duration::from_millis(busy_ms);
                if is_busy && request.priority < Priority::Get {
                    return drop(send.reset(1u32.into()));
                }
                for some in all.chunks(GROUP / 2) {
                    let _ = send.write_all(some).await;
                    tokio::time::sleep(Duration::from_millis(if is_busy { 20 } else { 0 })).await;
                }
            }
        })
    });
    let fetch = |priority| {
        let spec = FetchSpec { priority, ..spec(&bytes, vec![receiver.holder_of_liar(&holder)]) };
        receiver.transfers.fetch(spec, HeapTarget::reserve)
    };
    let (urgent, other) = tokio::join!(fetch(Priority::Get), fetch(Priority::Argument));
    assert!(started.elapsed() >= Duration::from_millis(busy_ms), "there was nothing to wait for");
    assert_eq!((urgent.unwrap().report.failed, other.unwrap().report.failed), Default::default());
}

#[tokio::test]
async fn a_lost_connection_is_replaced_and_no_chunk_is_fetched_twice() {
    let bytes = noise(BLOCK, 1);
    let (receiver, host) = (Host::start(0, limits()), Host::start(1, limits()));
    host.put(OBJECT, &bytes);
    let holder = receiver.holder_of(&host);
    let link = holder.link.clone();
    // Each cut loses only the pieces in flight.
    let cut = tokio::spawn(async move {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(15)).await;
            link.connect().await.unwrap().close(0u32.into(), b"cut");
        }
    });
    let report = receiver.fetch(&bytes, vec![holder]).await.unwrap();
    cut.await.unwrap();
    let limits = limits();
    let in_flight = limits.piece_bytes_max * limits.pieces_in_flight_max as u64;
    assert!(report.from[0].1 < bytes.len() as u64 + 3 * in_flight + (64 << 10), "{report:?}");
}

#[tokio::test]
async fn other_holders_are_found_when_all_have_failed() {
    struct FixedFinder(Holder);
    impl HolderFinder for FixedFinder {
        fn find_more(&self, _: ObjectId, failed: &[FailedHolder]) -> BoxFuture<'static, Vec<Holder>> {
            assert_eq!(failed[0].error, HolderError::NotFound);
            std::future::ready(vec![self.0.clone()]).boxed()
        }
    }
    let bytes = noise(GROUP * 9, 1);
    let (receiver, first, second) = (Host::start(0, limits()), Host::start(1, limits()), Host::start(2, limits()));
    second.put(OBJECT, &bytes);
    let finder: Arc<dyn HolderFinder> = Arc::new(FixedFinder(receiver.holder_of(&second)));
    let mut spec = spec(&bytes, vec![receiver.holder_of(&first)]);
    spec.finder = Some(finder);
    let fetched = receiver.transfers.fetch(spec.clone(), HeapTarget::reserve).await.unwrap();
    assert!(fetched.target.into_bytes().as_ref() == bytes);
    // A finder that returns the same holder again and again is not called forever.
    second.objects.put(OBJECT, HeldObject::NotFound);
    assert!(receiver.transfers.fetch(spec, HeapTarget::reserve).await.is_err());
    assert!(second.objects.lookups.load(Ordering::Relaxed) < 60);
}

#[tokio::test]
async fn memory_that_is_not_there_is_an_error_and_nothing_is_kept() {
    let bytes = noise(GROUP * 3, 1);
    let (receiver, host) = (Host::start(0, limits()), Host::start(1, limits()));
    host.put(OBJECT, &bytes);
    let spec = || spec(&bytes, vec![receiver.holder_of(&host)]);
    let full = async |_| Err::<HeapTarget, _>(io::Error::from(io::ErrorKind::OutOfMemory));
    let error = receiver.transfers.fetch(spec(), full).await.unwrap_err();
    assert!(matches!(error, FetchError::Memory { .. }) && error.blame() == TransferBlame::Local, "{error}");
    let short = receiver.transfers.fetch(spec(), |bytes| HeapTarget::reserve(bytes - 1)).await.unwrap_err();
    assert!(matches!(short, FetchError::Memory { .. }));
    let mut huge = spec();
    huge.bytes = 2 << 30;
    let error = receiver.transfers.fetch(huge.clone(), HeapTarget::reserve).await.unwrap_err();
    assert!(matches!(error, FetchError::TooLarge { max, .. } if max == 1 << 30), "{error}");
    huge.bytes = u64::MAX;
    assert!(matches!(receiver.transfers.fetch(huge, HeapTarget::reserve).await, Err(FetchError::TooLarge { .. })));
    let mut empty = spec();
    empty.bytes = 0;
    assert!(matches!(
        receiver.transfers.fetch(empty, HeapTarget::reserve).await,
        Err(FetchError::WrongEmptyHash { .. })
    ));
    assert_eq!((receiver.admission.used(), host.objects.lookups.load(Ordering::Relaxed)), (0, 0));
}

#[tokio::test]
async fn a_fetch_that_is_dropped_leaves_nothing() {
    let bytes = noise(BLOCK * 2, 1);
    let (receiver, host) = (Host::start(0, limits()), Host::start(1, limits()));
    host.put(OBJECT, &bytes);
    for ms in [0, 5, 20, 60] {
        let fetch = receiver.fetch(&bytes, vec![receiver.holder_of(&host)]);
        let _ = tokio::time::timeout(Duration::from_millis(ms), fetch).await;
        assert_eq!((receiver.admission.used(), receiver.admission.waiting()), (0, 0));
        assert!(receiver.transfers.partial(OBJECT).is_none());
    }
    receiver.fetch(&bytes, vec![receiver.holder_of(&host)]).await.unwrap();
}

#[tokio::test]
async fn many_large_ones_wait_for_each_other_and_all_come() {
    let bytes = noise(GROUP * 20, 1);
    let (receiver, host) = (Host::start(0, limits()), Host::start(1, limits()));
    host.put(OBJECT, &bytes);
    // Room for two at a time.
    let admission = Admission::new(bytes.len() as u64 * 2 + 5, 100);
    let transfers = Transfers::new(limits(), admission.clone(), None, Offload::Threads).unwrap();
    let fetch = |priority| {
        let mut spec = spec(&bytes, vec![receiver.holder_of(&host)]);
        spec.priority = priority;
        transfers.fetch(spec, HeapTarget::reserve)
    };
    let priorities = [Priority::Prefetch, Priority::Argument, Priority::Get];
    let fetches = futures::future::join_all((0..30).map(|i| fetch(priorities[i % 3]).map(|result| result.map(drop))));
    let results = fetches.await;
    let yielded = results.iter().filter(|result| matches!(result, Err(FetchError::Yielded { .. }))).count();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 30 - yielded);
    assert!(yielded <= 2, "{results:?}");
    assert_eq!((admission.used(), admission.waiting()), (0, 0));
}

#[tokio::test]
async fn compressible_chunks_are_compressed_on_slow_links() {
    use super::super::layout::Layout;
    use super::super::message::PieceRequest;
    use super::super::piece::{PieceEnd, fetch_piece};
    use super::super::progress::{FetchProgress, GroupLease};
    let text: Vec<u8> = (0..200_000).flat_map(|i: u32| (i / 9).to_le_bytes()).collect();
    let (receiver, host) = (Host::start(0, limits()), Host::start(1, limits()));
    for (bytes, goodput, min, max) in [
        (text.clone(), 1_000_000, 1, text.len() / 2),
        (text.clone(), 0, text.len(), usize::MAX),
        (text.clone(), 1_000_000_000, text.len(), usize::MAX),
        (noise(text.len(), 1), 1_000_000, text.len(), usize::MAX),
    ] {
        host.put(OBJECT, &bytes);
        host.transfers.forget(OBJECT);
        let target: Arc<dyn FetchTarget> = Arc::new(HeapTarget::new(bytes.len() as u64).unwrap());
        let layout = Layout::of_memory(&bytes);
        let progress = Arc::new(FetchProgress::new(layout, RootHash::hash(&bytes), target.view()));
        let lease = GroupLease::acquire(&progress, target, layout.groups()).unwrap();
        let request = PieceRequest {
            fetch: 0,
            object: OBJECT,
            bytes: bytes.len() as u64,
            root: RootHash::hash(&bytes),
            groups: 0..0,
            wants_blocks: false,
            wants_groups: false,
            priority: Priority::Get,
            goodput,
        };
        let connection = receiver.holder_of(&host).link.connect().await.unwrap();
        let count = Default::default();
        let end = fetch_piece(&connection, request, lease, &count).await;
        assert_eq!(end, PieceEnd::Done { wrong: vec![] });
        assert!(progress.verified(&layout.groups()).unwrap().bytes == bytes);
        let came = count.into_inner() as usize;
        assert!((min..max).contains(&came), "{came} of {} bytes at {goodput} bytes a second", bytes.len());
    }
}
