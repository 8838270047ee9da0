//! Times of every unit, and filters on them.

use arrow_array::{
    Date32Array, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray,
};
use arrow_schema::{Field, TimeUnit};
use parquet::basic::Type as PhysicalType;
use parquet::data_type::{Int64Type, Int96, Int96Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use sandbar_core::Seed;
use sandbar_seeds::{one_seed, seed_of_clock};

use super::*;

const NANOS: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * NANOS;
/// 9999-12-31, 2021-06-09 03:02:37 and 1600-01-01, in seconds since 1970.
const ENDS: [i64; 3] = [253_402_214_400, 1_623_207_757, -11_676_096_000];

/// Writes a file of INT96 times like Spark: without an Arrow schema, with four rows of each time and a row group per
/// time.
fn int96(folder: &Folder, name: &str) -> String {
    let column = |name: &str, physical| Arc::new(Type::primitive_type_builder(name, physical).build().expect("a type"));
    let fields = vec![column("until", PhysicalType::INT96), column("k", PhysicalType::INT64)];
    let schema = Arc::new(Type::group_type_builder("spark").with_fields(fields).build().expect("a schema"));
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Default::default()).expect("a writer");
    for (k, seconds) in (0..).zip(ENDS) {
        let mut group = writer.next_row_group().expect("a row group");
        let (day, nanos) = (seconds.div_euclid(86_400) + 2_440_588, seconds.rem_euclid(86_400) as u64 * 1_000_000_000);
        let mut time = Int96::new();
        time.set_data(nanos as u32, (nanos >> 32) as u32, u32::try_from(day).expect("a day of Julian's"));
        let mut column = group.next_column().expect("a column").expect("a column");
        column.typed::<Int96Type>().write_batch(&[time; 4], Some(&[1; 4]), None).expect("written");
        column.close().expect("written");
        let mut column = group.next_column().expect("a column").expect("a column");
        column.typed::<Int64Type>().write_batch(&[k; 4], Some(&[1; 4]), None).expect("written");
        column.close().expect("written");
        group.close().expect("written");
    }
    folder.write(name, writer.into_inner().expect("a file"))
}

