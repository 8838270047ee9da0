//! The state machine of one fetch: the choice of holders for groups, and the handling of results.
//!
//! The fetch's own future does all work, so that dropping it ends everything.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{AbortHandle, Abortable};
use futures::stream::FuturesUnordered;
use quinn::Connection;

use super::active_holder::{ActiveHolder, HolderState};
use super::clock::{sleep_ms, within_ms};
use super::engine::Engine;
use super::layout::Groups;
use super::message::PieceRequest;
use super::piece::{PieceEnd, fetch_piece};
use super::plan::{HolderIndex, PiecePlan};
use super::progress::{FetchProgress, GroupLease};
use super::steal::{HolderLoad, steal};
use super::{
    FailedHolder, FailedHolders, FetchError, FetchReport, FetchSpec, FetchTarget, Holder, HolderError, Priority,
    TransferEvent,
};

/// Interval between checks of the holders, in milliseconds.
const TICK_MS: u64 = 50;
/// Maximum searches for more holders before one of them delivers a group.
const FINDS_MAX: u32 = 16;

/// An event of a fetch.
enum Event {
    Connected(HolderIndex, Result<Connection, String>),
    Rested(HolderIndex),
    Piece(u64, PieceEnd),
    More(Vec<Holder>),
    Tick,
}

/// A requested piece that has not ended.
struct PieceInFlight {
    holder: HolderIndex,
    /// Id of the holder's connection.
    connection: usize,
    groups: Groups,
    abort: AbortHandle,
    /// Holder that takes the rest over once this request is aborted.
    thief: Option<HolderIndex>,
}

type Running = Pin<Box<dyn Future<Output = Event> + Send>>;

/// The state of a running fetch.
pub(crate) struct FetchDriver {
    engine: Arc<Engine>,
    /// Number of the fetch on this node. Holders send the pieces of one fetch in order.
    number: u32,
    spec: FetchSpec,
    progress: Arc<FetchProgress>,
    target: Arc<dyn FetchTarget>,
    plan: PiecePlan,
    holders: Vec<ActiveHolder>,
    /// Holders to use when others fail.
    spare: VecDeque<Holder>,
    failed: Vec<FailedHolder>,
    flights: BTreeMap<u64, PieceInFlight>,
    next_flight: u64,
    running: FuturesUnordered<Running>,
    is_finding: bool,
    finds: u32,
    stolen: u64,
}

impl FetchDriver {
    pub(crate) fn new(
        engine: Arc<Engine>,
        mut spec: FetchSpec,
        progress: Arc<FetchProgress>,
        target: Arc<dyn FetchTarget>,
    ) -> FetchDriver {
        let spare = std::mem::take(&mut spec.holders).into();
        let plan = PiecePlan::new(progress.layout(), engine.limits.piece_groups());
        FetchDriver {
            number: engine.next_fetch(),
            engine,
            spec,
            progress,
            target,
            plan,
            holders: Vec::new(),
            spare,
            failed: Vec::new(),
            flights: BTreeMap::new(),
            next_flight: 0,
            running: FuturesUnordered::new(),
            is_finding: false,
            finds: 0,
            stolen: 0,
        }
    }

    /// Fetches all groups.
    pub(crate) async fn run(&mut self) -> Result<FetchReport, FetchError> {
        self.running.push(Box::pin(tick()));
        while !(self.plan.is_empty() && self.flights.is_empty()) {
            self.connect_holders()?;
            self.request_pieces();
            if let Some(event) = self.running.next().await {
                self.handle_event(event)?;
            }
        }
        let missing = self.progress.missing(&self.progress.layout().groups());
        assert!(missing.is_empty(), "no holder was asked for {missing:?}");
        Ok(self.report())
    }

    fn report(&self) -> FetchReport {
        let from = self.holders.iter().map(|active| (active.holder.node, active.bytes())).collect();
        FetchReport { from, failed: FailedHolders(self.failed.clone()), stolen: self.stolen }
    }

