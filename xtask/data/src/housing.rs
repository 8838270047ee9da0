//! Houses in the shape of the California census data of 1990: one row per district, with the median value of its houses.
//!
//! The value depends on income (steeply at first, then less), nearness to one of two cities, age, rooms and crowding, with
//! noise, and is capped at 500,001 as in the original, so that trees and forests have structure to find.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use crate::atomic_file::AtomicFile;
use crate::random::{Random, seed_of};

/// Number of districts.
pub const ROWS: usize = 20_640;

/// Names of the features: the first columns of the file.
pub const FEATURES: [&str; 8] = [
    "longitude",
    "latitude",
    "housing_median_age",
    "total_rooms",
    "total_bedrooms",
    "population",
    "households",
    "median_income",
];

/// Name of the target: the last column of the file.
pub const TARGET: &str = "median_house_value";

const SEED: u64 = 0x68_6f_75_73_65;

/// A place, in degrees.
#[derive(Clone, Copy)]
struct Place {
    longitude: f64,
    latitude: f64,
}

const SAN_FRANCISCO: Place = Place { longitude: -122.4, latitude: 37.8 };
const LOS_ANGELES: Place = Place { longitude: -118.3, latitude: 34.0 };

const VALUE_MAX: f64 = 500_001.0;

/// Writes the CSV file `path`, completely or not at all.
pub fn write(path: &Path) -> io::Result<PathBuf> {
    let (target, file) = AtomicFile::create(path)?;
    write_rows(file)?;
    target.commit()
}

fn write_rows(file: File) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    writeln!(out, "{},{TARGET}", FEATURES.join(","))?;
    let mut random = Random::new(seed_of(&[SEED]));
    for _ in 0..ROWS {
        let district = District::new(&mut random);
        let value = district.value(&mut random);
        writeln!(
            out,
            "{:.2},{:.2},{},{},{},{},{},{:.4},{}",
            district.longitude,
            district.latitude,
            district.age,
            district.rooms,
            district.bedrooms,
            district.population,
            district.households,
            district.income,
            value
        )?;
    }
    out.flush()
}

struct District {
    longitude: f64,
    latitude: f64,
    /// Years, 1 to 52.
    age: u64,
    rooms: u64,
    bedrooms: u64,
    population: u64,
    households: u64,
    /// Tens of thousands of dollars a year.
    income: f64,
}

impl District {
    fn new(random: &mut Random) -> Self {
        let Place { longitude, latitude } = place(random);
        let households = (60.0 + 440.0 * skewed(random)) as u64;
        let income = (0.5 + 3.4 * skewed(random)).min(15.0);
        let rooms_each = (4.2 + 0.35 * (income - 3.9) + 0.9 * random.normal()).max(1.2);
        let bedrooms_share = (0.21 - 0.006 * (income - 3.9) + 0.02 * random.normal()).max(0.08);
        let persons_each = (2.9 - 0.05 * (income - 3.9) + 0.6 * random.normal()).max(0.8);
        let rooms = households as f64 * rooms_each;
        Self {
            longitude,
            latitude,
            age: 1 + random.below(52),
            rooms: rooms as u64,
            bedrooms: (rooms * bedrooms_share).max(1.0) as u64,
            population: (households as f64 * persons_each) as u64,
            households,
            income,
        }
    }

    /// Returns the median house value in dollars.
    fn value(&self, random: &mut Random) -> u64 {
        let households = self.households as f64;
        let nearness = proximity(self, SAN_FRANCISCO).max(0.85 * proximity(self, LOS_ANGELES));
        let by_income = 38_000.0 * self.income / (1.0 + 0.02 * self.income);
        let by_place = 140_000.0 * nearness * (0.4 + self.income / (self.income + 4.0));
        let crowding = self.population as f64 / households;
        let by_crowding = -22_000.0 * (crowding - 2.9).clamp(-1.5, 3.0);
        let spacious = self.rooms as f64 / households;
        let by_rooms = if spacious > 6.0 { 9_000.0 * (spacious - 6.0) } else { -4_000.0 * (6.0 - spacious) };
        // The newest houses are worth most, and in the cities also the oldest.
        let age = self.age as f64;
        let by_age = if age < 10.0 { 1_500.0 * (10.0 - age) } else { 1_400.0 * (age - 25.0).max(0.0) * nearness };
        let expected = 15_000.0 + by_income + by_place + by_crowding + by_rooms + by_age;
        let value = expected * (1.0 + 0.14 * random.normal()) + 12_000.0 * random.normal();
        value.clamp(14_999.0, VALUE_MAX) as u64
    }
}

