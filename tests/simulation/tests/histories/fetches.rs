//! Fetching, and whether what came of it is right.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use sandbar_core::{NodeId, ObjectId};
use sandbar_wire::*;

use crate::command::{Command, From};
use crate::member::{Links, Member};
use crate::shape::{Lie, Made, Manner};
use crate::world::{Reserved, World};

/// The connection that there is when it is needed.
struct Current {
    links: Links,
    peer: usize,
}

impl Link for Current {
    fn connect(&self) -> BoxFuture<'static, Result<quinn::Connection, String>> {
        match self.links.get(self.peer) {
            Some(connection) => connection.holder(NodeId(self.peer as u32)).link.connect(),
            None => std::future::ready(Err("there is no connection".to_owned())).boxed(),
        }
    }
}

fn holder(member: &Member, peer: usize) -> Holder {
    holder_by(&member.links, peer)
}

fn holder_by(links: &Links, peer: usize) -> Holder {
    Holder { node: NodeId(peer as u32), link: Arc::new(Current { links: links.clone(), peer }) }
}

/// The owner of all objects, asked for others.
struct Owner {
    world: World,
    links: Links,
    node: NodeId,
}

impl FindHolders for Owner {
    fn more(&self, object: ObjectId, gone: &[Gone]) -> BoxFuture<'static, Vec<Holder>> {
        let gone: Vec<NodeId> = gone.iter().map(|gone| gone.holder).collect();
        let wanted = self.world.state().locations.more(object, self.node, &gone);
        let Wanted::From(from) = wanted else { return std::future::ready(Vec::new()).boxed() };
        let holders = from.iter().map(|node| holder_by(&self.links, node.0 as usize)).collect();
        // An answer takes a while.
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            holders
        }
        .boxed()
    }
}

pub async fn run(member: Rc<Member>, command: Command) {
    match command {
        Command::Fetch { object, from, priority, cancel_ms, is_wrongly_announced, must_succeed } => {
            let pending = member.world.begin(format!("a fetch of {object:?} at host {}", member.host));
            let root = match is_wrongly_announced {
                true => Root::of(b"something else"),
                false => member.world.shape.made(object).root,
            };
            let fetching = fetch(&member, object, root, from, priority, must_succeed);
            match cancel_ms {
                None => fetching.await,
                Some(ms) => drop(tokio::time::timeout(Duration::from_millis(ms), fetching).await),
            }
            drop(pending);
        }
        Command::Small { holder, objects, must_succeed } => small(&member, holder, &objects, must_succeed).await,
        other => unreachable!("{other:?}"),
    }
}

async fn fetch(member: &Member, object: ObjectId, root: Root, from: From, priority: Priority, must_succeed: bool) {
    let (world, host) = (&member.world, member.host);
    let made = world.shape.made(object);
    let node = NodeId(host as u32);
    let (peers, is_tree) = match from {
        From::Holders(peers) => (peers, false),
        From::Tree => match world.state().locations.want(object, node) {
            Wanted::From(nodes) => (nodes.iter().map(|node| node.0 as usize).collect(), true),
            _ => return,
        },
    };
    let finder = || Owner { world: world.clone(), links: member.links.clone(), node };
    let spec = FetchSpec {
        object,
        bytes: made.bytes.len() as u64,
        root,
        holders: peers.iter().map(|peer| holder(member, *peer)).collect(),
        priority,
        finder: is_tree.then(|| Arc::new(finder()) as Arc<dyn FindHolders>),
    };
    let mut reserved = None;
    let result = member.transfers.fetch(spec, |bytes| {
        reserved = Some(Reserved::new(world, host, bytes));
        HeapTarget::reserve(bytes)
    });
    let result = result.await;
    let announced = Announced { made, is_right: root == made.root };
    let gone = match &result {
        Ok(fetched) => fetched.report.gone.0.clone(),
        Err(FetchError::NoHolder { gone, .. }) => gone.0.clone(),
        Err(_) => Vec::new(),
    };
    match &result {
        Ok(_) => world.note(format_args!("host {host} has {object:?} of {} bytes; gone: {gone:?}", made.bytes.len())),
        Err(error) => world.note(format_args!("host {host} does not have {object:?}: {error}")),
    }
    for gone in &gone {
        announced.check(world, gone.holder, &gone.error, must_succeed);
    }
    if let Err(error) = &result {
        assert!(!must_succeed, "host {host} does not have {object:?}: {error}");
        let is_calm = !world.is_rough() && !is_tree && announced.is_right;
        let is_honest = |peer: &usize| made.at.get(*peer) == Some(&Some(Manner::Honest));
        let should =
            is_calm && peers.iter().any(is_honest) && peers.iter().all(|peer| member.links.get(*peer).is_some());
        check_error(world, made, error, priority, should);
    }
    if let Ok(Fetched { target, permit, .. }) = result {
        assert!(announced.is_right, "something else than was announced was taken for it");
        let bytes = target.into_bytes();
        assert!(bytes.as_ref() == &made.bytes[..], "host {host} has other bytes of {object:?} than were made");
        assert_eq!(permit.bytes(), made.bytes.len() as u64);
        member.store.put(object, Arc::new(bytes));
        if is_tree {
            world.state().locations.has(object, node);
        }
        drop(permit);
    } else if is_tree {
        world.state().locations.drops(object, node);
    }
    drop(reserved);
}

