//! Packing of a group's bundles onto nodes: a backtracking search, largest bundles first, with a bounded number of
//! steps.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use sandbar_core::GroupStrategy;

use crate::records::resources::{FreeResources, ResourceSet};

/// Maximum search steps for each number of nodes: bin packing has no fast exact solution.
const STEPS_MAX: u32 = 1000;

/// A node that the search may use.
#[derive(Debug, Clone)]
pub(crate) struct CandidateNode {
    /// Free resources of the node.
    pub(crate) free: FreeResources,
    /// Number of the group's bundles that are placed there.
    pub(crate) bundles: usize,
}

/// Result of the search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PackResult {
    /// The node of each bundle, as an index into the candidates.
    Placed(Vec<usize>),
    /// No placement exists.
    Infeasible,
    /// The search gave up; a placement may exist.
    GaveUp,
}

/// Searches nodes for bundles, beside the bundles of the group that are placed already.
pub(crate) fn pack_bundles(
    strategy: GroupStrategy,
    bundles: &[&ResourceSet],
    places: Vec<CandidateNode>,
) -> PackResult {
    let used = places.iter().filter(|place| place.bundles > 0).count();
    let placed: usize = places.iter().map(|place| place.bundles).sum();
    let fits_somewhere = |demand: &ResourceSet| places.iter().any(|place| place.free.fits(demand));
    if !bundles.iter().all(|demand| fits_somewhere(demand)) {
        return PackResult::Infeasible;
    }
    // The numbers of nodes to try, and whether more nodes are better.
    let any = used.max(1)..=(used + bundles.len()).min(places.len());
    let (counts, spreads): (RangeInclusive<usize>, bool) = match strategy {
        GroupStrategy::Pack => (any, false),
        GroupStrategy::Spread => (any, true),
        GroupStrategy::StrictPack => (1..=1, false),
        GroupStrategy::StrictSpread => (placed + bundles.len()..=placed + bundles.len(), true),
    };
    let mut search = Search::new(bundles, places, spreads);
    let mut has_given_up = false;
    let (first, last) = (*counts.start(), *counts.end());
    for count in counts {
        search.node_count = if spreads { first + last - count } else { count };
        search.steps = STEPS_MAX;
        if search.place_from(0, used) {
            return PackResult::Placed(search.found);
        }
        has_given_up |= search.steps == 0;
    }
    if has_given_up { PackResult::GaveUp } else { PackResult::Infeasible }
}

struct Search<'a> {
    bundles: &'a [&'a ResourceSet],
    /// Bundle indices, largest first.
    order: Vec<usize>,
    places: Vec<CandidateNode>,
    found: Vec<usize>,
    spreads: bool,
    /// The exact number of nodes to use.
    node_count: usize,
    steps: u32,
}

