//! Driving a fetch: who is asked for what, and what becomes of it.
//!
//! All that a fetch does is done by its own future, so that it ends when that is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{AbortHandle, Abortable};
use futures::stream::FuturesUnordered;
use quinn::Connection;

use super::asked::{Asked, Standing};
use super::clock::{sleep_ms, within_ms};
use super::engine::Engine;
use super::layout::Groups;
use super::message::PieceRequest;
use super::piece::{PieceEnd, fetch_piece};
use super::plan::{HolderIndex, Plan};
use super::progress::{Lease, Progress};
use super::steal::{Pace, steal};
use super::{AllGone, FetchError, FetchReport, FetchSpec, Gone, Holder, HolderError, Priority, Target, TransferEvent};

/// How often holders are looked at.
const TICK_MS: u64 = 50;
/// How often more holders are asked for before one of them gives anything.
const FINDS_MAX: u32 = 16;

/// Something that happened.
enum Event {
    Connected(HolderIndex, Result<Connection, String>),
    Rested(HolderIndex),
    Piece(u64, PieceEnd),
    More(Vec<Holder>),
    Tick,
}

/// A piece that somebody was asked for.
struct Flight {
    holder: HolderIndex,
    /// Which of the holder's connections.
    connection: usize,
    groups: Groups,
    abort: AbortHandle,
    /// Who takes it over, once it is aborted for that.
    thief: Option<HolderIndex>,
}

type Running = Pin<Box<dyn Future<Output = Event> + Send>>;

/// A fetch that is under way.
pub(crate) struct Driver {
    engine: Arc<Engine>,
    /// Which of this node's fetches it is, to those who are asked.
    number: u32,
    spec: FetchSpec,
    progress: Arc<Progress>,
    target: Arc<dyn Target>,
    plan: Plan,
    holders: Vec<Asked>,
    /// Those who are asked when others are gone.
    spare: VecDeque<Holder>,
    gone: Vec<Gone>,
    flights: BTreeMap<u64, Flight>,
    next_flight: u64,
    running: FuturesUnordered<Running>,
    is_finding: bool,
    finds: u32,
    stolen: u64,
}

impl Driver {
    pub(crate) fn new(
        engine: Arc<Engine>,
        mut spec: FetchSpec,
        progress: Arc<Progress>,
        target: Arc<dyn Target>,
    ) -> Driver {
        let spare = std::mem::take(&mut spec.holders).into();
        let plan = Plan::new(progress.layout(), engine.limits.piece_groups());
        Driver {
            number: engine.next_fetch(),
            engine,
            spec,
            progress,
            target,
            plan,
            holders: Vec::new(),
            spare,
            gone: Vec::new(),
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
            self.enlist()?;
            self.ask();
            if let Some(event) = self.running.next().await {
                self.happened(event)?;
            }
        }
        let missing = self.progress.missing(&self.progress.layout().groups());
        assert!(missing.is_empty(), "nobody is asked for {missing:?}");
        Ok(self.report())
    }

    fn report(&self) -> FetchReport {
        let from = self.holders.iter().map(|asked| (asked.holder.node, asked.bytes())).collect();
        FetchReport { from, gone: AllGone(self.gone.clone()), stolen: self.stolen }
    }

    /// Turns to as many holders as may be asked at once, and asks for others when none is left.
    fn enlist(&mut self) -> Result<(), FetchError> {
        let mut usable = self.usable();
        while usable < self.engine.limits.holders_max
            && let Some(holder) = self.spare.pop_front()
        {
            self.holders.push(Asked::new(holder));
            self.connect(self.holders.len() - 1, 0);
            usable += 1;
        }
        // What a holder that was given up still sends is waited for.
        if usable > 0 || self.is_finding || !self.flights.is_empty() {
            return Ok(());
        }
        let Some(finder) = self.spec.finder.clone().filter(|_| self.finds < FINDS_MAX) else {
            return Err(FetchError::NoHolder { object: self.spec.object, gone: AllGone(self.gone.clone()) });
        };
        (self.is_finding, self.finds) = (true, self.finds + 1);
        let more = finder.more(self.spec.object, &self.gone);
        self.running.push(Box::pin(async move { Event::More(more.await) }));
        Ok(())
    }

    fn usable(&self) -> usize {
        self.holders.iter().filter(|asked| !asked.is_gone()).count()
    }