#[test]
fn times_without_a_unit_are_right_in_every_year() {
    let folder = Folder::new();
    let spark = int96(&folder, "int96.parquet");
    let micros = TimestampMicrosecondArray::from_iter_values(ENDS.iter().flat_map(|s| [s * 1_000_000; 4]));
    let k = Int64Array::from_iter_values((0..3).flat_map(|k| [k; 4]));
    let rows: [(&str, ArrayRef); 2] = [("until", Arc::new(micros)), ("k", Arc::new(k))];
    let rows = RecordBatch::try_from_iter(rows).expect("a batch");
    let plain = folder.parquet("micros.parquet", &rows, 4);
    let mut wrong = Vec::new();
    let times = ["9999-12-31T00:00:00|0", "2021-06-09T03:02:37|1", "1600-01-01T00:00:00|2"];
    for paths in [vec![spark.clone()], vec![plain.clone()], vec![spark.clone(), plain.clone()]] {
        let files = paths.len();
        let all = source(paths.clone());
        assert_eq!(
            open(&all).expect("a scan").schema().field(0).data_type(),
            &DataType::Timestamp(TimeUnit::Microsecond, None)
        );
        let expected: Vec<&str> = times.iter().flat_map(|time| [*time; 4]).collect();
        assert_eq!(text(&read(&all).expect("rows")), expected.repeat(files), "{paths:?}");
        for (filter, found) in [
            ("until > '2022-01-01'", &[0][..]),
            ("until > TIMESTAMP '2022-01-01'", &[0]),
            ("until > CAST('2022-01-01' AS TIMESTAMP)", &[0]),
            ("until > DATE '2022-01-01'", &[0]),
            ("until > arrow_cast('2022-01-01', 'Timestamp(Microsecond, None)')", &[0]),
            ("until > to_timestamp('2022-01-01')", &[0]),
            ("until > to_timestamp(1640995200)", &[0]),
            ("extract(year from until) > 2022", &[0]),
            ("extract(year from until) = 1600", &[2]),
            ("until IS NOT NULL", &[0, 1, 2]),
            ("until = '9999-12-31'", &[0]),
            ("until = DATE '9999-12-31'", &[0]),
            ("until < TIMESTAMP '1700-01-01'", &[2]),
            ("until = to_timestamp(253402214400)", &[0]),
            ("until BETWEEN '1600-01-01' AND DATE '2021-06-10'", &[1, 2]),
            ("until NOT BETWEEN TIMESTAMP '1600-01-01' AND TIMESTAMP '2021-06-09 03:02:37'", &[0]),
            ("until IN ('9999-12-31', DATE '1600-01-01')", &[0, 2]),
            ("until NOT IN (TIMESTAMP '9999-12-31', '1600-01-01')", &[1]),
            ("CASE until WHEN TIMESTAMP '9999-12-31' THEN true ELSE k = 2 END", &[0, 2]),
            ("coalesce(until, TIMESTAMP '2020-01-01') >= '9999-12-31'", &[0]),
            ("until + INTERVAL '1 day' < TIMESTAMP '2022-01-01'", &[1, 2]),
            ("until < TIMESTAMP '9999-12-31' - INTERVAL '1 second'", &[1, 2]),
            ("until IS NOT DISTINCT FROM TIMESTAMP '9999-12-31'", &[0]),
            ("until <> '2021-06-09 03:02:37.000000001'", &[0, 1, 2]),
            ("until > TRY_CAST('no time' AS TIMESTAMP)", &[]),
            ("until > NULL", &[]),
            ("CAST(until AS DATE) = DATE '1600-01-01'", &[2]),
        ] {
            let source = ScanSource { filter: Some(filter.to_owned()), columns: columns(&["k"]), ..all.clone() };
            let expected: Vec<String> = (0..files).flat_map(|_| found).flat_map(|k| vec![k.to_string(); 4]).collect();
            match read(&source) {
                Ok(rows) if text(&rows) == expected => {}
                Ok(rows) => wrong.push(format!("{paths:?}: {filter}: {:?}", text(&rows))),
                Err(error) => wrong.push(format!("{paths:?}: {error}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The row group reader decodes them too.
    let (_, read) = read_stored(&source([spark]), ScanOptions::default()).expect("rows");
    assert_eq!(read, (3, 0));
}

/// Type of a time column, in a time zone two hours ahead of UTC or without one.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    tick: i128,
    zone: bool,
}

const KINDS: [Kind; 7] = [
    Kind { name: "s", tick: NANOS, zone: false },
    Kind { name: "ms", tick: 1_000_000, zone: false },
    Kind { name: "us", tick: 1_000, zone: false },
    Kind { name: "ns", tick: 1, zone: false },
    Kind { name: "us2", tick: 1_000, zone: true },
    Kind { name: "ns2", tick: 1, zone: true },
    Kind { name: "d", tick: DAY, zone: false },
];

/// Offset of the time zone.
const AHEAD: i128 = 7_200 * NANOS;

impl Kind {
    /// Returns whether the type holds an instant, and the same local time in another time zone.
    fn holds(self, instant: i128) -> bool {
        [instant - DAY, instant + DAY].iter().all(|near| i64::try_from(near.div_euclid(self.tick)).is_ok())
    }

    fn column(self, instants: &[Option<i128>]) -> ArrayRef {
        let counts = instants.iter().map(|i| i.map(|i| i.div_euclid(self.tick) as i64));
        let zone = self.zone.then_some("+02:00");
        match self.name {
            "s" => Arc::new(TimestampSecondArray::from_iter(counts)),
            "ms" => Arc::new(TimestampMillisecondArray::from_iter(counts)),
            "us" | "us2" => Arc::new(TimestampMicrosecondArray::from_iter(counts).with_timezone_opt(zone)),
            "ns" | "ns2" => Arc::new(TimestampNanosecondArray::from_iter(counts).with_timezone_opt(zone)),
            _ => Arc::new(Date32Array::from_iter(counts.map(|days| days.map(|days| days as i32)))),
        }
    }
}

/// Returns the date of a day since 1970 in the proleptic Gregorian calendar (Hinnant's algorithm).
fn date(day: i128) -> (i128, i128, i128) {
    let day = day + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i128::from(month <= 2), month, of_year - (153 * shifted + 2) / 5 + 1)
}

/// Formats a time with `digits` digits of the second's fraction.
fn written(instant: i128, digits: usize) -> String {
    let (year, month, day) = date(instant.div_euclid(DAY));
    let within = instant.rem_euclid(DAY);
    let (seconds, nanos) = (within / NANOS, within % NANOS);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let text = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
    if digits == 0 { text } else { format!("{text}.{}", &format!("{nanos:09}")[..digits]) }
}

struct Random(Seed);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u32) as usize
    }

    fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Returns an instant of the years 1 to 9999, near a boundary.
    fn instant(&mut self) -> i128 {
        let seconds =
            [-62_135_596_800, -11_676_096_000, -9_223_372_037, -1, 0, 1_577_836_800, 9_223_372_036, 253_402_214_400];
        let near = [0, 0, 0, 1, -1, 999, 1_000, 1_000_000, NANOS, -NANOS / 2, DAY, 10_800 * NANOS];
        let instant = self.choose(&seconds) * NANOS + self.choose(&near);
        instant.clamp(-62_135_596_800 * NANOS, 253_402_300_800 * NANOS - 1)
    }

    /// Returns a constant to compare with a column of `kind`: its SQL text and its instant.
    fn constant(&mut self, kind: Kind) -> (String, Option<i128>) {
        let instant = self.instant();
        // 64-bit nanoseconds can't hold the year, so no finer digits are used.
        let digits = if i64::try_from(instant).is_ok() { self.choose(&[0, 3, 6, 9]) } else { self.choose(&[0, 3, 6]) };
        let of_text = instant - instant.rem_euclid(10_i128.pow(9 - digits as u32));
        let text = written(instant, digits);
        // Text without a time zone is in the column's.
        let local = if kind.zone { of_text - AHEAD } else { of_text };
        let midnight = instant - instant.rem_euclid(DAY);
        let day = &text[..10];
        let is_date = kind.name == "d";
        match self.below(9) {
            0 if !is_date => (format!("'{text}'"), Some(local)),
            1 if !is_date => (format!("'{text}Z'"), Some(of_text)),
            2 if !is_date => (format!("'{}'", text.replace(' ', "T") + "+01:00"), Some(of_text - 3_600 * NANOS)),
            3 => (format!("DATE '{day}'"), Some(midnight)),
            4 => (format!("CAST('{text}' AS TIMESTAMP)"), Some(local)),
            5 => (format!("to_timestamp('{text}')"), Some(local)),
            6 if digits < 9 => (format!("TIMESTAMP '{text}' + INTERVAL '1 day'"), Some(local + DAY)),
            7 => ("CAST(NULL AS TIMESTAMP)".to_owned(), None),
            8 if digits <= 6 => (format!("arrow_cast('{text}', 'Timestamp(Microsecond, None)')"), Some(local)),
            _ => (format!("TIMESTAMP '{text}'"), Some(local)),
        }
    }
}

