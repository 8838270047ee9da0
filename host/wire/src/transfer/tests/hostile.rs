//! Hostile holders: one attack each, with its expected outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quinn::SendStream;

use super::super::codec::Codec;
use super::super::layout::{GROUP_BYTES, Layout};
use super::super::message::{FOUND, FrameHead, PieceRequest, Refusal};
use super::super::*;
use super::world::{Host, Liar, Lie, OBJECT, lie, limits, noise, spec};

const GROUP: usize = GROUP_BYTES as usize;

/// The parts of an answer.
pub struct ScriptedResponse {
    pub begin: Vec<u8>,
    pub heads: Vec<FrameHead>,
    pub bodies: Vec<Vec<u8>>,
    pub end: Vec<u8>,
}

impl ScriptedResponse {
    /// Creates an honest answer.
    pub fn new(bytes: &[u8], tree: &HashTree, request: &PieceRequest) -> ScriptedResponse {
        let layout = Layout::of_memory(bytes);
        let mut begin = vec![FOUND];
        if request.wants_blocks {
            begin.extend_from_slice(tree.blocks().as_flattened());
        }
        if request.wants_groups {
            begin.extend_from_slice(tree.groups(layout.block_of(request.groups.start)).as_flattened());
        }
        let (mut heads, mut bodies) = (Vec::new(), Vec::new());
        for group in request.groups.clone() {
            let range = layout.range(&(group..group + 1));
            let body = bytes[range.start as usize..range.end as usize].to_vec();
            heads.push(FrameHead { codec: Codec::Raw, groups: 1, len: body.len() as u32 });
            bodies.push(body);
        }
        ScriptedResponse { begin, heads, bodies, end: Vec::new() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let frames = self.heads.iter().zip(&self.bodies).flat_map(|(head, body)| [&head.write()[..], body].concat());
        self.begin.iter().copied().chain(frames).chain(self.end.iter().copied()).collect()
    }
}

/// Modifies an honest answer.
fn changed(bytes: &Arc<Vec<u8>>, change: impl Fn(&mut ScriptedResponse, &PieceRequest) + Send + Sync + 'static) -> Lie {
    let (bytes, tree, change) = (bytes.clone(), Arc::new(HashTree::build(bytes)), Arc::new(change));
    lie(move |request, mut send: SendStream, _| {
        let (bytes, tree, change) = (bytes.clone(), tree.clone(), change.clone());
        async move {
            let mut response = ScriptedResponse::new(&bytes, &tree, &request);
            change(&mut response, &request);
            let _ = send.write_all(&response.bytes()).await;
        }
    })
}

/// Answers with fixed bytes.
fn responds(bytes: Vec<u8>) -> Lie {
    let bytes = Arc::new(bytes);
    lie(move |_, mut send, _| {
        let bytes = bytes.clone();
        async move { drop(send.write_all(&bytes).await) }
    })
}

/// Answers with the same bytes repeatedly.
fn repeats(bytes: &'static [u8], pause_ms: u64) -> Lie {
    lie(move |_, mut send, _| async move {
        while send.write_all(bytes).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    })
}

/// Fetches from the liar alone, which must fail and name it; then from it and an honest node, which must succeed.
async fn check(name: &str, bytes: &Arc<Vec<u8>>, lie: Lie, is_expected: impl Fn(&HolderError) -> bool) {
    let mut receiver = Host::start(0, limits());
    let (liar, honest) = (Liar::start(1, lie), Host::start(2, limits()));
    honest.put(OBJECT, bytes);
    let alone = receiver.fetch(bytes, vec![receiver.holder_of_liar(&liar)]).await;
    let Err(FetchError::NoHolder { failed, .. }) = alone else { panic!("{name}: {alone:?}") };
    assert!(
        failed.0.len() == 1 && failed.0[0].holder == liar.node && is_expected(&failed.0[0].error),
        "{name}: {failed:?}"
    );
    assert_eq!(receiver.admission.used(), 0, "{name}");
    let expected = TransferEvent::HolderDropped { holder: liar.node, object: OBJECT, error: failed.0[0].error.clone() };
    let mut is_reported = false;
    while let Ok(event) = receiver.events.try_recv() {
        is_reported |= event == expected;
    }
    assert!(is_reported, "{name}: no event says that it was given up");
    let both = vec![receiver.holder_of_liar(&liar), receiver.holder_of(&honest)];
    let report = receiver.fetch(bytes, both).await;
    let report = report.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(report.failed.0.iter().all(|failed| failed.holder == liar.node), "{name}: {report:?}");
}

#[tokio::test]
async fn each_is_named_and_does_no_harm() {
    let bytes = Arc::new(noise(20 * GROUP + 5, 7));
    let bad_chunk = |error: &HolderError| matches!(error, HolderError::BadChunk { .. });
    let bad_nodes = |error: &HolderError| *error == HolderError::BadNodes;
    let protocol = |error: &HolderError| matches!(error, HolderError::Protocol(_));
    let stalled = |error: &HolderError| matches!(error, HolderError::Stalled { .. });
    let bad_chunk_or_end = |error: &HolderError| bad_chunk(error) || protocol(error);
    let stalled_or_nodes = |error: &HolderError| stalled(error) || bad_nodes(error);
    let idle = |error: &HolderError| matches!(error, HolderError::Idle { .. });
    let lost = |error: &HolderError| matches!(error, HolderError::ConnectionLost(_) | HolderError::Unreachable(_));
    let other = |error: &HolderError| matches!(error, HolderError::OtherLength { actual: 5, .. });
    let refuse = |refusal: Refusal| {
        let mut bytes = Vec::new();
        refusal.write(&mut bytes);
        responds(bytes)
    };
    let bomb = |codec: Codec, len: usize| {
        let body = codec.compress(&vec![0; len]).unwrap();
        changed(&bytes, move |response, _| {
            response.heads[0] = FrameHead { codec, groups: 1, len: body.len() as u32 };
            response.bodies[0] = body.clone();
        })
    };
    type Expected<'a> = &'a dyn Fn(&HolderError) -> bool;
    let table: Vec<(&str, Lie, Expected<'_>)> = vec![
        ("flips a bit", changed(&bytes, |response, _| response.bodies[0][3] ^= 1), &bad_chunk),
        (
            "flips the last bit",
            changed(&bytes, |response, _| *response.bodies.last_mut().unwrap().last_mut().unwrap() ^= 1),
            &bad_chunk,
        ),
        ("sends the next group", changed(&bytes, |response, _| response.bodies.rotate_left(1)), &bad_chunk_or_end),
        (
            "a wrong hash",
            changed(
                &bytes,
                |response, request| {
                    if request.wants_groups { response.begin[1] ^= 1 } else { response.bodies[0][0] ^= 1 }
                },
            ),
            &bad_nodes,
        ),
        ("hashes of other bytes", changed(&Arc::new(noise(20 * GROUP + 5, 8)), |_, _| {}), &bad_nodes),
        (
            "ends early",
            changed(&bytes, |response, _| {
                response.bodies.pop();
            }),
            &protocol,
        ),
        (
            "ends in a group",
            changed(&bytes, |response, _| {
                response.bodies.last_mut().unwrap().pop();
            }),
            &protocol,
        ),
        ("goes on", changed(&bytes, |response, _| response.end.push(0)), &protocol),
        ("goes on for ever", repeats(&[0; 10_000], 0), &bad_nodes),
        ("no frame", changed(&bytes, |response, _| response.begin.extend([9; 100_000])), &protocol),
        ("a frame of nothing", changed(&bytes, |response, _| response.heads[0].groups = 0), &protocol),
        ("a frame of too much", changed(&bytes, |response, _| response.heads[0].groups = 5000), &protocol),
        ("a frame longer than its groups", changed(&bytes, |response, _| response.heads[0].len += 1), &protocol),
        ("an lz4 bomb", bomb(Codec::Lz4, 1 << 22), &bad_chunk_or_end),
        ("a zstd bomb", bomb(Codec::Zstd, 1 << 28), &bad_chunk_or_end),
        ("too little compressed", bomb(Codec::Zstd, 1000), &bad_chunk_or_end),
        ("compressed to as much", changed(&bytes, |response, _| response.heads[0].codec = Codec::Lz4), &protocol),
        ("no status", responds(vec![200]), &protocol),
        ("nothing", responds(vec![]), &protocol),
        ("another length", refuse(Refusal::OtherLength(5)), &other),
        ("another length that is none", refuse(Refusal::OtherLength(20 * GROUP_BYTES + 5)), &protocol),
        ("another object", refuse(Refusal::OtherRoot), &|error| *error == HolderError::OtherRoot),
        ("can't read", refuse(Refusal::Malformed), &protocol),
        ("fails", refuse(Refusal::Failed), &|error| *error == HolderError::Failed),
        ("never yet", refuse(Refusal::NotYet), &idle),
        ("resets", lie(|_, mut send, _| async move { drop(send.reset(9u32.into())) }), &idle),
        (
            "says nothing",
            lie(|_, send, _| async move {
                std::future::pending::<()>().await;
                drop(send)
            }),
            &stalled,
        ),
        ("a byte now and then", repeats(&[0], 30), &stalled_or_nodes),
        ("closes", lie(|_, _, connection| async move { connection.close(0u32.into(), b"no") }), &lost),
    ];
    for (name, lie, is_expected) in table {
        check(name, &bytes, lie, is_expected).await;
    }
}

#[tokio::test]
async fn only_the_wrong_chunk_is_fetched_again() {
    let bytes = Arc::new(noise(64 * GROUP, 7));
    let receiver = &mut Host::start(0, limits());
    let honest = Host::start(2, limits());
    honest.put(OBJECT, &bytes);
    // The liar gets the whole object as one piece before the other holder is known.
    let is_requested = Arc::new(AtomicBool::new(false));
    let liar = Liar::start(1, {
        let is_requested = is_requested.clone();
        changed(&bytes, move |response, request| {
            is_requested.store(true, Ordering::Relaxed);
            if request.groups.contains(&9) {
                response.bodies[9 - request.groups.start as usize][100] ^= 4;
            }
        })
    });
    let wide = TransferLimits { piece_bytes_max: 64 * GROUP_BYTES, ..limits() };
    let transfers = Transfers::new(wide, receiver.admission.clone(), None, Offload::Threads).unwrap();
    let mut spec = spec(&bytes, vec![receiver.holder_of_liar(&liar)]);
    spec.finder = Some(Arc::new(FixedFinder(receiver.holder_of(&honest))));
    let fetched = transfers.fetch(spec, HeapTarget::reserve).await.unwrap();
    assert!(fetched.target.into_bytes().as_ref() == &bytes[..]);
    let range = 9 * GROUP_BYTES..10 * GROUP_BYTES;
    assert_eq!(fetched.report.failed.0[0].error, HolderError::BadChunk { range });
    let (_, from_honest) = fetched.report.from[1];
    assert!((GROUP_BYTES..GROUP_BYTES + 100).contains(&from_honest), "{:?}", fetched.report);
    assert!(is_requested.load(Ordering::Relaxed));
}

struct FixedFinder(Holder);

impl HolderFinder for FixedFinder {
    fn find_more(
        &self,
        _: sandbar_core::ObjectId,
        _: &[FailedHolder],
    ) -> futures::future::BoxFuture<'static, Vec<Holder>> {
        Box::pin(std::future::ready(vec![self.0.clone()]))
    }
}