    /// Makes a connection to a holder, after so many milliseconds.
    fn connect(&mut self, holder: HolderIndex, after_ms: u64) {
        let limit_ms = self.engine.limits.connect_ms_max;
        let link = self.holders[holder].holder.link.clone();
        self.holders[holder].standing = Standing::Connecting;
        self.running.push(Box::pin(async move {
            sleep_ms(after_ms).await;
            let late = || Err(format!("no connection within {limit_ms} ms"));
            Event::Connected(holder, within_ms(limit_ms, link.connect()).await.unwrap_or_else(late))
        }));
    }

    /// Asks holders for what nobody has been asked for.
    fn ask(&mut self) {
        let is_only = self.usable() == 1;
        loop {
            // Whoever has least to do is next.
            let with_room = self.holders.iter().enumerate().filter(|(_, asked)| self.has_room(asked));
            let mut ready: Vec<_> = with_room.map(|(holder, asked)| (asked.in_flight, holder)).collect();
            ready.sort_unstable();
            let taken = ready.into_iter().find_map(|(_, by)| Some((by, self.plan.take(by, is_only)?)));
            let Some((holder, groups)) = taken else { return };
            self.begin(holder, groups);
        }
    }

    /// Whether a holder can be asked for more. What is less urgent than others leaves them the link.
    fn has_room(&self, asked: &Asked) -> bool {
        let limits = &self.engine.limits;
        let most = if self.engine.is_outranked(self.spec.priority) { 1 } else { limits.pieces_in_flight_max };
        asked.in_flight < asked.pieces(limits.piece_bytes_max).min(most)
    }

    fn begin(&mut self, holder: HolderIndex, groups: Groups) {
        let (connection, count) = match self.holders[holder].ready() {
            Some(connection) => (connection.clone(), self.holders[holder].count.clone()),
            None => return self.plan.give_back(groups, None),
        };
        let lease = Lease::of(&self.progress, self.target.clone(), groups.clone());
        // What is neither in the plan nor in a flight is verified.
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
        self.flights.insert(flight, Flight { holder, connection: id, groups, abort, thief: None });
        self.holders[holder].begin();
    }

    /// Has a holder that has nothing to do take over from a slow one. What that has not sent is asked for again.
    fn take_over(&mut self) {
        if !self.plan.is_empty() || self.holders.len() < 2 {
            return;
        }
        let mut left = vec![0; self.holders.len()];
        for flight in self.flights.values() {
            let missing = self.progress.missing(&flight.groups);
            left[flight.holder] += missing.iter().map(|run| self.progress.layout().len(run)).sum::<u64>();
        }
        let pace = |(holder, asked): (HolderIndex, &Asked)| Pace {
            holder,
            left_bytes: left[holder],
            rate: asked.rate(),
            has_room: asked.is_promising() && self.has_room(asked),
        };
        let paces: Vec<Pace> = self.holders.iter().enumerate().map(pace).collect();
        let Some((thief, victim)) = steal(&paces, self.engine.limits.piece_bytes_max) else { return };
        let mut of_victim = self.flights.values_mut().rev();
        if let Some(flight) = of_victim.find(|flight| flight.holder == victim && !flight.abort.is_aborted()) {
            // Not just anybody: of others it would be taken again before they have sent anything.
            flight.thief = Some(thief);
            flight.abort.abort();
            self.stolen += 1;
        }
    }

    fn happened(&mut self, event: Event) -> Result<(), FetchError> {
        match event {
            Event::Connected(holder, result) => self.connected(holder, result),
            Event::Rested(holder) => {
                let standing = std::mem::replace(&mut self.holders[holder].standing, Standing::Gone);
                self.holders[holder].standing = match standing {
                    Standing::Resting(connection) => Standing::Ready(connection),
                    other => other,
                };
            }
            Event::Piece(flight, end) => self.landed(flight, end),
            Event::More(holders) => {
                self.is_finding = false;
                let lied = |holder: &Holder| self.gone.iter().any(|g| g.holder == holder.node && g.error.is_a_lie());
                self.spare.extend(holders.into_iter().filter(|holder| !lied(holder)));
                if self.spare.is_empty() {
                    self.finds = FINDS_MAX;
                }
            }
            Event::Tick => {
                self.running.push(Box::pin(tick()));
                self.look();
                self.take_over();
            }
        }
        Ok(())
    }

    fn connected(&mut self, holder: HolderIndex, result: Result<Connection, String>) {
        if self.holders[holder].is_gone() {
            return;
        }
        match result {
            Ok(connection) => self.holders[holder].standing = Standing::Ready(connection),
            Err(why) if self.holders[holder].reconnects == 0 => {
                self.give_up(holder, HolderError::Unreachable(why), true)
            }
            Err(why) => self.reconnect(holder, why),
        }
    }