type Compare = fn(i128, i128) -> bool;

const OPERATORS: [(&str, &str, Compare); 6] = [
    ("=", "=", |a, b| a == b),
    ("<>", "<>", |a, b| a != b),
    ("<", ">", |a, b| a < b),
    ("<=", ">=", |a, b| a <= b),
    (">", "<", |a, b| a > b),
    (">=", "<=", |a, b| a >= b),
];

/// Filter on a column of `kind`, and its expected result for a time or for null.
type FilterCase = (String, Box<dyn Fn(Option<i128>) -> Option<bool>>);

fn judged(random: &mut Random, kind: Kind) -> FilterCase {
    let name = kind.name;
    let (sql, constant) = random.constant(kind);
    let (op, swapped, compare) = random.choose(&OPERATORS);
    let plain = move |time: Option<i128>| Some(compare(time?, constant?));
    match random.below(8) {
        0 => (format!("{sql} {swapped} {name}"), Box::new(plain)),
        1 => (format!("NOT ({name} {op} {sql})"), Box::new(move |time| plain(time).map(|is_true| !is_true))),
        2 => (format!("{name} IS DISTINCT FROM {sql}"), Box::new(move |time| Some(time != constant))),
        3 => (format!("{name} IS NOT DISTINCT FROM {sql}"), Box::new(move |time| Some(time == constant))),
        4 => {
            let (other, end) = random.constant(kind);
            let negated = random.below(2) == 1;
            let within = move |time: Option<i128>| {
                let (above, below) = (time.zip(constant).map(|(t, c)| t >= c), time.zip(end).map(|(t, e)| t <= e));
                let both = match (above, below) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                };
                both.map(|both| both != negated)
            };
            (format!("{name} {}BETWEEN {sql} AND {other}", if negated { "NOT " } else { "" }), Box::new(within))
        }
        5 => {
            let mut list = vec![(sql, constant)];
            list.extend((0..random.below(4)).map(|_| random.constant(kind)));
            let negated = random.below(2) == 1;
            let items = list.iter().map(|(sql, _)| sql.clone()).collect::<Vec<_>>().join(", ");
            let is_in = move |time: Option<i128>| {
                let time = time?;
                let found = list.iter().any(|(_, item)| *item == Some(time));
                let unknown = list.iter().any(|(_, item)| item.is_none());
                if found || !unknown { Some(found != negated) } else { None }
            };
            (format!("{name} {}IN ({items})", if negated { "NOT " } else { "" }), Box::new(is_in))
        }
        _ => (format!("{name} {op} {sql}"), Box::new(plain)),
    }
}

