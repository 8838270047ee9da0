//! The generated city: popularity and location of its zones, and routes between them.

use crate::random::{Random, WeightedAliasIndex, normal, seed_of, unit};

/// Number of zones, which are numbered 1..=ZONES.
pub const ZONES: i32 = 261;

const SEED: u64 = 0x7a_78_69;

/// Miles across, so that trips are as long as real ones: three miles and a quarter of an hour.
const SIZE: f64 = 4.5;

/// Relative demand of each hour of the day; the sum does not matter.
const DEMAND: [f64; 24] = [
    2.6, 1.8, 1.3, 0.9, 0.8, 0.9, 2.0, 3.4, 4.4, 4.5, 4.3, 4.5, 4.8, 4.8, 5.1, 5.2, 4.9, 5.6, 6.3, 6.2, 5.7, 5.5, 5.0,
    3.8,
];

/// Miles per hour, by hour of the day.
const SPEED: [f64; 24] = [
    16.0, 17.0, 18.0, 19.0, 20.0, 19.0, 16.0, 13.0, 11.0, 11.0, 11.5, 11.5, 11.0, 11.0, 10.5, 10.5, 11.0, 10.5, 11.0,
    12.0, 13.0, 13.5, 14.0, 15.0,
];

/// Seconds of a day.
pub const DAY: f64 = 86_400.0;

/// The city, which all months share.
pub struct City {
    popularity: WeightedAliasIndex,
    /// Zone number by popularity.
    by_rank: Vec<i32>,
    /// Locations by zone number minus one. Zones are numbered from west to east, so that the number is a useful feature: a
    /// line fits trips to the edges of the city, and its middle needs more than a line.
    places: Vec<(f64, f64)>,
    /// Fraction of a day's trips before each hour, then 1.
    demand_before: [f64; 25],
}

/// Route between two zones.
pub struct Route {
    /// Distance by road.
    pub miles: f64,
    /// Expected duration at noon's speed.
    pub minutes: f64,
}

impl City {
    /// Generates the city, which is always the same.
    pub fn new() -> Self {
        let mut random = Random::new(seed_of(&[SEED]));
        let zipf: Vec<f64> = (1..=ZONES).map(|rank| 1.0 / f64::from(rank)).collect();
        let mut by_rank: Vec<i32> = (1..=ZONES).collect();
        for last in (1..by_rank.len()).rev() {
            by_rank.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut places: Vec<(f64, f64)> = (0..ZONES).map(|_| (SIZE * random.unit(), SIZE * random.unit())).collect();
        places.sort_by(|one, other| one.0.total_cmp(&other.0));
        let total: f64 = DEMAND.iter().sum();
        let mut demand_before = [1.0; 25];
        let mut sum = 0.0;
        for (before, demand) in demand_before.iter_mut().zip(DEMAND) {
            *before = sum / total;
            sum += demand;
        }
        Self { popularity: WeightedAliasIndex::new(&zipf), by_rank, places, demand_before }
    }

    /// Draws a zone number; the r-th most popular zone has weight 1/r.
    pub fn zone(&self, random: &mut Random) -> i32 {
        self.by_rank[self.popularity.draw(random)]
    }

    /// Returns the second of the day before which the fraction `share`, in [0, 1), of its trips start.
    pub fn second_of_day(&self, share: f64) -> f64 {
        let hour = self.demand_before.partition_point(|&before| before <= share).clamp(1, 24) - 1;
        let (from, to) = (self.demand_before[hour], self.demand_before[hour + 1]);
        ((hour as f64 + (share - from) / (to - from)) * 3_600.0).min(DAY - 1.0)
    }

    /// Returns the route from one zone to another: along a grid of streets, and longer or slower for some pairs.
    pub fn route(&self, pickup: i32, dropoff: i32) -> Route {
        let (from, to) = (self.places[pickup as usize - 1], self.places[dropoff as usize - 1]);
        // Trips within a zone or to the next are at least half a mile long.
        let miles = 0.5 + 0.75 * ((from.0 - to.0).abs() + (from.1 - to.1).abs());
        let pair = seed_of(&[SEED, pickup as u64, dropoff as u64]);
        let detour = 1.0 + 0.25 * unit(pair);
        let traffic = 1.0 + 0.15 * normal(seed_of(&[pair]));
        let miles = miles * detour;
        Route { miles, minutes: 1.5 + 60.0 * miles * traffic / SPEED[12] }
    }

    /// Returns the duration of a trip that starts at this second of the day, relative to noon.
    pub fn slowness(second_of_day: i64) -> f64 {
        SPEED[12] / SPEED[(second_of_day / 3_600) as usize % 24]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_day_begins_and_ends_with_its_trips() {
        let city = City::new();
        let times: Vec<f64> = (0..1_000).map(|i| city.second_of_day(f64::from(i) / 1_000.0)).collect();
        assert!(times[0] < 1.0 && times[999] > DAY - 600.0 && times[999] < DAY);
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn zones_follow_zipfs_law() {
        let city = City::new();
        let mut counts = vec![0_u32; ZONES as usize + 1];
        let mut random = Random::new(5);
        for _ in 0..1_000_000 {
            counts[city.zone(&mut random) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        let harmonic: f64 = (1..=ZONES).map(|rank| 1.0 / f64::from(rank)).sum();
        for rank in [1, 2, 10, 100, 261] {
            let count = f64::from(counts[city.by_rank[rank - 1] as usize]);
            let expected = 1e6 / (rank as f64 * harmonic);
            assert!((count / expected - 1.0).abs() < 0.15, "rank {rank}: {count} instead of {expected}");
        }
    }

    #[test]
    fn routes_are_positive_and_stay_the_same() {
        let (one, other) = (City::new(), City::new());
        for pickup in 1..=ZONES {
            for dropoff in 1..=ZONES {
                let route = one.route(pickup, dropoff);
                assert!(route.miles >= 0.5 && route.miles < 40.0 && route.minutes > 1.5, "{pickup} {dropoff}");
                assert_eq!(route.minutes.to_bits(), other.route(pickup, dropoff).minutes.to_bits());
            }
        }
    }
}