    /// A piece has ended.
    fn landed(&mut self, flight: u64, end: PieceEnd) {
        let Some(Flight { holder, connection, groups, thief, .. }) = self.flights.remove(&flight) else { return };
        let missing = self.progress.missing(&groups);
        let gave: u64 = groups.len() as u64 - missing.iter().map(|run| run.len() as u64).sum::<u64>();
        self.holders[holder].end(gave > 0);
        if gave > 0 {
            (self.finds, self.holders[holder].reconnects) = (0, 0);
        }
        let had = match end {
            PieceEnd::Lost(_) | PieceEnd::NotYet => None,
            _ => Some(holder),
        };
        for run in missing {
            match thief {
                Some(thief) if self.holders[thief].ready().is_some() => self.begin(thief, run),
                _ => self.plan.give_back(run, had),
            }
        }
        match end {
            // Only what has ended gives others time: nobody takes over from who has just taken over.
            PieceEnd::Done { wrong } if wrong.is_empty() => self.take_over(),
            PieceEnd::Done { wrong } => wrong.into_iter().for_each(|group| self.bad_chunk(holder, group)),
            PieceEnd::Bad(error) => self.give_up(holder, error, true),
            PieceEnd::NotYet => self.rest(holder),
            PieceEnd::Lost(why) => self.lost(holder, connection, why),
            PieceEnd::Stolen => {}
        }
    }

    /// A holder sent a wrong group: it is asked for nothing more, but what it was asked for may be right.
    fn bad_chunk(&mut self, holder: HolderIndex, group: u32) {
        let range = self.progress.layout().range(&(group..group + 1));
        let (node, object) = (self.holders[holder].holder.node, self.spec.object);
        self.engine.events.tell(TransferEvent::BadChunk { holder: node, object, range: range.clone() });
        self.give_up(holder, HolderError::BadChunk { range }, false);
    }

    fn rest(&mut self, holder: HolderIndex) {
        let limits = &self.engine.limits;
        if let Some(error) = self.holders[holder].idle(limits) {
            return self.give_up(holder, error, true);
        }
        let rest_ms = limits.rest_ms;
        if let Standing::Ready(connection) = &self.holders[holder].standing {
            self.holders[holder].standing = Standing::Resting(connection.clone());
            self.running.push(Box::pin(async move {
                sleep_ms(rest_ms).await;
                Event::Rested(holder)
            }));
        }
    }

    /// A connection was lost: several pieces say so, the first counts.
    fn lost(&mut self, holder: HolderIndex, connection: usize, why: String) {
        match &self.holders[holder].standing {
            Standing::Ready(now) | Standing::Resting(now) if now.stable_id() == connection => {
                self.reconnect(holder, why)
            }
            _ => {}
        }
    }

    fn reconnect(&mut self, holder: HolderIndex, why: String) {
        let limits = &self.engine.limits;
        let asked = &mut self.holders[holder];
        if asked.reconnects >= limits.reconnects_max {
            return self.give_up(holder, HolderError::Lost(why), true);
        }
        asked.reconnects += 1;
        let after_ms = limits.rest_ms << asked.reconnects.min(10);
        self.connect(holder, after_ms);
    }

    /// Asks a holder for nothing any more; where it `ends`, what it was asked for is given up as well.
    fn give_up(&mut self, holder: HolderIndex, error: HolderError, ends: bool) {
        if ends {
            let of_holder = self.flights.values().filter(|flight| flight.holder == holder);
            of_holder.for_each(|flight| flight.abort.abort());
        }
        if self.holders[holder].is_gone() {
            return;
        }
        self.holders[holder].standing = Standing::Gone;
        let (node, object) = (self.holders[holder].holder.node, self.spec.object);
        self.engine.events.tell(TransferEvent::HolderGone { holder: node, object, error: error.clone() });
        self.gone.push(Gone { holder: node, error });
    }

    /// Looks how holders do.
    fn look(&mut self) {
        let is_outranked = self.spec.priority < Priority::Get && self.engine.is_outranked(self.spec.priority);
        for holder in 0..self.holders.len() {
            self.holders[holder].measure();
            if is_outranked {
                // Others go first on the same link.
                self.holders[holder].excuse();
            }
            if let Some(error) = self.holders[holder].stall(&self.engine.limits) {
                self.give_up(holder, error, true);
            }
        }
    }
}

async fn tick() -> Event {
    sleep_ms(TICK_MS).await;
    Event::Tick
}
