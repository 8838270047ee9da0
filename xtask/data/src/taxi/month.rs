//! Trips of one month, generated in batches of rows.

use std::io;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int32Array, RecordBatch, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};

use super::city::{City, DAY};
use crate::atomic_file::AtomicFile;
use crate::parquet_file::{BATCH_ROWS, Dictionary, GROUP_ROWS, ParquetFile};
use crate::random::{Random, WeightedAliasIndex, seed_of};

const SEED: u64 = 0x74_72_69_70;

/// Year of the first month.
const FIRST_YEAR: u32 = 2019;

/// Days from 1970-01-01 to 2019-01-01.
const FIRST_DAY: i64 = 17_897;

/// Maximum seconds by which trips are out of order in the file, as real meters report them late.
const DISORDER: f64 = 1_800.0;

/// One zone in this many is missing.
const ZONE_MISSING: u64 = 2_000;
/// One passenger count in this many is missing.
const PASSENGERS_MISSING: u64 = 400;

/// Trips of one month, which fill one file.
pub struct Month {
    index: u32,
    rows: u64,
    first_second: i64,
    days: i64,
}

/// Returns the schema, with the city's names and types, except that all files have zones instead of coordinates.
pub fn schema() -> SchemaRef {
    let timestamp = DataType::Timestamp(TimeUnit::Microsecond, None);
    Arc::new(Schema::new(vec![
        Field::new("vendor_id", DataType::Int32, true),
        Field::new("pickup_at", timestamp.clone(), true),
        Field::new("dropoff_at", timestamp, true),
        Field::new("passenger_count", DataType::Int32, true),
        Field::new("trip_distance", DataType::Float64, true),
        Field::new("pickup_location_id", DataType::Int32, true),
        Field::new("dropoff_location_id", DataType::Int32, true),
        Field::new("payment_type", DataType::Int32, true),
        Field::new("fare_amount", DataType::Float64, true),
        Field::new("tip_amount", DataType::Float64, true),
        Field::new("total_amount", DataType::Float64, true),
    ]))
}

impl Month {
    /// Creates the month `index` months after January 2019. It does not depend on the months before.
    pub fn new(index: u32, rows: u64) -> Self {
        let first_day = FIRST_DAY + (0..index).map(days_of).sum::<i64>();
        Self { index, rows, first_second: first_day * DAY as i64, days: days_of(index) }
    }

    /// Returns the name, such as `2019-01`.
    fn name(&self) -> String {
        format!("{}-{:02}", FIRST_YEAR + self.index / 12, self.index % 12 + 1)
    }

    /// Writes the month's file under a temporary name.
    pub fn write(&self, folder: &Path, city: &City, progress: &(dyn Fn(&str, u64) + Sync)) -> io::Result<AtomicFile> {
        let name = self.name();
        let path = folder.join(format!("yellow_tripdata_{name}.parquet"));
        let mut file = ParquetFile::create(&path, schema(), Dictionary::On)?;
        let mut random = Random::new(seed_of(&[SEED, u64::from(self.index)]));
        let draws = Draws::new();
        let mut done = 0;
        while done < self.rows {
            let count = (self.rows - done).min(BATCH_ROWS as u64);
            let mut columns = Columns::with_capacity(count as usize);
            for row in done..done + count {
                columns.push(self.trip(row, city, &draws, &mut random));
            }
            file.write(&columns.into_batch()?)?;
            done += count;
            if done.is_multiple_of(GROUP_ROWS as u64) || done == self.rows {
                progress(&name, done);
            }
        }
        file.finish()
    }

    fn trip(&self, row: u64, city: &City, draws: &Draws, random: &mut Random) -> Trip {
        let pickup_second = self.pickup_second(row, city, random);
        let (pickup, dropoff) = (city.zone(random), city.zone(random));
        let route = city.route(pickup, dropoff);
        let miles = (route.miles * (1.0 + 0.08 * random.normal())).max(0.1);
        let noise = 1.0 + 0.2 * random.normal();
        let seconds = 60.0 * route.minutes * City::slowness(pickup_second) * noise + 45.0 * random.normal();
        let seconds = (seconds as i64).max(30);

        // The tariff of 2019: 2.50 base fare, 0.50 for each fifth of a mile or minute in slow traffic, 0.80 in surcharges.
        let slow_minutes = 0.3 * seconds as f64 / 60.0;
        let fare = cents(2.5 + 0.5 * (5.0 * miles + slow_minutes).floor());
        let payment_type = 1 + draws.payment.draw(random) as i32;
        // Real files record only tips paid by card.
        let generous = payment_type == 1 && !random.one_in(20);
        let tip = if generous { cents(fare * (0.2 + 0.05 * random.normal()).max(0.0)) } else { 0.0 };
        let passengers = 1 + draws.passengers.draw(random) as i32;
        Trip {
            vendor_id: 1 + i32::from(random.unit() < 0.62),
            pickup_at: micros(self.first_second + pickup_second),
            dropoff_at: micros(self.first_second + pickup_second + seconds),
            passenger_count: (!random.one_in(PASSENGERS_MISSING)).then_some(passengers),
            trip_distance: cents(miles),
            pickup_location_id: (!random.one_in(ZONE_MISSING)).then_some(pickup),
            dropoff_location_id: (!random.one_in(ZONE_MISSING)).then_some(dropoff),
            payment_type,
            fare_amount: fare,
            tip_amount: tip,
            total_amount: cents(fare + tip + 0.8),
        }
    }