    /// Connects to as many holders as the limit allows, and searches for others when none is left.
    fn connect_holders(&mut self) -> Result<(), FetchError> {
        let mut usable = self.usable();
        while usable < self.engine.limits.holders_max
            && let Some(holder) = self.spare.pop_front()
        {
            self.holders.push(ActiveHolder::new(holder));
            self.connect(self.holders.len() - 1, 0);
            usable += 1;
        }
        // A dropped holder may still deliver the pieces in flight.
        if usable > 0 || self.is_finding || !self.flights.is_empty() {
            return Ok(());
        }
        let Some(finder) = self.spec.finder.clone().filter(|_| self.finds < FINDS_MAX) else {
            return Err(FetchError::NoHolder { object: self.spec.object, failed: FailedHolders(self.failed.clone()) });
        };
        (self.is_finding, self.finds) = (true, self.finds + 1);
        let more = finder.find_more(self.spec.object, &self.failed);
        self.running.push(Box::pin(async move { Event::More(more.await) }));
        Ok(())
    }

    fn usable(&self) -> usize {
        self.holders.iter().filter(|active| !active.is_dropped()).count()
    }

    /// Connects to a holder after a delay.
    fn connect(&mut self, holder: HolderIndex, after_ms: u64) {
        let limit_ms = self.engine.limits.connect_ms_max;
        let link = self.holders[holder].holder.link.clone();
        self.holders[holder].state = HolderState::Connecting;
        self.running.push(Box::pin(async move {
            sleep_ms(after_ms).await;
            let late = || Err(format!("no connection within {limit_ms} ms"));
            Event::Connected(holder, within_ms(limit_ms, link.connect()).await.unwrap_or_else(late))
        }));
    }

    /// Requests unassigned groups from holders with free capacity.
    fn request_pieces(&mut self) {
        let is_only = self.usable() == 1;
        loop {
            // The least loaded holder comes first.
            let with_room = self.holders.iter().enumerate().filter(|(_, active)| self.has_room(active));
            let mut ready: Vec<_> = with_room.map(|(holder, active)| (active.in_flight, holder)).collect();
            ready.sort_unstable();
            let taken = ready.into_iter().find_map(|(_, by)| Some((by, self.plan.take(by, is_only)?)));
            let Some((holder, groups)) = taken else { return };
            self.request_piece(holder, groups);
        }
    }

    /// Returns whether another piece can be requested from a holder. A fetch that a higher priority outranks uses one
    /// piece at a time.
    fn has_room(&self, active: &ActiveHolder) -> bool {
        let limits = &self.engine.limits;
        let pieces_max = if self.engine.is_outranked(self.spec.priority) { 1 } else { limits.pieces_in_flight_max };
        active.in_flight < active.pieces(limits.piece_bytes_max).min(pieces_max)
    }

    fn request_piece(&mut self, holder: HolderIndex, groups: Groups) {
        let (connection, count) = match self.holders[holder].ready() {
            Some(connection) => (connection.clone(), self.holders[holder].count.clone()),
            None => return self.plan.give_back(groups, None),
        };
        let lease = GroupLease::acquire(&self.progress, self.target.clone(), groups.clone());
        // Groups that are neither planned nor in flight are verified.
        let Some(lease) = lease else { return debug_assert!(false, "{groups:?} are leased twice") };
        let request = PieceRequest {
            fetch: self.number,
            object: self.spec.object,
            bytes: self.spec.bytes,
            root: self.spec.root,
            groups: groups.clone(),
            wants_blocks: false,
            wants_groups: false,
            priority: self.spec.priority,
            goodput: self.holders[holder].rate().map_or(0, |rate| rate as u64),
        };
        let (flight, id) = (self.next_flight, connection.stable_id());
        self.next_flight += 1;
        let (abort, registration) = AbortHandle::new_pair();
        let piece = async move { fetch_piece(&connection, request, lease, &count).await };
        let piece = Abortable::new(piece, registration);
        self.running.push(Box::pin(async move { Event::Piece(flight, piece.await.unwrap_or(PieceEnd::Stolen)) }));
        self.flights.insert(flight, PieceInFlight { holder, connection: id, groups, abort, thief: None });
        self.holders[holder].record_request();
    }

