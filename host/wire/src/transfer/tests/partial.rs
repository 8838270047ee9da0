//! Serving of objects that are still being fetched.

use std::time::Duration;

use super::super::layout::GROUP_BYTES;
use super::super::*;
use super::world::{Host, OBJECT, limits, noise, spec};

const GROUP: usize = GROUP_BYTES as usize;

/// Fetches an object through a chain of nodes, each of which fetches from the previous one.
async fn check(len: usize, nodes: u32) {
    let bytes = noise(len, 3);
    let hosts: Vec<Host> = (0..nodes).map(|node| Host::start(node, limits())).collect();
    hosts[0].put(OBJECT, &bytes);
    let fetch = async |at: usize| {
        let spec = spec(&bytes, vec![hosts[at].holder_of(&hosts[at - 1])]);
        let fetch = hosts[at].transfers.fetch(spec, HeapTarget::reserve);
        let publish = async {
            loop {
                if let Some(partial) = hosts[at].transfers.partial(OBJECT) {
                    hosts[at].objects.put(OBJECT, HeldObject::Partial(partial));
                    return std::future::pending::<()>().await;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            fetched = fetch => {
                let whole = fetched.unwrap().target.into_bytes();
                assert!(whole.as_ref() == bytes, "node {at}");
                hosts[at].objects.put(OBJECT, HeldObject::Whole(std::sync::Arc::new(whole)));
            }
            () = publish => {}
        }
    };
    // All concurrently; the last nodes of the chain start before their sources have anything.
    let all = futures::future::join_all((1..nodes as usize).rev().map(|at| async move {
        tokio::time::sleep(Duration::from_millis(at as u64)).await;
        fetch(at).await;
    }));
    all.await;
}

#[tokio::test]
async fn arrived_chunks_are_served_during_the_fetch() {
    for (len, nodes) in [(1, 3), (GROUP, 3), (40 * GROUP + 7, 6), (300 * GROUP, 4)] {
        check(len, nodes).await;
    }
}

#[tokio::test]
async fn waiters_for_missing_bytes_get_an_error() {
    let bytes = noise(4 * GROUP, 3);
    let (receiver, middle) = (Host::start(0, limits()), Host::start(1, limits()));
    // Its only holder never answers.
    let nowhere = middle.holder(sandbar_core::NodeId(9), "127.0.0.1:9".parse().unwrap());
    let fetch = middle.transfers.fetch(spec(&bytes, vec![nowhere]), HeapTarget::reserve);
    let request_missing = async {
        let partial = loop {
            match middle.transfers.partial(OBJECT) {
                Some(partial) => break partial,
                None => tokio::task::yield_now().await,
            }
        };
        middle.objects.put(OBJECT, HeldObject::Partial(partial));
        receiver.fetch(&bytes, vec![receiver.holder_of(&middle)]).await
    };
    let (failed, requested) = tokio::join!(fetch, request_missing);
    assert!(matches!(failed, Err(FetchError::NoHolder { .. })));
    let Err(FetchError::NoHolder { failed, .. }) = requested else { panic!("{requested:?}") };
    let error = &failed.0[0].error;
    assert!(matches!(error, HolderError::NotFound | HolderError::Idle { .. }), "{error}");
}
