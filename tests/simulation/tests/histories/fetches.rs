//! Fetches, and checks of their results.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use sandbar_core::{NodeId, ObjectId};
use sandbar_wire::*;

use crate::command::{Command, FetchSources};
use crate::member::{Links, Member};
use crate::scenario::{HolderBehavior, Lie, TestObject};
use crate::world::{ReservationGuard, World};

/// The current connection to a peer, at the time of use.
struct CurrentLink {
    links: Links,
    peer: usize,
}

impl HolderLink for CurrentLink {
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
    Holder { node: NodeId(peer as u32), link: Arc::new(CurrentLink { links: links.clone(), peer }) }
}

/// Asks the owner of all objects for other holders.
struct OwnerFinder {
    world: World,
    links: Links,
    node: NodeId,
}

impl HolderFinder for OwnerFinder {
    fn find_more(&self, object: ObjectId, failed: &[FailedHolder]) -> BoxFuture<'static, Vec<Holder>> {
        let failed: Vec<NodeId> = failed.iter().map(|failed| failed.holder).collect();
        let assigned = self.world.state().locations.reassign(object, self.node, &failed);
        let SourceAssignment::Holders(from) = assigned else { return std::future::ready(Vec::new()).boxed() };
        let holders = from.iter().map(|node| holder_by(&self.links, node.0 as usize)).collect();
        // Simulates the delay of the owner's answer.
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
                true => RootHash::hash(b"something else"),
                false => member.world.scenario.object(object).root,
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

async fn fetch(
    member: &Member,
    object: ObjectId,
    root: RootHash,
    from: FetchSources,
    priority: Priority,
    must_succeed: bool,
) {
    let (world, host) = (&member.world, member.host);
    let test_object = world.scenario.object(object);
    let node = NodeId(host as u32);
    let (peers, is_tree) = match from {
        FetchSources::Holders(peers) => (peers, false),
        FetchSources::Tree => match world.state().locations.assign(object, node) {
            SourceAssignment::Holders(nodes) => (nodes.iter().map(|node| node.0 as usize).collect(), true),
            _ => return,
        },
    };
    let finder = || OwnerFinder { world: world.clone(), links: member.links.clone(), node };
    let spec = FetchSpec {
        object,
        bytes: test_object.bytes.len() as u64,
        root,
        holders: peers.iter().map(|peer| holder(member, *peer)).collect(),
        priority,
        finder: is_tree.then(|| Arc::new(finder()) as Arc<dyn HolderFinder>),
    };
    let mut reserved = None;
    let result = member.transfers.fetch(spec, |bytes| {
        reserved = Some(ReservationGuard::new(world, host, bytes));
        HeapTarget::reserve(bytes)
    });
    let result = result.await;
    let announced = AnnouncedObject { test_object, is_right: root == test_object.root };
    let failed = match &result {
        Ok(fetched) => fetched.report.failed.0.clone(),
        Err(FetchError::NoHolder { failed, .. }) => failed.0.clone(),
        Err(_) => Vec::new(),
    };
    match &result {
        Ok(_) => world
            .note(format_args!("host {host} has {object:?} of {} bytes; failed: {failed:?}", test_object.bytes.len())),
        Err(error) => world.note(format_args!("host {host} does not have {object:?}: {error}")),
    }
    for failed in &failed {
        announced.check(world, failed.holder, &failed.error, must_succeed);
    }
    if let Err(error) = &result {
        assert!(!must_succeed, "host {host} does not have {object:?}: {error}");
        let is_calm = !world.is_rough() && !is_tree && announced.is_right;
        let is_honest = |peer: &usize| test_object.at.get(*peer) == Some(&Some(HolderBehavior::Honest));
        let should =
            is_calm && peers.iter().any(is_honest) && peers.iter().all(|peer| member.links.get(*peer).is_some());
        check_error(world, test_object, error, priority, should);
    }
    if let Ok(FetchedObject { target, permit, .. }) = result {
        assert!(announced.is_right, "something else than was announced was taken for it");
        let bytes = target.into_bytes();
        assert!(
            bytes.as_ref() == &test_object.bytes[..],
            "host {host} has other bytes of {object:?} than were announced"
        );
        assert_eq!(permit.bytes(), test_object.bytes.len() as u64);
        member.store.put(object, Arc::new(bytes));
        if is_tree {
            world.state().locations.add_holder(object, node);
        }
        drop(permit);
    } else if is_tree {
        world.state().locations.remove_holder(object, node);
    }
    drop(reserved);
}

fn check_error(world: &World, test_object: &TestObject, error: &FetchError, priority: Priority, should_succeed: bool) {
    match error {
        FetchError::NoHolder { .. } => assert!(!should_succeed, "an honest holder was there: {error}"),
        FetchError::TooLarge { max, .. } => {
            assert!(test_object.bytes.len() as u64 > *max && *max == world.scenario.admission_bytes, "{error}");
        }
        FetchError::TooManyWaiting { max, .. } => assert!(*max < 100, "{error}"),
        FetchError::Yielded { .. } => assert_eq!(priority, Priority::Prefetch),
        FetchError::WrongEmptyHash { .. } => assert!(test_object.bytes.is_empty(), "{error}"),
        FetchError::Memory { .. } => panic!("{error}"),
    }
}

async fn small(member: &Member, from: usize, objects: &[ObjectId], must_succeed: bool) {
    let (world, host) = (&member.world, member.host);
    let _pending = world.begin(format!("a fetch of small objects at host {host}"));
    let test_object: Vec<&TestObject> = objects.iter().map(|object| world.scenario.object(*object)).collect();
    let spec = |test_object: &&TestObject| SmallSpec {
        object: test_object.object,
        bytes: test_object.bytes.len() as u32,
        root: test_object.root,
    };
    let specs: Vec<SmallSpec> = test_object.iter().map(spec).collect();
    let total: u64 = specs.iter().map(|spec| u64::from(spec.bytes)).sum();
    let result = member.transfers.fetch_small(&holder(member, from), &specs, Priority::Argument).await;
    match result {
        Ok(fetched) => {
            assert_eq!((fetched.objects.len(), fetched.permit.bytes()), (test_object.len(), total));
            for (test_object, object) in test_object.iter().zip(fetched.objects) {
                match object {
                    Ok(bytes) => assert!(bytes[..] == test_object.bytes[..], "other bytes of {:?}", test_object.object),
                    Err(error) => {
                        world.note(format_args!("host {host} does not have {:?}, small: {error}", test_object.object));
                        let announced = AnnouncedObject { test_object, is_right: true };
                        announced.check(world, NodeId(from as u32), &error, must_succeed);
                        let is_honest = test_object.at.get(from) == Some(&Some(HolderBehavior::Honest));
                        assert!(!must_succeed || !is_honest, "small {:?}: {error}", test_object.object);
                    }
                }
            }
        }
        Err(FetchError::TooLarge { max, .. }) => assert!(total > max, "{total} bytes, {max} at most"),
        Err(FetchError::TooManyWaiting { max, .. }) => assert!(max < 100),
        Err(error) => panic!("small objects: {error}"),
    }
}

/// Checks an event of a fetch.
pub fn check_event(member: &Member, event: &TransferEvent) {
    if let TransferEvent::BadChunk { holder, object, .. } = event {
        let test_object = member.world.scenario.object(*object);
        let is_honest = test_object.at.get(holder.0 as usize) == Some(&Some(HolderBehavior::Honest));
        assert!(!is_honest, "host {} says that {holder}, which is honest, sends wrong bytes", member.host);
    }
}

/// An object with the hash that was announced for it.
struct AnnouncedObject<'a> {
    test_object: &'a TestObject,
    is_right: bool,
}