fn check_error(world: &World, made: &Made, error: &FetchError, priority: Priority, should_succeed: bool) {
    match error {
        FetchError::NoHolder { .. } => assert!(!should_succeed, "an honest holder was there: {error}"),
        FetchError::TooLarge { max, .. } => {
            assert!(made.bytes.len() as u64 > *max && *max == world.shape.admission_bytes, "{error}");
        }
        FetchError::TooManyWaiting { max, .. } => assert!(*max < 100, "{error}"),
        FetchError::Yielded { .. } => assert_eq!(priority, Priority::Prefetch),
        FetchError::BadRoot { .. } => assert!(made.bytes.is_empty(), "{error}"),
        FetchError::Memory { .. } => panic!("{error}"),
    }
}

async fn small(member: &Member, from: usize, objects: &[ObjectId], must_succeed: bool) {
    let (world, host) = (&member.world, member.host);
    let _pending = world.begin(format!("a fetch of small objects at host {host}"));
    let made: Vec<&Made> = objects.iter().map(|object| world.shape.made(*object)).collect();
    let spec = |made: &&Made| SmallSpec { object: made.object, bytes: made.bytes.len() as u32, root: made.root };
    let specs: Vec<SmallSpec> = made.iter().map(spec).collect();
    let total: u64 = specs.iter().map(|spec| u64::from(spec.bytes)).sum();
    let result = member.transfers.fetch_small(&holder(member, from), &specs, Priority::Argument).await;
    match result {
        Ok(fetched) => {
            assert_eq!((fetched.objects.len(), fetched.permit.bytes()), (made.len(), total));
            for (made, object) in made.iter().zip(fetched.objects) {
                match object {
                    Ok(bytes) => assert!(bytes[..] == made.bytes[..], "other bytes of {:?}", made.object),
                    Err(error) => {
                        world.note(format_args!("host {host} does not have {:?}, small: {error}", made.object));
                        let announced = Announced { made, is_right: true };
                        announced.check(world, NodeId(from as u32), &error, must_succeed);
                        let is_honest = made.at.get(from) == Some(&Some(Manner::Honest));
                        assert!(!must_succeed || !is_honest, "small {:?}: {error}", made.object);
                    }
                }
            }
        }
        Err(FetchError::TooLarge { max, .. }) => assert!(total > max, "{total} bytes, {max} at most"),
        Err(FetchError::TooManyWaiting { max, .. }) => assert!(max < 100),
        Err(error) => panic!("small objects: {error}"),
    }
}

/// Something was told of a holder while a fetch was under way.
pub fn happened(member: &Member, event: &TransferEvent) {
    if let TransferEvent::BadChunk { holder, object, .. } = event {
        let made = member.world.shape.made(*object);
        let is_honest = made.at.get(holder.0 as usize) == Some(&Some(Manner::Honest));
        assert!(!is_honest, "host {} says that {holder}, which is honest, sends wrong bytes", member.host);
    }
}

/// An object as it was announced.
struct Announced<'a> {
    made: &'a Made,
    is_right: bool,
}

impl Announced<'_> {
    /// Whether a holder can have failed so.
    fn check(&self, world: &World, holder: NodeId, error: &HolderError, is_fair: bool) {
        let peer = holder.0 as usize;
        let is_of_link = matches!(
            error,
            HolderError::Unreachable(_) | HolderError::Lost(_) | HolderError::Stalled { .. } | HolderError::Idle { .. }
        );
        // Who began before it was connected, or while others die, may find nobody.
        let is_liar = Some(peer) == world.shape.liar();
        if is_of_link && (!is_fair || is_liar) && (world.is_rough() || is_early(world, peer, error)) {
            return;
        }
        let is_explained = match (world.shape.lie.filter(|_| Some(peer) == world.shape.liar()), self.manner(peer)) {
            (Some(lie), _) => lies(lie, error),
            // What it fetched is gone when it starts again; or it is fetching it, maybe as it was wrongly announced.
            (None, None | Some(Manner::Absent)) => {
                matches!(error, HolderError::NotHere | HolderError::OtherRoot | HolderError::Idle { .. })
            }
            (None, Some(manner)) => self.explains(manner, error) || world.is_rough() && *error == HolderError::NotHere,
        };
        assert!(
            is_explained,
            "{holder}, {:?} {:?}, is said to have failed so: {error:?}",
            self.manner(peer),
            world.shape.lie
        );
    }

    fn manner(&self, peer: usize) -> Option<Manner> {
        self.made.at.get(peer).copied().flatten()
    }

    fn explains(&self, manner: Manner, error: &HolderError) -> bool {
        let is_one_group = self.made.bytes.len() <= 64 << 10;
        match (manner, error) {
            (Manner::Honest, HolderError::OtherRoot) => !self.is_right,
            (Manner::Honest, _) => false,
            (Manner::Longer, HolderError::OtherLength { .. }) => true,
            (Manner::Other | Manner::Flipped, HolderError::OtherRoot) => true,
            (Manner::Other, HolderError::BadChunk { .. }) => is_one_group,
            (Manner::Flipped, HolderError::BadChunk { .. }) => true,
            _ => false,
        }
    }
}

/// In a calm history connections are not there from the first moment.
fn is_early(world: &World, peer: usize, error: &HolderError) -> bool {
    let lie = world.shape.lie.filter(|_| Some(peer) == world.shape.liar());
    matches!(error, HolderError::Unreachable(why) if why == "there is no connection") || lie == Some(Lie::Close)
}

fn lies(lie: Lie, error: &HolderError) -> bool {
    match lie {
        Lie::Garbage | Lie::Cut | Lie::Wrong | Lie::More => error.is_a_lie(),
        Lie::Stall => matches!(error, HolderError::Stalled { .. }),
        Lie::NotYet => matches!(error, HolderError::Idle { .. }),
        Lie::Reset => matches!(error, HolderError::Idle { .. } | HolderError::Failed),
        Lie::Close => matches!(error, HolderError::Lost(_) | HolderError::Unreachable(_)),
    }
}