impl<'a> Search<'a> {
    fn new(bundles: &'a [&'a ResourceSet], places: Vec<CandidateNode>, spreads: bool) -> Search<'a> {
        let mut order: Vec<usize> = (0..bundles.len()).collect();
        // GPUs and custom resources come first: few nodes have them.
        order.sort_by_key(|at| (Reverse((&bundles[*at].custom, bundles[*at].gpus)), Reverse(bundles[*at]), *at));
        Search { bundles, order, places, found: vec![0; bundles.len()], spreads, node_count: 0, steps: 0 }
    }

    /// Places the bundles from position `next` of the order on, where the group is on `used` nodes already.
    fn place_from(&mut self, next: usize, used: usize) -> bool {
        let left = self.order.len() - next;
        if left == 0 {
            return used == self.node_count;
        }
        if used > self.node_count || used + left < self.node_count || self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        let (bundle, demand) = (self.order[next], self.bundles[self.order[next]]);
        for at in self.candidates(demand, used, used + left == self.node_count) {
            let is_new = self.places[at].bundles == 0;
            self.places[at].bundles += 1;
            self.places[at].free.acquire(demand);
            self.found[bundle] = at;
            if self.place_from(next + 1, used + usize::from(is_new)) {
                return true;
            }
            self.places[at].bundles -= 1;
            self.places[at].free.release(demand);
        }
        false
    }

    /// Returns the nodes for a bundle, best first. Among unused nodes with equal free resources, it returns one.
    fn candidates(&self, demand: &ResourceSet, used: usize, must_be_new: bool) -> Vec<usize> {
        let may = |place: &CandidateNode| if place.bundles == 0 { used < self.node_count } else { !must_be_new };
        let mut all: Vec<usize> = Vec::new();
        for (at, place) in self.places.iter().enumerate() {
            let is_like = |other: &usize| {
                let other = &self.places[*other];
                other.bundles == 0 && other.free == place.free
            };
            if may(place) && place.free.fits(demand) && !(place.bundles == 0 && all.iter().any(is_like)) {
                all.push(at);
            }
        }
        match self.spreads {
            true => all.sort_by_key(|at| self.places[*at].bundles),
            false => all.sort_by_key(|at| Reverse(self.places[*at].bundles)),
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sandbar_core::Seed;

    use super::*;

    const ALL: [GroupStrategy; 4] =
        [GroupStrategy::Pack, GroupStrategy::Spread, GroupStrategy::StrictPack, GroupStrategy::StrictSpread];

    fn demand(cpus: u64, gpus: u64) -> ResourceSet {
        ResourceSet { cpus, gpus, ..ResourceSet::default() }
    }

    fn place(cpus: u64, gpus: u64) -> CandidateNode {
        CandidateNode { free: FreeResources::all_of(&demand(cpus, gpus)), bundles: 0 }
    }

    /// Returns the numbers of nodes of all possible placements, by exhaustive search.
    fn counts(bundles: &[ResourceSet], places: &[CandidateNode]) -> BTreeSet<usize> {
        fn place_from(bundles: &[ResourceSet], places: &mut [CandidateNode], counts: &mut BTreeSet<usize>) {
            let Some((first, others)) = bundles.split_first() else {
                counts.insert(places.iter().filter(|place| place.bundles > 0).count());
                return;
            };
            for at in 0..places.len() {
                if places[at].free.fits(first) {
                    places[at].bundles += 1;
                    places[at].free.acquire(first);
                    place_from(others, places, counts);
                    places[at].bundles -= 1;
                    places[at].free.release(first);
                }
            }
        }
        let mut counts = BTreeSet::new();
        place_from(bundles, &mut places.to_vec(), &mut counts);
        counts
    }

    #[test]
    fn as_few_or_as_many_nodes_as_there_is_a_way_for() {
        let mut seed = Seed::new(1);
        let mut found = [0; 4];
        for round in 0..3000 {
            let mut below = |n| u64::from(seed.below(n));
            let nodes: Vec<CandidateNode> = (0..1 + below(5)).map(|_| place(below(5), below(2))).collect();
            let bundles: Vec<ResourceSet> = (0..1 + below(4)).map(|_| demand(1 + below(3), below(6) / 5)).collect();
            let ways = counts(&bundles, &nodes);
            for (strategy, found) in ALL.into_iter().zip(&mut found) {
                let best = match strategy {
                    GroupStrategy::Pack => ways.first(),
                    GroupStrategy::Spread => ways.last(),
                    GroupStrategy::StrictPack => ways.get(&1),
                    GroupStrategy::StrictSpread => ways.get(&bundles.len()),
                };
                let all: Vec<&ResourceSet> = bundles.iter().collect();
                let result = pack_bundles(strategy, &all, nodes.clone());
                let PackResult::Placed(places) = result else {
                    assert_eq!((result, best), (PackResult::Infeasible, None), "round {round}, {strategy:?}");
                    continue;
                };
                let mut left = nodes.clone();
                for (at, demand) in places.iter().zip(&bundles) {
                    assert!(left[*at].free.fits(demand), "round {round}, {strategy:?}");
                    left[*at].free.acquire(demand);
                }
                let on: BTreeSet<usize> = places.into_iter().collect();
                assert_eq!(Some(&on.len()), best, "round {round}, {strategy:?}");
                *found += 1;
            }
        }
        assert!(found.iter().all(|found| *found > 300), "{found:?}");
    }

    #[test]
    fn placed_bundles_count() {
        for (strategy, expected) in [
            (GroupStrategy::Pack, PackResult::Placed(vec![1])),
            (GroupStrategy::Spread, PackResult::Placed(vec![0])),
            (GroupStrategy::StrictSpread, PackResult::Placed(vec![0])),
        ] {
            let mut places = vec![place(2, 0), place(2, 0)];
            places[1].bundles = 1;
            assert_eq!(pack_bundles(strategy, &[&demand(1, 0)], places), expected, "{strategy:?}");
        }
    }

    #[test]
    fn a_hard_case_ends_the_search() {
        let places: Vec<CandidateNode> = (0..60).map(|at| place(100 + at, 0)).collect();
        let bundles: Vec<ResourceSet> = (0..100).map(|at| demand(67 + at % 7, 0)).collect();
        let all: Vec<&ResourceSet> = bundles.iter().collect();
        assert_eq!(pack_bundles(GroupStrategy::Pack, &all, places), PackResult::GaveUp);
    }
}
