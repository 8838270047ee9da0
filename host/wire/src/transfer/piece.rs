//! Fetching of one piece from one holder.

use std::sync::atomic::AtomicU64;

use quinn::{Connection, VarInt};

use super::HolderError;
use super::codec::Codec;
use super::layout::Groups;
use super::message::{FOUND, FrameHead, PieceRequest, Refusal, TransferRequest, refusal_len};
use super::progress::GroupLease;
use super::stream_reader::{ReadFault, StreamReader};
use super::tree::HashNode;

/// Result of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PieceEnd {
    /// All groups arrived; those in `wrong` failed verification.
    Done { wrong: Vec<u32> },
    /// The holder has nothing yet, or is busy.
    NotYet,
    /// The connection was lost, with the reason.
    ConnectionLost(String),
    /// The holder failed.
    Bad(HolderError),
    /// Another holder takes the rest over.
    Stolen,
}

impl From<ReadFault> for PieceEnd {
    fn from(fault: ReadFault) -> PieceEnd {
        match fault {
            ReadFault::Ended => PieceEnd::Bad(HolderError::Protocol("its answer ends too early")),
            ReadFault::Reset => PieceEnd::NotYet,
            ReadFault::ConnectionLost(why) => PieceEnd::ConnectionLost(why),
        }
    }
}

/// Requests the groups of a lease and writes them to the target. Overwrites the groups and the requested lists in
/// `request`. Counts received bytes.
pub(crate) async fn fetch_piece(
    connection: &Connection,
    request: PieceRequest,
    mut lease: GroupLease,
    count: &AtomicU64,
) -> PieceEnd {
    match Exchange::begin(connection, request, &lease, count).await {
        Ok(exchange) => exchange.run(&mut lease).await.unwrap_or_else(|end| end),
        Err(end) => end,
    }
}

struct Exchange<'a> {
    from: StreamReader<'a>,
    bytes: u64,
    block: u32,
    wants_blocks: u32,
    wants_groups: u32,
}

impl<'a> Exchange<'a> {
    async fn begin(
        connection: &Connection,
        mut request: PieceRequest,
        lease: &GroupLease,
        count: &'a AtomicU64,
    ) -> Result<Exchange<'a>, PieceEnd> {
        let lost = |error: &dyn std::fmt::Display| PieceEnd::ConnectionLost(error.to_string());
        let (mut to, from) = connection.open_bi().await.map_err(|error| lost(&error))?;
        let (groups, nodes) = (lease.groups(), lease.progress().hashes());
        let block = lease.progress().layout().block_of(groups.start);
        let (wants_blocks, wants_groups) = (nodes.missing_blocks(), nodes.missing_groups(block));
        let bytes = request.bytes;
        request.groups = groups;
        (request.wants_blocks, request.wants_groups) = (wants_blocks > 0, wants_groups > 0);
        match to.write_all(&TransferRequest::Piece(request).write()).await {
            // The peer may stop reading once it has refused.
            Ok(()) | Err(quinn::WriteError::Stopped(_)) => {}
            Err(error) => return Err(lost(&error)),
        }
        let _ = to.finish();
        Ok(Exchange { from: StreamReader::new(from, count), bytes, block, wants_blocks, wants_groups })
    }

    async fn run(mut self, lease: &mut GroupLease) -> Result<PieceEnd, PieceEnd> {
        self.status().await?;
        self.lists(lease).await?;
        let mut left = lease.groups();
        let mut wrong = Vec::new();
        while !left.is_empty() {
            let head = self.head(lease, &left).await?;
            let groups = left.start..left.start + u32::from(head.groups);
            left.start = groups.end;
            if head.codec == Codec::Raw {
                self.raw(lease, groups, &mut wrong).await?;
            } else {
                self.compressed(lease, head, groups, &mut wrong).await?;
            }
        }
        if self.from.is_over().await? {
            Ok(PieceEnd::Done { wrong })
        } else {
            Err(protocol("it sent more than was requested"))
        }
    }

    async fn status(&mut self) -> Result<(), PieceEnd> {
        let [status] = self.from.array().await?;
        if status == FOUND {
            return Ok(());
        }
        let mut rest = [0; 8];
        self.from.fill(&mut rest[..refusal_len(status)]).await?;
        Err(self.refused(Refusal::read(status, rest)))
    }

    fn refused(&self, refusal: Option<Refusal>) -> PieceEnd {
        match refusal.map(|refusal| refusal.error(self.bytes)) {
            Some(None) => PieceEnd::NotYet,
            Some(Some(error)) => PieceEnd::Bad(error),
            None => protocol("invalid status byte"),
        }
    }

    async fn lists(&mut self, lease: &GroupLease) -> Result<(), PieceEnd> {
        let nodes = lease.progress().hashes();
        if self.wants_blocks > 0 {
            let list = self.list(self.wants_blocks).await?;
            nodes.add_blocks(list).then_some(()).ok_or(PieceEnd::Bad(HolderError::BadNodes))?;
        }
        if self.wants_groups > 0 {
            let list = self.list(self.wants_groups).await?;
            nodes.add_groups(self.block, list).then_some(()).ok_or(PieceEnd::Bad(HolderError::BadNodes))?;
        }
        Ok(())
    }

    /// Reads a hash list. Its length follows from the object's length, which the caller bounded.
    async fn list(&mut self, len: u32) -> Result<Box<[HashNode]>, PieceEnd> {
        let mut nodes = vec![HashNode::default(); len as usize];
        self.from.fill(nodes.as_flattened_mut()).await?;
        Ok(nodes.into())
    }

    async fn head(&mut self, lease: &GroupLease, left: &Groups) -> Result<FrameHead, PieceEnd> {
        let head = match FrameHead::read(self.from.array().await?) {
            Some(Ok(head)) => head,
            Some(Err(refusal)) => return Err(self.refused(Some(refusal))),
            None => return Err(protocol("invalid frame header")),
        };
        let end = left.start + u32::from(head.groups);
        if head.groups == 0 || end > left.end {
            return Err(protocol("its frame has groups that were not requested"));
        }
        let bytes = lease.progress().layout().len(&(left.start..end));
        let fits = if head.codec == Codec::Raw { u64::from(head.len) == bytes } else { u64::from(head.len) < bytes };
        fits.then_some(head).ok_or(protocol("its frame has another length than its groups"))
    }

    async fn raw(&mut self, lease: &mut GroupLease, groups: Groups, wrong: &mut Vec<u32>) -> Result<(), PieceEnd> {
        for group in groups {
            self.from.fill(lease.memory(&(group..group + 1))).await?;
            if !lease.verify(group) {
                wrong.push(group);
            }
        }
        Ok(())
    }

    async fn compressed(
        &mut self,
        lease: &mut GroupLease,
        head: FrameHead,
        groups: Groups,
        wrong: &mut Vec<u32>,
    ) -> Result<(), PieceEnd> {
        // Less than the bytes of its groups, which are at most a piece.
        let mut bytes = vec![0; head.len as usize];
        self.from.fill(&mut bytes).await?;
        let is_whole = head.codec.decompress(&bytes, lease.memory(&groups));
        for group in groups {
            if !is_whole || !lease.verify(group) {
                wrong.push(group);
            }
        }
        Ok(())
    }
}

fn protocol(reason: &'static str) -> PieceEnd {
    PieceEnd::Bad(HolderError::Protocol(reason))
}

/// Stream code for a reset without an error, as the sender is too slow or busy.
pub(crate) const NO_TIME: VarInt = VarInt::from_u32(1);
