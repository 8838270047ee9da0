//! Names of column types in a job's `input.types`.

use std::sync::Arc;

use arrow_schema::{DECIMAL128_MAX_PRECISION, DataType, TimeUnit};
use sandbar_core::hint;

/// Names without arguments.
const SIMPLE: [(&str, DataType); 26] = [
    ("bool", DataType::Boolean),
    ("boolean", DataType::Boolean),
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("uint8", DataType::UInt8),
    ("uint16", DataType::UInt16),
    ("uint32", DataType::UInt32),
    ("uint64", DataType::UInt64),
    ("float32", DataType::Float32),
    ("float64", DataType::Float64),
    ("float", DataType::Float32),
    ("double", DataType::Float64),
    ("utf8", DataType::Utf8),
    ("string", DataType::Utf8),
    ("large_utf8", DataType::LargeUtf8),
    ("largeutf8", DataType::LargeUtf8),
    ("binary", DataType::Binary),
    ("date", DataType::Date32),
    ("date32", DataType::Date32),
    ("date64", DataType::Date64),
    ("timestamp", DataType::Timestamp(TimeUnit::Microsecond, None)),
    ("time32", DataType::Time32(TimeUnit::Millisecond)),
    ("time64", DataType::Time64(TimeUnit::Microsecond)),
    ("null", DataType::Null),
];

/// Examples in the message for an unknown name.
const EXAMPLES: &str = "utf8, int64, uint64, float64, bool, date32, timestamp[us], decimal128(p, s)";

/// Parses the name of a type: Arrow's names, in any case, with arguments in brackets or parentheses.
///
/// # Errors
/// If the name is unknown; the message lists examples.
pub(super) fn parse(name: &str) -> Result<DataType, String> {
    let text: String = name.to_lowercase().chars().filter(|c| !c.is_whitespace()).collect();
    if let Some((_, data_type)) = SIMPLE.iter().find(|(simple, _)| *simple == text) {
        return Ok(data_type.clone());
    }
    let (base, arguments) = text.split_once(['[', '(']).unwrap_or((&text, ""));
    let arguments = arguments.trim_end_matches([']', ')']);
    // Time zones are case-sensitive.
    let zone = name.split_once(',').map(|(_, zone)| zone.trim().trim_end_matches([']', ')']));
    let parsed = match base {
        "timestamp" => timestamp(arguments, zone),
        "time32" | "time64" => time(base, arguments),
        "decimal" | "decimal128" => decimal(arguments),
        _ => None,
    };
    parsed.ok_or_else(|| {
        let names: Vec<String> = SIMPLE.iter().map(|(name, _)| (*name).to_owned()).collect();
        let hint = hint(&text, &names);
        format!("`{name}` is not the name of a type{hint}; examples are {EXAMPLES}")
    })
}

fn unit(text: &str) -> Option<TimeUnit> {
    match text {
        "s" | "second" => Some(TimeUnit::Second),
        "ms" | "millisecond" => Some(TimeUnit::Millisecond),
        "us" | "µs" | "microsecond" => Some(TimeUnit::Microsecond),
        "ns" | "nanosecond" => Some(TimeUnit::Nanosecond),
        _ => None,
    }
}

fn timestamp(arguments: &str, zone: Option<&str>) -> Option<DataType> {
    let unit = unit(arguments.split(',').next()?)?;
    let zone = zone.map(|zone| zone.trim_start_matches("tz=").trim_matches(['"', '\'']));
    let zone = zone.filter(|zone| !zone.is_empty() && !zone.eq_ignore_ascii_case("none"));
    if zone.is_some_and(|zone| zone.parse::<arrow_array::timezone::Tz>().is_err()) {
        return None;
    }
    Some(DataType::Timestamp(unit, zone.map(Arc::from)))
}

fn time(base: &str, arguments: &str) -> Option<DataType> {
    match (base, unit(arguments)?) {
        ("time32", unit @ (TimeUnit::Second | TimeUnit::Millisecond)) => Some(DataType::Time32(unit)),
        ("time64", unit @ (TimeUnit::Microsecond | TimeUnit::Nanosecond)) => Some(DataType::Time64(unit)),
        _ => None,
    }
}

fn decimal(arguments: &str) -> Option<DataType> {
    let (precision, scale) = arguments.split_once(',').unwrap_or((arguments, "0"));
    let (precision, scale): (u8, i8) = (precision.parse().ok()?, scale.parse().ok()?);
    let fits = (1..=DECIMAL128_MAX_PRECISION).contains(&precision) && (0..=precision as i8).contains(&scale);
    fits.then_some(DataType::Decimal128(precision, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_known_by_their_usual_names() {
        let time = |unit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Arc::from));
        for (name, expected) in [
            ("int64", DataType::Int64),
            ("Int64", DataType::Int64),
            ("utf8", DataType::Utf8),
            ("Utf8", DataType::Utf8),
            ("string", DataType::Utf8),
            ("float64", DataType::Float64),
            ("timestamp[us]", time(TimeUnit::Microsecond, None)),
            ("timestamp(ns)", time(TimeUnit::Nanosecond, None)),
            ("Timestamp(Second, None)", time(TimeUnit::Second, None)),
            ("timestamp[ms, UTC]", time(TimeUnit::Millisecond, Some("UTC"))),
            ("timestamp[us, tz=+02:00]", time(TimeUnit::Microsecond, Some("+02:00"))),
            ("date32", DataType::Date32),
            ("decimal128(18, 2)", DataType::Decimal128(18, 2)),
            ("Decimal128(38,0)", DataType::Decimal128(38, 0)),
            ("bool", DataType::Boolean),
            ("time64[ns]", DataType::Time64(TimeUnit::Nanosecond)),
        ] {
            assert_eq!(parse(name), Ok(expected), "{name}");
        }
        for (name, expected) in [
            ("utf", "`utf` is not the name of a type"),
            ("itn64", "`itn64` is not the name of a type (did you mean `int64`?); examples are utf8"),
            ("timestamp[h]", "`timestamp[h]` is not"),
            ("timestamp[us, Moon/Crater]", "`timestamp[us, Moon/Crater]` is not"),
            ("decimal128(39, 2)", "`decimal128(39, 2)` is not"),
            ("decimal128(3, 4)", "`decimal128(3, 4)` is not"),
            ("", "`` is not"),
            ("((((,", "`((((,` is not"),
        ] {
            let error = parse(name).expect_err(name);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