#[test]
fn times_compare_as_they_should_in_any_unit() {
    let mut random = Random(Seed::new(one_seed(seed_of_clock())));
    for _ in 0..6 {
        let folder = Folder::new();
        let rows = 1 + random.below(40);
        let mut columns: Vec<(&str, ArrayRef, bool)> =
            vec![("row", Arc::new(Int64Array::from_iter_values(0..rows as i64)), true)];
        let mut instants = Vec::new();
        for kind in KINDS {
            let mut of_kind: Vec<Option<i128>> = Vec::new();
            while of_kind.len() < rows {
                let instant = random.instant();
                let whole = instant - instant.rem_euclid(kind.tick);
                if random.below(8) == 0 {
                    of_kind.push(None);
                } else if kind.holds(whole) {
                    of_kind.push(Some(whole));
                }
            }
            // Sorted values make row groups differ.
            of_kind.sort();
            columns.push((kind.name, kind.column(&of_kind), true));
            instants.push(of_kind);
        }
        let table = RecordBatch::try_from_iter_with_nullable(columns).expect("a batch");
        let group_rows = 1 + random.below(rows);
        let chunks = || WriterProperties::builder().set_max_row_group_row_count(Some(group_rows));
        let paths = [
            folder.parquet("pages.parquet", &table, group_rows),
            folder.parquet_with("chunks.parquet", &table, chunks().set_statistics_enabled(EnabledStatistics::Chunk)),
            folder.parquet_with("none.parquet", &table, chunks().set_statistics_enabled(EnabledStatistics::None)),
            folder.arrow("a.arrow", &table, group_rows),
        ];
        for _ in 0..40 {
            let at = random.below(KINDS.len());
            let (filter, is_true): FilterCase = match random.below(6) {
                0 => {
                    // Two columns, of which a column without a time zone takes the other's.
                    let other = random.below(KINDS.len());
                    let (a, b) = (KINDS[at], KINDS[other]);
                    let (op, _, compare) = random.choose(&OPERATORS);
                    let shift = |kind: Kind, beside: Kind| {
                        if beside.zone && !kind.zone && kind.name != "d" { AHEAD } else { 0 }
                    };
                    let (by_a, by_b) = (shift(a, b), shift(b, a));
                    let of_b = instants[other].clone();
                    let of_a = instants[at].clone();
                    let judge = move |row: Option<i128>| {
                        let row = usize::try_from(row?).ok()?;
                        Some(compare(of_a[row]? - by_a, of_b[row]? - by_b))
                    };
                    (format!("{} {op} {}", a.name, b.name), Box::new(judge))
                }
                _ => {
                    let (filter, judge) = judged(&mut random, KINDS[at]);
                    let of_kind = instants[at].clone();
                    (filter, Box::new(move |row: Option<i128>| judge(of_kind[usize::try_from(row?).ok()?])))
                }
            };
            let expected: Vec<String> =
                (0..rows).filter(|row| is_true(Some(*row as i128)) == Some(true)).map(|row| row.to_string()).collect();
            for path in &paths {
                let source = ScanSource {
                    filter: Some(filter.clone()),
                    columns: super::columns(&["row"]),
                    ..source([path.clone()])
                };
                for options in [ScanOptions::default(), ScanOptions { batch_rows: 3, morsel_bytes: 700 }] {
                    let found = read_with(&source, options.clone()).unwrap_or_else(|e| panic!("{path}: {e}"));
                    assert_eq!(text(&found), expected, "{path}: {filter}\n{:#?}", text(&table));
                    let (found, _) = read_stored(&source, options).unwrap_or_else(|e| panic!("{path}: {e}"));
                    assert_eq!(text(&found), expected, "{path}: {filter}, in row groups");
                }
            }
        }
    }
}