    /// Moves a piece from a slow holder to an idle one. Groups that did not arrive are requested again.
    fn steal_piece(&mut self) {
        if !self.plan.is_empty() || self.holders.len() < 2 {
            return;
        }
        let mut left = vec![0; self.holders.len()];
        for flight in self.flights.values() {
            let missing = self.progress.missing(&flight.groups);
            left[flight.holder] += missing.iter().map(|run| self.progress.layout().len(run)).sum::<u64>();
        }
        let load = |(holder, active): (HolderIndex, &ActiveHolder)| HolderLoad {
            holder,
            left_bytes: left[holder],
            rate: active.rate(),
            has_room: active.may_be_fast() && self.has_room(active),
        };
        let loads: Vec<HolderLoad> = self.holders.iter().enumerate().map(load).collect();
        let Some((thief, victim)) = steal(&loads, self.engine.limits.piece_bytes_max) else { return };
        let mut of_victim = self.flights.values_mut().rev();
        if let Some(flight) = of_victim.find(|flight| flight.holder == victim && !flight.abort.is_aborted()) {
            // Only this holder: another one would lose the piece to a thief again before it sends anything.
            flight.thief = Some(thief);
            flight.abort.abort();
            self.stolen += 1;
        }
    }

    fn handle_event(&mut self, event: Event) -> Result<(), FetchError> {
        match event {
            Event::Connected(holder, result) => self.handle_connected(holder, result),
            Event::Rested(holder) => {
                let state = std::mem::replace(&mut self.holders[holder].state, HolderState::Dropped);
                self.holders[holder].state = match state {
                    HolderState::Resting(connection) => HolderState::Ready(connection),
                    other => other,
                };
            }
            Event::Piece(flight, end) => self.handle_piece_end(flight, end),
            Event::More(holders) => {
                self.is_finding = false;
                let is_dishonest =
                    |holder: &Holder| self.failed.iter().any(|g| g.holder == holder.node && g.error.is_dishonest());
                self.spare.extend(holders.into_iter().filter(|holder| !is_dishonest(holder)));
                if self.spare.is_empty() {
                    self.finds = FINDS_MAX;
                }
            }
            Event::Tick => {
                self.running.push(Box::pin(tick()));
                self.check_holders();
                self.steal_piece();
            }
        }
        Ok(())
    }

    fn handle_connected(&mut self, holder: HolderIndex, result: Result<Connection, String>) {
        if self.holders[holder].is_dropped() {
            return;
        }
        match result {
            Ok(connection) => self.holders[holder].state = HolderState::Ready(connection),
            Err(why) if self.holders[holder].reconnects == 0 => {
                self.drop_holder(holder, HolderError::Unreachable(why), true)
            }
            Err(why) => self.reconnect(holder, why),
        }
    }

    /// Handles the end of a piece.
    fn handle_piece_end(&mut self, flight: u64, end: PieceEnd) {
        let Some(PieceInFlight { holder, connection, groups, thief, .. }) = self.flights.remove(&flight) else {
            return;
        };
        let missing = self.progress.missing(&groups);
        let delivered: u64 = groups.len() as u64 - missing.iter().map(|run| run.len() as u64).sum::<u64>();
        self.holders[holder].record_end(delivered > 0);
        if delivered > 0 {
            (self.finds, self.holders[holder].reconnects) = (0, 0);
        }
        let had = match end {
            PieceEnd::ConnectionLost(_) | PieceEnd::NotYet => None,
            _ => Some(holder),
        };
        for run in missing {
            match thief {
                Some(thief) if self.holders[thief].ready().is_some() => self.request_piece(thief, run),
                _ => self.plan.give_back(run, had),
            }
        }
        match end {
            // Steal only when a piece has completed, so that a thief is not robbed before it starts.
            PieceEnd::Done { wrong } if wrong.is_empty() => self.steal_piece(),
            PieceEnd::Done { wrong } => wrong.into_iter().for_each(|group| self.handle_bad_chunk(holder, group)),
            PieceEnd::Bad(error) => self.drop_holder(holder, error, true),
            PieceEnd::NotYet => self.pause(holder),
            PieceEnd::ConnectionLost(why) => self.handle_disconnect(holder, connection, why),
            PieceEnd::Stolen => {}
        }
    }