/// Places half of the districts around two cities, half along the valley between them.
fn place(random: &mut Random) -> Place {
    let (centre, spread) = match random.below(4) {
        0 => (SAN_FRANCISCO, 0.35),
        1 => (LOS_ANGELES, 0.4),
        _ => {
            let along = random.unit();
            let between = |from: f64, to: f64| from + along * (to - from);
            let valley = Place { longitude: between(-122.0, -116.8), latitude: between(39.5, 33.2) };
            (valley, 0.6)
        }
    };
    let longitude = centre.longitude + spread * random.normal();
    Place { longitude, latitude: centre.latitude + spread * random.normal() }
}

/// Returns the nearness to a city: 1 in it, 1/2 about 30 miles away, falling with the square of the distance.
fn proximity(district: &District, city: Place) -> f64 {
    let (east, north) = (district.longitude - city.longitude, district.latitude - city.latitude);
    1.0 / (1.0 + 4.0 * (east * east + north * north))
}

/// Returns a positive number with mean about 1 and a long tail: a product of two uniform numbers, more often small than
/// large.
fn skewed(random: &mut Random) -> f64 {
    let (a, b) = (random.unit(), random.unit());
    0.35 + 0.65 * a / (1.0 - 0.85 * b)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::atomic_file::test_folder::TestFolder;

    fn rows(text: &str) -> Vec<Vec<f64>> {
        text.lines().skip(1).map(|line| line.split(',').map(|field| field.parse().unwrap()).collect()).collect()
    }

    #[test]
    fn the_same_bytes_twice() {
        let folder = TestFolder::new("housing-bytes");
        let (one, other) = (write(&folder.join("a.csv")).unwrap(), write(&folder.join("b.csv")).unwrap());
        assert_eq!(fs::read(one).unwrap(), fs::read(other).unwrap());
    }

    #[test]
    fn rows_are_complete_and_plausible() {
        let folder = TestFolder::new("housing-rows");
        let text = fs::read_to_string(write(&folder.join("a.csv")).unwrap()).unwrap();
        assert_eq!(text.lines().next().unwrap(), format!("{},{TARGET}", FEATURES.join(",")));
        let rows = rows(&text);
        assert_eq!(rows.len(), ROWS);
        assert!(rows.iter().all(|row| row.len() == FEATURES.len() + 1 && row[2..].iter().all(|&value| value > 0.0)));
        let values: Vec<f64> = rows.iter().map(|row| row[8]).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let cut_off = values.iter().filter(|&&value| value >= VALUE_MAX).count();
        assert!((150_000.0..280_000.0).contains(&mean), "{mean}");
        assert!((100..2_500).contains(&cut_off), "{cut_off}");
    }

    #[test]
    fn income_explains_much_and_not_all() {
        let folder = TestFolder::new("housing-income");
        let text = fs::read_to_string(write(&folder.join("a.csv")).unwrap()).unwrap();
        let pairs: Vec<(f64, f64)> = rows(&text).into_iter().map(|row| (row[7], row[8])).collect();
        let n = pairs.len() as f64;
        let (mx, my) = (pairs.iter().map(|p| p.0).sum::<f64>() / n, pairs.iter().map(|p| p.1).sum::<f64>() / n);
        let sum = |f: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|p| f(p.0 - mx, p.1 - my)).sum::<f64>();
        let r = sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
        assert!((0.5..0.9).contains(&r), "{r}");
    }
}
