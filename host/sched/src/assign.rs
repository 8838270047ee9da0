//! On which nodes the bundles of a placement group lie: looked for by trying, the big ones first, so many steps long.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use sandbar_core::GroupStrategy;

use crate::resources::{Demand, Free};

/// So many steps are taken for each number of nodes before it is given up: packing in earnest has no quick answer.
const STEPS_MAX: u32 = 1000;

/// A node, as far as it could be used.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// What is left of it.
    pub(crate) free: Free,
    /// Bundles of the group that lie there already.
    pub(crate) bundles: usize,
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The place of each bundle.
    All(Vec<usize>),
    /// There is none.
    Nothing,
    /// None was found, which does not mean that there is none.
    GaveUp,
}

/// Finds places for bundles, beside those of the group that lie somewhere.
pub(crate) fn assign(strategy: GroupStrategy, bundles: &[&Demand], places: Vec<Place>) -> Found {
    let used = places.iter().filter(|place| place.bundles > 0).count();
    let placed: usize = places.iter().map(|place| place.bundles).sum();
    let lies_somewhere = |demand: &Demand| places.iter().any(|place| place.free.fits(demand));
    if !bundles.iter().all(|demand| lies_somewhere(demand)) {
        return Found::Nothing;
    }
    // How many nodes it may be on, and whether it is rather on many.
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
        search.wanted = if spreads { first + last - count } else { count };
        search.steps = STEPS_MAX;
        if search.go_on(0, used) {
            return Found::All(search.found);
        }
        has_given_up |= search.steps == 0;
    }
    if has_given_up { Found::GaveUp } else { Found::Nothing }
}

struct Search<'a> {
    bundles: &'a [&'a Demand],
    /// Of the bundles, the big ones first.
    order: Vec<usize>,
    places: Vec<Place>,
    found: Vec<usize>,
    spreads: bool,
    /// On so many nodes, neither more nor less.
    wanted: usize,
    steps: u32,
}

impl<'a> Search<'a> {
    fn new(bundles: &'a [&'a Demand], places: Vec<Place>, spreads: bool) -> Search<'a> {
        let mut order: Vec<usize> = (0..bundles.len()).collect();
        // Devices are where few nodes have them.
        order.sort_by_key(|at| (Reverse((&bundles[*at].custom, bundles[*at].gpus)), Reverse(bundles[*at]), *at));
        Search { bundles, order, places, found: vec![0; bundles.len()], spreads, wanted: 0, steps: 0 }
    }

    /// Finds places for the bundles from the `next` in order on, where the group is on so many nodes `used` already.
    fn go_on(&mut self, next: usize, used: usize) -> bool {
        let left = self.order.len() - next;
        if left == 0 {
            return used == self.wanted;
        }
        if used > self.wanted || used + left < self.wanted || self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        let (bundle, demand) = (self.order[next], self.bundles[self.order[next]]);
        for at in self.candidates(demand, used, used + left == self.wanted) {
            let is_new = self.places[at].bundles == 0;
            self.places[at].bundles += 1;
            self.places[at].free.take(demand);
            self.found[bundle] = at;
            if self.go_on(next + 1, used + usize::from(is_new)) {
                return true;
            }
            self.places[at].bundles -= 1;
            self.places[at].free.give(demand);
        }
        false
    }

    /// Where a bundle may lie, best first. Of nodes that are not used yet and have the same left, one is enough.
    fn candidates(&self, demand: &Demand, used: usize, must_be_new: bool) -> Vec<usize> {
        let may = |place: &Place| if place.bundles == 0 { used < self.wanted } else { !must_be_new };
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

    fn demand(cpus: u64, gpus: u64) -> Demand {
        Demand { cpus, gpus, ..Demand::default() }
    }

    fn place((cpus, gpus): (u64, u64)) -> Place {
        Place { free: Free::all_of(&demand(cpus, gpus)), bundles: 0 }
    }

    /// How many nodes each way to place them takes, by trying all of them.
    fn counts(bundles: &[Demand], places: &[Place]) -> BTreeSet<usize> {
        fn go_on(bundles: &[Demand], places: &mut [Place], counts: &mut BTreeSet<usize>) {
            let Some((first, others)) = bundles.split_first() else {
                counts.insert(places.iter().filter(|place| place.bundles > 0).count());
                return;
            };
            for at in 0..places.len() {
                if places[at].free.fits(first) {
                    places[at].bundles += 1;
                    places[at].free.take(first);
                    go_on(others, places, counts);
                    places[at].bundles -= 1;
                    places[at].free.give(first);
                }
            }
        }
        let mut counts = BTreeSet::new();
        go_on(bundles, &mut places.to_vec(), &mut counts);
        counts
    }

    #[test]
    fn as_few_or_as_many_nodes_as_there_is_a_way_for() {
        let mut seed = Seed::new(1);
        let mut found = [0; 4];
        for round in 0..3000 {
            let mut below = |n| u64::from(seed.below(n));
            let nodes: Vec<Place> = (0..1 + below(5)).map(|_| place((below(5), below(2)))).collect();
            let bundles: Vec<Demand> = (0..1 + below(4)).map(|_| demand(1 + below(3), below(6) / 5)).collect();
            let ways = counts(&bundles, &nodes);
            for (strategy, found) in ALL.into_iter().zip(&mut found) {
                let best = match strategy {
                    GroupStrategy::Pack => ways.first(),
                    GroupStrategy::Spread => ways.last(),
                    GroupStrategy::StrictPack => ways.get(&1),
                    GroupStrategy::StrictSpread => ways.get(&bundles.len()),
                };
                let all: Vec<&Demand> = bundles.iter().collect();
                let got = assign(strategy, &all, nodes.clone());
                let Found::All(places) = got else {
                    assert_eq!((got, best), (Found::Nothing, None), "round {round}, {strategy:?}");
                    continue;
                };
                let mut left = nodes.clone();
                for (at, demand) in places.iter().zip(&bundles) {
                    assert!(left[*at].free.fits(demand), "round {round}, {strategy:?}");
                    left[*at].free.take(demand);
                }
                let on: BTreeSet<usize> = places.into_iter().collect();
                assert_eq!(Some(&on.len()), best, "round {round}, {strategy:?}");
                *found += 1;
            }
        }
        assert!(found.iter().all(|found| *found > 300), "{found:?}");
    }

    #[test]
    fn what_lies_somewhere_already_counts() {
        for (strategy, expected) in [
            (GroupStrategy::Pack, Found::All(vec![1])),
            (GroupStrategy::Spread, Found::All(vec![0])),
            (GroupStrategy::StrictSpread, Found::All(vec![0])),
        ] {
            let mut places = vec![place((2, 0)), place((2, 0))];
            places[1].bundles = 1;
            assert_eq!(assign(strategy, &[&demand(1, 0)], places), expected, "{strategy:?}");
        }
    }

    #[test]
    fn a_hard_case_is_given_up() {
        let places: Vec<Place> = (0..60).map(|at| place((100 + at, 0))).collect();
        let bundles: Vec<Demand> = (0..100).map(|at| demand(67 + at % 7, 0)).collect();
        let all: Vec<&Demand> = bundles.iter().collect();
        assert_eq!(assign(GroupStrategy::Pack, &all, places), Found::GaveUp);
    }
}