    /// Drops a holder that sent a wrong group. Its other pieces in flight may be right.
    fn handle_bad_chunk(&mut self, holder: HolderIndex, group: u32) {
        let range = self.progress.layout().range(&(group..group + 1));
        let (node, object) = (self.holders[holder].holder.node, self.spec.object);
        self.engine.events.send(TransferEvent::BadChunk { holder: node, object, range: range.clone() });
        self.drop_holder(holder, HolderError::BadChunk { range }, false);
    }

    fn pause(&mut self, holder: HolderIndex) {
        let limits = &self.engine.limits;
        if let Some(error) = self.holders[holder].idle_error(limits) {
            return self.drop_holder(holder, error, true);
        }
        let rest_ms = limits.rest_ms;
        if let HolderState::Ready(connection) = &self.holders[holder].state {
            self.holders[holder].state = HolderState::Resting(connection.clone());
            self.running.push(Box::pin(async move {
                sleep_ms(rest_ms).await;
                Event::Rested(holder)
            }));
        }
    }

    /// Reconnects after a lost connection. Several pieces report the loss; the first report counts.
    fn handle_disconnect(&mut self, holder: HolderIndex, connection: usize, why: String) {
        match &self.holders[holder].state {
            HolderState::Ready(now) | HolderState::Resting(now) if now.stable_id() == connection => {
                self.reconnect(holder, why)
            }
            _ => {}
        }
    }

    fn reconnect(&mut self, holder: HolderIndex, why: String) {
        let limits = &self.engine.limits;
        let active = &mut self.holders[holder];
        if active.reconnects >= limits.reconnects_max {
            return self.drop_holder(holder, HolderError::ConnectionLost(why), true);
        }
        active.reconnects += 1;
        let after_ms = limits.rest_ms << active.reconnects.min(10);
        self.connect(holder, after_ms);
    }

    /// Stops using a holder. `ends` also aborts its pieces in flight.
    fn drop_holder(&mut self, holder: HolderIndex, error: HolderError, ends: bool) {
        if ends {
            let of_holder = self.flights.values().filter(|flight| flight.holder == holder);
            of_holder.for_each(|flight| flight.abort.abort());
        }
        if self.holders[holder].is_dropped() {
            return;
        }
        self.holders[holder].state = HolderState::Dropped;
        let (node, object) = (self.holders[holder].holder.node, self.spec.object);
        self.engine.events.send(TransferEvent::HolderDropped { holder: node, object, error: error.clone() });
        self.failed.push(FailedHolder { holder: node, error });
    }

    /// Measures the holders and drops those that stall.
    fn check_holders(&mut self) {
        let is_outranked = self.spec.priority < Priority::Get && self.engine.is_outranked(self.spec.priority);
        for holder in 0..self.holders.len() {
            self.holders[holder].measure();
            if is_outranked {
                // Higher priorities use the same link first.
                self.holders[holder].restart_watches();
            }
            if let Some(error) = self.holders[holder].stall_error(&self.engine.limits) {
                self.drop_holder(holder, error, true);
            }
        }
    }
}

async fn tick() -> Event {
    sleep_ms(TICK_MS).await;
    Event::Tick
}