#[test]
fn a_constant_out_of_a_columns_range_is_no_error() {
    let folder = Folder::new();
    let column = |name: &str, data_type: DataType| {
        let counts = arrow_cast::cast(&Int64Array::from(vec![Some(0), None, Some(1)]), &data_type);
        (Field::new(name, data_type, true), counts.expect("times"))
    };
    let (fields, arrays): (Vec<_>, Vec<_>) = [
        ("ns", DataType::Timestamp(TimeUnit::Nanosecond, None)),
        ("zoned", DataType::Timestamp(TimeUnit::Nanosecond, Some("Europe/Berlin".into()))),
    ]
    .map(|(name, data_type)| column(name, data_type))
    .into_iter()
    .unzip();
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("a batch");
    let path = folder.parquet("a.parquet", &rows, 1);
    for name in ["ns", "zoned"] {
        for (condition, expected) in [
            ("< '9999-12-31'", 2),
            ("> '0001-01-01'", 2),
            (">= TIMESTAMP '2500-01-01'", 0),
            ("= DATE '9999-12-31'", 0),
            ("<> '9999-12-31 23:59:59.999999'", 2),
            ("IS DISTINCT FROM DATE '9999-12-31'", 3),
            ("IS NOT DISTINCT FROM '9999-12-31'", 0),
            ("BETWEEN '0001-01-01' AND '9999-12-31'", 2),
            ("NOT IN ('0001-01-01', '9999-12-31')", 2),
        ] {
            let filter = format!("{name} {condition}");
            let source = ScanSource { filter: Some(filter.clone()), ..source([path.clone()]) };
            assert_eq!(read(&source).unwrap_or_else(|e| panic!("{filter}: {e}")).num_rows(), expected, "{filter}");
        }
    }
}
