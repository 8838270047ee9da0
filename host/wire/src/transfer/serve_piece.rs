//! Serving of a request for a piece.

use std::sync::Arc;

use bytes::Bytes;
use quinn::SendStream;

use super::clock::{now, seconds_since, within_ms};
use super::codec::{Codec, choose};
use super::held_object::{HeldObject, ObjectSource, SharedBytes};
use super::layout::{Groups, Layout};
use super::message::{FOUND, FrameHead, PieceRequest, Refusal};
use super::progress::{FetchProgress, GroupBytes};
use super::serve::{ServeError, TransferServer};
use super::tree::HashNode;
use super::{HashTree, RootHash};

/// Groups compressed at a time. Few, so that others do not wait long for the thread.
const COMPRESSED_GROUPS: u32 = 4;

/// Source of the groups.
enum Content {
    Whole { bytes: Bytes, tree: Option<Arc<HashTree>> },
    Partial(Arc<FetchProgress>),
}

impl TransferServer {
    pub(crate) async fn piece(
        &self,
        source: &Arc<dyn ObjectSource>,
        request: PieceRequest,
        send: &mut SendStream,
    ) -> Result<(), ServeError> {
        match self.content(source, &request).await {
            Ok((content, first)) => self.groups(content, first, &request, send).await,
            Err(refusal) => {
                let mut status = Vec::new();
                refusal.write(&mut status);
                self.write(send, &mut [status.into()]).await
            }
        }
    }

    /// Returns the source of the groups, and the first of them once they are available.
    async fn content(
        &self,
        source: &Arc<dyn ObjectSource>,
        request: &PieceRequest,
    ) -> Result<(Content, GroupBytes), Refusal> {
        let layout = Layout::for_bytes(request.bytes).ok_or(Refusal::Malformed)?;
        if !layout.has(&request.groups) {
            return Err(Refusal::Malformed);
        }
        let is = |bytes: u64, root: RootHash| match () {
            () if bytes != request.bytes => Err(Refusal::OtherLength(bytes)),
            () if root != request.root => Err(Refusal::OtherRoot),
            () => Ok(()),
        };
        let content = match source.find(self.peer().node, request.object) {
            HeldObject::NotFound => return Err(Refusal::NotFound),
            HeldObject::Whole(bytes) => {
                let len = (*bytes).as_ref().len() as u64;
                is(len, request.root)?;
                let trees = &self.transfers().0.trees;
                let tree = match layout.groups().end {
                    // No tree: compare the hash here, as a peer with another announced hash would take the bytes for a
                    // lie.
                    0 | 1 => {
                        is(len, RootHash::hash((*bytes).as_ref()))?;
                        None
                    }
                    _ => {
                        let tree = trees.get(request.object, &bytes).await.ok_or(Refusal::Failed)?;
                        is(len, tree.root())?;
                        Some(tree)
                    }
                };
                Content::Whole { bytes: Bytes::from_owner(SharedBytesOwner(bytes)), tree }
            }
            HeldObject::Partial(partial) => {
                is(partial.0.layout().bytes(), partial.0.hashes().root())?;
                Content::Partial(partial.0)
            }
        };
        let first = self.next(&content, layout, &request.groups).await?;
        Ok((content, first))
    }

    /// Returns the next run of available groups. Waits for the first of them.
    async fn next(&self, content: &Content, layout: Layout, groups: &Groups) -> Result<GroupBytes, Refusal> {
        match content {
            Content::Whole { bytes, .. } => {
                let range = layout.range(groups);
                let bytes = bytes.slice(range.start as usize..range.end as usize);
                Ok(GroupBytes { groups: groups.clone(), bytes })
            }
            Content::Partial(progress) => {
                let wait_ms = self.transfers().0.limits.wait_ms_max;
                let waited = within_ms(wait_ms, progress.wait_for(groups)).await.ok_or(Refusal::NotYet)?;
                waited.ok_or(Refusal::NotFound)
            }
        }
    }

    async fn groups(
        &self,
        content: Content,
        first: GroupBytes,
        request: &PieceRequest,
        send: &mut SendStream,
    ) -> Result<(), ServeError> {
        let layout = Layout::for_bytes(request.bytes).ok_or(ServeError::Malformed)?;
        let codec = self.codec(request.goodput, &first.bytes);
        let mut begin = vec![FOUND];
        content.lists(request, layout.block_of(request.groups.start), &mut begin);
        let mut begin = Some(Bytes::from(begin));
        let mut left = request.groups.clone();
        let mut next = Ok(first);
        loop {
            let GroupBytes { groups, bytes } = match next {
                Ok(next) => next,
                Err(refusal) => {
                    let instead = Bytes::copy_from_slice(&FrameHead::write_refusal(refusal));
                    return self.write(send, &mut [instead]).await;
                }
            };
            left.start = groups.end;
            self.frames(begin.take(), codec, layout, groups, bytes, send).await?;
            if left.is_empty() {
                return Ok(());
            }
            next = self.next(&content, layout, &left).await;
        }
    }

    /// Chooses the encoding for bytes like these.
    fn codec(&self, goodput: u64, bytes: &[u8]) -> Codec {
        let engine = &self.transfers().0;
        let limits = &engine.limits;
        // At a high total rate the link to this peer is not the bottleneck.
        if goodput == 0 || goodput.max(engine.sent.per_s()) > limits.compress_below_bytes_per_s {
            return Codec::Raw;
        }
        let started = now();
        let sample = &bytes[..bytes.len().min(64 << 10)];
        let samples = [Codec::Lz4, Codec::Zstd].map(|codec| codec.sample(sample, || seconds_since(started)));
        choose(goodput, &samples, limits)
    }

    async fn frames(
        &self,
        begin: Option<Bytes>,
        codec: Codec,
        layout: Layout,
        groups: Groups,
        bytes: Bytes,
        send: &mut SendStream,
    ) -> Result<(), ServeError> {
        let mut begin = begin.unwrap_or_default();
        let base = layout.range(&groups).start;
        let step = if codec == Codec::Raw { groups.len() as u32 } else { COMPRESSED_GROUPS };
        for start in groups.clone().step_by(step as usize) {
            let some = start..groups.end.min(start.saturating_add(step));
            let range = layout.range(&some);
            let raw = bytes.slice((range.start - base) as usize..(range.end - base) as usize);
            let (codec, body) = match codec.compress(&raw) {
                Some(compressed) => (codec, compressed.into()),
                None => (Codec::Raw, raw),
            };
            let head = FrameHead { codec, groups: some.len() as u16, len: body.len() as u32 };
            let head = [&std::mem::take(&mut begin)[..], &head.write()].concat();
            self.write(send, &mut [head.into(), body]).await?;
        }
        Ok(())
    }
}

impl Content {
    /// Writes the requested hash lists. A partial object has them: it has groups of this block.
    fn lists(&self, request: &PieceRequest, block: u32, to: &mut Vec<u8>) {
        let (blocks, groups): (&[HashNode], &[HashNode]) = match self {
            Content::Whole { tree, .. } => tree.as_ref().map_or((&[], &[]), |tree| (tree.blocks(), tree.groups(block))),
            Content::Partial(progress) => {
                let nodes = progress.hashes();
                (nodes.blocks().unwrap_or_default(), nodes.groups(block).unwrap_or_default())
            }
        };
        if request.wants_blocks {
            to.extend_from_slice(blocks.as_flattened());
        }
        if request.wants_groups {
            to.extend_from_slice(groups.as_flattened());
        }
    }
}

struct SharedBytesOwner(SharedBytes);

impl AsRef<[u8]> for SharedBytesOwner {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}