    /// Returns the seconds since the start of the month: evenly over its days, by demand within a day, slightly out of
    /// order.
    fn pickup_second(&self, row: u64, city: &City, random: &mut Random) -> i64 {
        let days = (row as f64 + random.unit()) / self.rows as f64 * self.days as f64;
        let day = days.floor().min((self.days - 1) as f64);
        let second = day * DAY + city.second_of_day((days - day).clamp(0.0, 1.0 - 1e-12));
        let second = second + DISORDER * (random.unit() - 0.5);
        (second as i64).clamp(0, self.days * DAY as i64 - 1)
    }
}

/// Distributions of the small columns.
struct Draws {
    /// Payment types: card, cash, no charge, dispute.
    payment: WeightedAliasIndex,
    /// Passenger counts: one to six.
    passengers: WeightedAliasIndex,
}

impl Draws {
    fn new() -> Self {
        Self {
            payment: WeightedAliasIndex::new(&[71.0, 28.0, 0.7, 0.3]),
            passengers: WeightedAliasIndex::new(&[71.0, 15.0, 4.3, 2.0, 4.7, 3.0]),
        }
    }
}

/// One row of a file.
struct Trip {
    vendor_id: i32,
    pickup_at: i64,
    dropoff_at: i64,
    passenger_count: Option<i32>,
    trip_distance: f64,
    pickup_location_id: Option<i32>,
    dropoff_location_id: Option<i32>,
    payment_type: i32,
    fare_amount: f64,
    tip_amount: f64,
    total_amount: f64,
}

/// Rows of a batch, by column.
struct Columns {
    vendor_id: Vec<i32>,
    pickup_at: Vec<i64>,
    dropoff_at: Vec<i64>,
    passenger_count: Vec<Option<i32>>,
    trip_distance: Vec<f64>,
    pickup_location_id: Vec<Option<i32>>,
    dropoff_location_id: Vec<Option<i32>>,
    payment_type: Vec<i32>,
    fare_amount: Vec<f64>,
    tip_amount: Vec<f64>,
    total_amount: Vec<f64>,
}

impl Columns {
    fn with_capacity(rows: usize) -> Self {
        Self {
            vendor_id: Vec::with_capacity(rows),
            pickup_at: Vec::with_capacity(rows),
            dropoff_at: Vec::with_capacity(rows),
            passenger_count: Vec::with_capacity(rows),
            trip_distance: Vec::with_capacity(rows),
            pickup_location_id: Vec::with_capacity(rows),
            dropoff_location_id: Vec::with_capacity(rows),
            payment_type: Vec::with_capacity(rows),
            fare_amount: Vec::with_capacity(rows),
            tip_amount: Vec::with_capacity(rows),
            total_amount: Vec::with_capacity(rows),
        }
    }

    fn push(&mut self, trip: Trip) {
        self.vendor_id.push(trip.vendor_id);
        self.pickup_at.push(trip.pickup_at);
        self.dropoff_at.push(trip.dropoff_at);
        self.passenger_count.push(trip.passenger_count);
        self.trip_distance.push(trip.trip_distance);
        self.pickup_location_id.push(trip.pickup_location_id);
        self.dropoff_location_id.push(trip.dropoff_location_id);
        self.payment_type.push(trip.payment_type);
        self.fare_amount.push(trip.fare_amount);
        self.tip_amount.push(trip.tip_amount);
        self.total_amount.push(trip.total_amount);
    }

    /// Converts the columns into a batch with [`schema`].
    fn into_batch(self) -> io::Result<RecordBatch> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(self.vendor_id)),
            Arc::new(TimestampMicrosecondArray::from(self.pickup_at)),
            Arc::new(TimestampMicrosecondArray::from(self.dropoff_at)),
            Arc::new(Int32Array::from(self.passenger_count)),
            Arc::new(Float64Array::from(self.trip_distance)),
            Arc::new(Int32Array::from(self.pickup_location_id)),
            Arc::new(Int32Array::from(self.dropoff_location_id)),
            Arc::new(Int32Array::from(self.payment_type)),
            Arc::new(Float64Array::from(self.fare_amount)),
            Arc::new(Float64Array::from(self.tip_amount)),
            Arc::new(Float64Array::from(self.total_amount)),
        ];
        RecordBatch::try_new(schema(), columns).map_err(io::Error::other)
    }
}

fn micros(second: i64) -> i64 {
    second * 1_000_000
}

/// Rounds to hundredths.
fn cents(amount: f64) -> f64 {
    (amount * 100.0).round() / 100.0
}

fn days_of(month: u32) -> i64 {
    let year = FIRST_YEAR + month / 12;
    match month % 12 {
        1 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_are_named_and_placed() {
        for (index, name, first_second, days) in [
            (0, "2019-01", 1_546_300_800, 31),
            (1, "2019-02", 1_548_979_200, 28),
            (12, "2020-01", 1_577_836_800, 31),
            (13, "2020-02", 1_580_515_200, 29),
        ] {
            let month = Month::new(index, 1);
            assert_eq!((month.name().as_str(), month.first_second, month.days), (name, first_second, days));
        }
    }
}
