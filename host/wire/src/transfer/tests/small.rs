//! Fetches of many small objects.

use std::sync::Arc;

use sandbar_core::ObjectId;

use super::super::*;
use super::world::{Host, limits, noise};

fn object(id: u64) -> Vec<u8> {
    let lengths = [0, 1, 100, 1024, 10 << 10, 64 << 10];
    noise(lengths[id as usize % lengths.len()], id)
}

fn spec(id: u64) -> SmallSpec {
    let bytes = object(id);
    SmallSpec { object: ObjectId(id), bytes: bytes.len() as u32, root: RootHash::hash(&bytes) }
}

#[tokio::test]
async fn each_comes_in_its_place() {
    let (receiver, host) = (Host::start(0, limits()), Host::start(1, limits()));
    for count in [0, 1, 5, 1024, 1025, 3000] {
        (0..count).for_each(|id| host.put(ObjectId(id), &object(id)));
        let specs: Vec<SmallSpec> = (0..count).map(spec).collect();
        let fetched = receiver.transfers.fetch_small(&receiver.holder_of(&host), &specs, Priority::Get).await.unwrap();
        assert_eq!(fetched.objects.len(), specs.len());
        for (id, bytes) in fetched.objects.iter().enumerate() {
            assert!(bytes.as_ref().unwrap()[..] == object(id as u64));
        }
        assert_eq!(receiver.admission.used(), specs.iter().map(|small| u64::from(small.bytes)).sum::<u64>());
        drop(fetched.permit);
        assert_eq!(receiver.admission.used(), 0);
    }
}

#[tokio::test]
async fn an_error_of_one_object_does_not_affect_others() {
    let (receiver, host) = (Host::start(0, limits()), Host::start(1, limits()));
    let specs: Vec<SmallSpec> = (0..12).map(spec).collect();
    (0..12).filter(|id| *id != 3).for_each(|id| host.put(ObjectId(id), &object(id)));
    host.put(ObjectId(4), &noise(10 << 10, 999));
    host.put(ObjectId(5), b"short");
    let holder = receiver.holder_of(&host);
    let fetched = receiver.transfers.fetch_small(&holder, &specs, Priority::Argument).await.unwrap();
    for (id, result) in fetched.objects.iter().enumerate() {
        match (id, result) {
            (3, Err(HolderError::NotFound)) | (4, Err(HolderError::BadChunk { .. })) => {}
            (5, Err(HolderError::OtherLength { announced: 65_536, actual: 5 })) => {}
            (3..=5, other) => panic!("{other:?}"),
            (id, result) => assert!(result.as_ref().unwrap()[..] == object(id as u64)),
        }
    }
    let large = SmallSpec { bytes: (64 << 10) + 1, ..specs[0] };
    let refused = receiver.transfers.fetch_small(&holder, &[large], Priority::Get).await;
    assert!(matches!(refused, Err(FetchError::TooLarge { .. })));
}

#[tokio::test]
async fn silent_and_wrong_holders_are_abandoned() {
    type Responder = Arc<dyn Fn(quinn::SendStream) -> futures::future::BoxFuture<'static, ()> + Send + Sync>;
    async fn check(responder: Responder) -> HolderError {
        let endpoint = super::loopback::endpoint(super::world::transport());
        let receiver = Host::start(0, limits());
        let holder = receiver.holder(sandbar_core::NodeId(1), endpoint.local_addr().unwrap());
        tokio::spawn(async move {
            let connection = endpoint.accept().await.unwrap().await.unwrap();
            while let Ok((send, mut receive)) = connection.accept_bi().await {
                let responder = responder.clone();
                tokio::spawn(async move {
                    let _ = receive.read_to_end(1 << 20).await;
                    responder(send).await;
                });
            }
        });
        let specs: Vec<SmallSpec> = (0..20).map(spec).collect();
        let fetched = receiver.transfers.fetch_small(&holder, &specs, Priority::Get).await.unwrap();
        fetched.objects.last().unwrap().clone().unwrap_err()
    }
    fn responds(bytes: &'static [u8], ends: bool) -> Responder {
        Arc::new(move |mut send| {
            Box::pin(async move {
                while send.write_all(bytes).await.is_ok() && !ends {}
                if bytes.is_empty() {
                    std::future::pending::<()>().await;
                }
            })
        })
    }
    assert!(matches!(check(responds(&[], true)).await, HolderError::Stalled { .. }));
    assert!(matches!(check(responds(&[0], true)).await, HolderError::Protocol("its answer ends too early")));
    assert!(matches!(check(responds(&[77], true)).await, HolderError::Protocol(_)));
    // The answer matches the empty objects; the others get wrong bytes, and the response continues after the last one.
    assert!(matches!(
        check(responds(&[0; 1000], false)).await,
        HolderError::BadChunk { .. } | HolderError::Protocol(_)
    ));
}