impl AnnouncedObject<'_> {
    /// Checks that a holder's behavior explains its error.
    fn check(&self, world: &World, holder: NodeId, error: &HolderError, is_fair: bool) {
        let peer = holder.0 as usize;
        let is_of_link = matches!(
            error,
            HolderError::Unreachable(_)
                | HolderError::ConnectionLost(_)
                | HolderError::Stalled { .. }
                | HolderError::Idle { .. }
        );
        // A fetch that starts before it is connected, or while hosts die, may not reach a holder.
        let is_liar = Some(peer) == world.scenario.liar();
        if is_of_link && (!is_fair || is_liar) && (world.is_rough() || is_early(world, peer, error)) {
            return;
        }
        let is_explained =
            match (world.scenario.lie.filter(|_| Some(peer) == world.scenario.liar()), self.behavior(peer)) {
                (Some(lie), _) => is_explained_by(lie, error),
                // A restart loses fetched objects; or the holder is fetching the object itself, perhaps with a wrong
                // hash.
                (None, None | Some(HolderBehavior::Absent)) => {
                    matches!(error, HolderError::NotFound | HolderError::OtherRoot | HolderError::Idle { .. })
                }
                (None, Some(behavior)) => {
                    self.explains(behavior, error) || world.is_rough() && *error == HolderError::NotFound
                }
            };
        assert!(
            is_explained,
            "{holder}, {:?} {:?}, does not explain this failure: {error:?}",
            self.behavior(peer),
            world.scenario.lie
        );
    }

    fn behavior(&self, peer: usize) -> Option<HolderBehavior> {
        self.test_object.at.get(peer).copied().flatten()
    }

    fn explains(&self, behavior: HolderBehavior, error: &HolderError) -> bool {
        let is_one_group = self.test_object.bytes.len() <= 64 << 10;
        match (behavior, error) {
            (HolderBehavior::Honest, HolderError::OtherRoot) => !self.is_right,
            (HolderBehavior::Honest, _) => false,
            (HolderBehavior::Longer, HolderError::OtherLength { .. }) => true,
            (HolderBehavior::Other | HolderBehavior::Flipped, HolderError::OtherRoot) => true,
            (HolderBehavior::Other, HolderError::BadChunk { .. }) => is_one_group,
            (HolderBehavior::Flipped, HolderError::BadChunk { .. }) => true,
            _ => false,
        }
    }
}

/// Returns whether the error comes from a missing connection: in a calm history too, connections take a moment.
fn is_early(world: &World, peer: usize, error: &HolderError) -> bool {
    let lie = world.scenario.lie.filter(|_| Some(peer) == world.scenario.liar());
    matches!(error, HolderError::Unreachable(why) if why == "there is no connection") || lie == Some(Lie::Close)
}

fn is_explained_by(lie: Lie, error: &HolderError) -> bool {
    match lie {
        Lie::Garbage | Lie::Cut | Lie::Wrong | Lie::More => error.is_dishonest(),
        Lie::Stall => matches!(error, HolderError::Stalled { .. }),
        Lie::NotYet => matches!(error, HolderError::Idle { .. }),
        Lie::Reset => matches!(error, HolderError::Idle { .. } | HolderError::Failed),
        Lie::Close => matches!(error, HolderError::ConnectionLost(_) | HolderError::Unreachable(_)),
    }
}
