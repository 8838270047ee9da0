//! Fetching some groups of an object from one holder.

use std::sync::atomic::AtomicU64;

use quinn::{Connection, VarInt};

use super::HolderError;
use super::codec::Codec;
use super::incoming::{Incoming, ReadFault};
use super::layout::Groups;
use super::message::{FrameHead, HERE, PieceRequest, Refusal, Request, refusal_len};
use super::progress::Lease;
use super::tree::Node;

/// What became of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PieceEnd {
    /// All groups came; these of them were wrong.
    Done { wrong: Vec<u32> },
    /// The holder has nothing yet, or no time.
    NotYet,
    /// The connection was lost, and why.
    Lost(String),
    /// The holder is no good.
    Bad(HolderError),
    /// Others will fetch the rest.
    Stolen,
}

impl From<ReadFault> for PieceEnd {
    fn from(fault: ReadFault) -> PieceEnd {
        match fault {
            ReadFault::Ended => PieceEnd::Bad(HolderError::Protocol("its answer ends too early")),
            ReadFault::Reset => PieceEnd::NotYet,
            ReadFault::Lost(why) => PieceEnd::Lost(why),
        }
    }
}

/// Asks for the groups of a lease, and writes what comes to where it belongs. `request` says all but the groups and
/// which lists are wanted. Counts the bytes that come.
pub(crate) async fn fetch_piece(
    connection: &Connection,
    request: PieceRequest,
    mut lease: Lease,
    count: &AtomicU64,
) -> PieceEnd {
    match Exchange::begin(connection, request, &lease, count).await {
        Ok(exchange) => exchange.run(&mut lease).await.unwrap_or_else(|end| end),
        Err(end) => end,
    }
}

struct Exchange<'a> {
    from: Incoming<'a>,
    bytes: u64,
    block: u32,
    wants_blocks: u32,
    wants_groups: u32,
}

impl<'a> Exchange<'a> {
    async fn begin(
        connection: &Connection,
        mut request: PieceRequest,
        lease: &Lease,
        count: &'a AtomicU64,
    ) -> Result<Exchange<'a>, PieceEnd> {
        let lost = |error: &dyn std::fmt::Display| PieceEnd::Lost(error.to_string());
        let (mut to, from) = connection.open_bi().await.map_err(|error| lost(&error))?;
        let (groups, nodes) = (lease.groups(), lease.progress().nodes());
        let block = lease.progress().layout().block_of(groups.start);
        let (wants_blocks, wants_groups) = (nodes.missing_blocks(), nodes.missing_groups(block));
        let bytes = request.bytes;
        request.groups = groups;
        (request.wants_blocks, request.wants_groups) = (wants_blocks > 0, wants_groups > 0);
        match to.write_all(&Request::Piece(request).write()).await {
            // A peer may stop reading once it has refused.
            Ok(()) | Err(quinn::WriteError::Stopped(_)) => {}
            Err(error) => return Err(lost(&error)),
        }
        let _ = to.finish();
        Ok(Exchange { from: Incoming::new(from, count), bytes, block, wants_blocks, wants_groups })
    }

    async fn run(mut self, lease: &mut Lease) -> Result<PieceEnd, PieceEnd> {
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
            Err(protocol("it sends more than was asked for"))
        }
    }

    async fn status(&mut self) -> Result<(), PieceEnd> {
        let [status] = self.from.array().await?;
        if status == HERE {
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
            None => protocol("its answer begins with what is no status"),
        }
    }

    async fn lists(&mut self, lease: &Lease) -> Result<(), PieceEnd> {
        let nodes = lease.progress().nodes();
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

    /// As many as the object's length makes, which its caller bounded.
    async fn list(&mut self, len: u32) -> Result<Box<[Node]>, PieceEnd> {
        let mut nodes = vec![Node::default(); len as usize];
        self.from.fill(nodes.as_flattened_mut()).await?;
        Ok(nodes.into())
    }

    async fn head(&mut self, lease: &Lease, left: &Groups) -> Result<FrameHead, PieceEnd> {
        let head = match FrameHead::read(self.from.array().await?) {
            Some(Ok(head)) => head,
            Some(Err(refusal)) => return Err(self.refused(Some(refusal))),
            None => return Err(protocol("it sends what is no frame")),
        };
        let end = left.start + u32::from(head.groups);
        if head.groups == 0 || end > left.end {
            return Err(protocol("its frame has groups that were not asked for"));
        }
        let bytes = lease.progress().layout().len(&(left.start..end));
        let fits = if head.codec == Codec::Raw { u64::from(head.len) == bytes } else { u64::from(head.len) < bytes };
        fits.then_some(head).ok_or(protocol("its frame has another length than its groups"))
    }

    async fn raw(&mut self, lease: &mut Lease, groups: Groups, wrong: &mut Vec<u32>) -> Result<(), PieceEnd> {
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
        lease: &mut Lease,
        head: FrameHead,
        groups: Groups,
        wrong: &mut Vec<u32>,
    ) -> Result<(), PieceEnd> {
        // Shorter than its groups, which are part of a piece.
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

fn protocol(what: &'static str) -> PieceEnd {
    PieceEnd::Bad(HolderError::Protocol(what))
}

/// The code that streams are reset and stopped with when nothing is wrong but time.
pub(crate) const NO_TIME: VarInt = VarInt::from_u32(1);
