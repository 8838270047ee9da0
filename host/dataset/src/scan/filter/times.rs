//! Exact comparisons of times of different units.
//!
//! DataFusion casts both sides of a comparison to nanoseconds, which end in the years 1677 and 2262: a comparison with
//! a column of microseconds and the year 9999 fails or wraps. Here a constant is converted to the column's unit. If the
//! unit can't represent it, the comparison becomes one with the previous representable time, or one that holds for all
//! times or none: `t < '2020-01-01 00:00:00.5'` in seconds becomes `t <= '2020-01-01 00:00:00'`. Two columns are
//! compared as 128-bit nanoseconds ([`CompareTimes`]). Time zones are those that DataFusion would choose.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::timezone::Tz;
use arrow_array::types::{
    Date32Type, Date64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_cast::parse::string_to_datetime;
use arrow_schema::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TransformedResult as _, TreeNode as _};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::expr::{Between, Case, Cast, InList, ScalarFunction, TryCast};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
    and, lit, or,
};

use super::chain::join;
use super::evaluator::Evaluator;

const NANOS: i128 = 1_000_000_000;
const DAY_NANOS: i128 = 86_400 * NANOS;
/// Nanoseconds per microsecond.
const MICRO_NANOS: i128 = 1_000;

type Zone = Option<Arc<str>>;

/// Replaces comparisons of times that DataFusion would not compute exactly.
pub(super) fn compare_exactly(evaluator: &dyn Evaluator, expr: Expr) -> Result<Expr> {
    let replaced = expr.transform_up(|part| match part {
        Expr::Cast(Cast { expr, field }) => Ok(match time_literal(&expr, field.data_type())? {
            Some(literal) => Transformed::yes(literal),
            None => Transformed::no(Expr::Cast(Cast { expr, field })),
        }),
        Expr::TryCast(TryCast { expr, field }) => Ok(match time_literal(&expr, field.data_type()) {
            Ok(Some(literal)) => Transformed::yes(literal),
            Ok(None) => Transformed::no(Expr::TryCast(TryCast { expr, field })),
            Err(_) => Transformed::yes(Expr::Literal(ScalarValue::try_from(field.data_type())?, None)),
        }),
        Expr::ScalarFunction(call) => Ok(match to_timestamp_literal(&call)? {
            Some(literal) => Transformed::yes(literal),
            None => Transformed::no(Expr::ScalarFunction(call)),
        }),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => Ok(match compare(evaluator, &left, op, &right)? {
            Some(expr) => Transformed::yes(expr),
            None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
        }),
        Expr::Between(between) => Ok(match between_as_comparisons(evaluator, &between)? {
            Some(expr) => Transformed::yes(expr),
            None => Transformed::no(Expr::Between(between)),
        }),
        Expr::InList(list) => Ok(match in_list_as_comparisons(evaluator, &list)? {
            Some(expr) => Transformed::yes(expr),
            None => Transformed::no(Expr::InList(list)),
        }),
        Expr::Case(case) => case_as_comparisons(evaluator, case),
        other => Ok(Transformed::no(other)),
    });
    replaced.data()
}

/// Converts `TIMESTAMP '…'` and `CAST('…' AS TIMESTAMP)`, which have nanoseconds in DataFusion, to a literal in a unit
/// that holds the time.
fn time_literal(text: &Expr, to: &DataType) -> Result<Option<Expr>> {
    let (Expr::Literal(value, _), DataType::Timestamp(TimeUnit::Nanosecond, zone)) = (text, to) else {
        return Ok(None);
    };
    let Some(Some(text)) = text_of(value) else { return Ok(None) };
    Ok(Some(literal_of(instant_of_text(text, zone)?, zone)))
}

/// Converts `to_timestamp` of constant text or constant seconds to a literal in a unit that holds the time.
fn to_timestamp_literal(call: &ScalarFunction) -> Result<Option<Expr>> {
    let ([Expr::Literal(value, _)], "to_timestamp") = (call.args.as_slice(), call.name()) else { return Ok(None) };
    Ok(match (value, text_of(value)) {
        (_, Some(Some(text))) => Some(literal_of(instant_of_text(text, &None)?, &None)),
        (ScalarValue::Int64(Some(seconds)), _) => Some(literal_of(i128::from(*seconds) * NANOS, &None)),
        _ => None,
    })
}

/// Returns a literal in microseconds, which hold 290,000 years, or in nanoseconds if the time is finer and they hold
/// it.
fn literal_of(instant: i128, zone: &Zone) -> Expr {
    let nanos = i64::try_from(instant).ok().filter(|_| instant.rem_euclid(MICRO_NANOS) != 0);
    let value = match (nanos, i64::try_from(instant.div_euclid(MICRO_NANOS))) {
        (Some(nanos), _) => ScalarValue::TimestampNanosecond(Some(nanos), zone.clone()),
        (None, Ok(micros)) => ScalarValue::TimestampMicrosecond(Some(micros), zone.clone()),
        (None, Err(_)) => {
            // Only 64-bit seconds are out of the range of microseconds, and seconds hold those.
            let seconds =
                i64::try_from(instant.div_euclid(NANOS)).unwrap_or(if instant < 0 { i64::MIN } else { i64::MAX });
            ScalarValue::TimestampSecond(Some(seconds), zone.clone())
        }
    };
    Expr::Literal(value, None)
}

/// Converts `x BETWEEN a AND b` to two comparisons, if any of them compares times.
fn between_as_comparisons(evaluator: &dyn Evaluator, between: &Between) -> Result<Option<Expr>> {
    let Between { expr, negated, low, high } = between;
    let (above, below) = if *negated { (Operator::Lt, Operator::Gt) } else { (Operator::GtEq, Operator::LtEq) };
    let sides = (compare(evaluator, expr, above, low)?, compare(evaluator, expr, below, high)?);
    if let (None, None) = sides {
        return Ok(None);
    }
    let as_is = |op, bound: &Expr| Expr::BinaryExpr(BinaryExpr::new(expr.clone(), op, Box::new(bound.clone())));
    let above = sides.0.unwrap_or_else(|| as_is(above, low));
    let below = sides.1.unwrap_or_else(|| as_is(below, high));
    Ok(Some(if *negated { or(above, below) } else { and(above, below) }))
}

/// Converts `x IN (a, b)` to comparisons, if any of them compares times.
fn in_list_as_comparisons(evaluator: &dyn Evaluator, list: &InList) -> Result<Option<Expr>> {
    let InList { expr, list, negated } = list;
    let mut any = false;
    let mut equal = Vec::with_capacity(list.len());
    for item in list {
        let compared = compare(evaluator, expr, Operator::Eq, item)?;
        any |= compared.is_some();
        let as_is = || Expr::BinaryExpr(BinaryExpr::new(expr.clone(), Operator::Eq, Box::new(item.clone())));
        equal.push(compared.unwrap_or_else(as_is));
    }
    let one_of = join(equal, Operator::Or);
    Ok(one_of.filter(|_| any).map(|one_of| if *negated { Expr::Not(Box::new(one_of)) } else { one_of }))
}

/// Converts `CASE x WHEN a THEN …` to `CASE WHEN x = a THEN …`, if these compare times.
fn case_as_comparisons(evaluator: &dyn Evaluator, mut case: Case) -> Result<Transformed<Expr>> {
    let Some(base) = case.expr.take() else { return Ok(Transformed::no(Expr::Case(case))) };
    let mut compared = Vec::with_capacity(case.when_then_expr.len());
    for (when, _) in &case.when_then_expr {
        compared.push(compare(evaluator, &base, Operator::Eq, when)?);
    }
    if compared.iter().all(Option::is_none) {
        case.expr = Some(base);
        return Ok(Transformed::no(Expr::Case(case)));
    }
    for ((when, _), compared) in case.when_then_expr.iter_mut().zip(compared) {
        let as_is = || Expr::BinaryExpr(BinaryExpr::new(base.clone(), Operator::Eq, when.clone()));
        **when = compared.unwrap_or_else(as_is);
    }
    Ok(Transformed::yes(Expr::Case(case)))
}

/// Returns the exact comparison, if one side is a timestamp and the other a time of another type, or text.
fn compare(evaluator: &dyn Evaluator, left: &Expr, op: Operator, right: &Expr) -> Result<Option<Expr>> {
    let (Some(op), Some(types)) =
        (TimeComparison::from_operator(op), evaluator.type_of(left).zip(evaluator.type_of(right)))
    else {
        return Ok(None);
    };
    let zone = match &types {
        (a, b) if a == b => return Ok(None),
        (DataType::Timestamp(_, a), DataType::Timestamp(_, b)) => a.clone().or_else(|| b.clone()),
        (DataType::Timestamp(_, zone), other) | (other, DataType::Timestamp(_, zone)) if is_text(other) => zone.clone(),
        (DataType::Timestamp(..), other) | (other, DataType::Timestamp(..)) if tick(other).is_some() => None,
        _ => return Ok(None),
    };
    match (left.any_column_refs(), right.any_column_refs()) {
        (true, false) if !is_text(&types.0) => against(evaluator, left, &types.0, op, right, &zone).map(Some),
        (false, true) if !is_text(&types.1) => against(evaluator, right, &types.1, op.swapped(), left, &zone).map(Some),
        _ => {
            let args = vec![in_zone(left, &types.0, &zone), in_zone(right, &types.1, &zone)];
            let func = Arc::new(ScalarUDF::new_from_impl(CompareTimes::new(op, zone)));
            Ok(Some(Expr::ScalarFunction(ScalarFunction { func, args })))
        }
    }
}

/// Casts a time of type `data_type` to the time zone `zone`.
fn in_zone(time: &Expr, data_type: &DataType, zone: &Zone) -> Expr {
    match data_type {
        DataType::Timestamp(unit, own) if own != zone => {
            Expr::Cast(Cast::new(Box::new(time.clone()), DataType::Timestamp(*unit, zone.clone())))
        }
        _ => time.clone(),
    }
}

/// Returns `time op constant`, in the unit of `time`.
fn against(
    evaluator: &dyn Evaluator,
    time: &Expr,
    data_type: &DataType,
    op: TimeComparison,
    constant: &Expr,
    zone: &Zone,
) -> Result<Expr> {
    let time = in_zone(time, data_type, zone);
    let with =
        |op: Operator, other: Expr| Expr::BinaryExpr(BinaryExpr::new(Box::new(time.clone()), op, Box::new(other)));
    let Some(instant) = instant_of(evaluator, constant, zone)? else {
        return Ok(with(op.operator(), ticks(None, data_type, zone)));
    };
    Ok(match op.with(instant, tick(data_type).unwrap_or(1), range(data_type)) {
        TimePredicate::If(op, value) => with(op.operator(), ticks(Some(value), data_type, zone)),
        // Null stays null.
        TimePredicate::Always => with(Operator::Eq, time.clone()),
        TimePredicate::Never => with(Operator::NotEq, time.clone()),
        TimePredicate::Constant(of_null) => lit(of_null),
    })
}

/// Evaluates a constant to nanoseconds since 1970.
fn instant_of(evaluator: &dyn Evaluator, constant: &Expr, zone: &Zone) -> Result<Option<i128>> {
    let value = evaluator.value_of(constant)?;
    if let Some(text) = text_of(&value) {
        return text.map(|text| instant_of_text(text, zone)).transpose();
    }
    let value = match value.data_type() {
        DataType::Timestamp(unit, own) if own != *zone => value.cast_to(&DataType::Timestamp(unit, zone.clone()))?,
        _ => value,
    };
    Ok(instants(&value.to_array()?, zone)?.first().copied().flatten())
}

fn instant_of_text(text: &str, zone: &Zone) -> Result<i128> {
    let zone: Tz = zone.as_deref().unwrap_or("+00:00").parse()?;
    match string_to_datetime(&zone, text) {
        Ok(time) => Ok(i128::from(time.timestamp()) * NANOS + i128::from(time.timestamp_subsec_nanos())),
        Err(_) => exec_err!(
            "`{}` is not a time; write it as 2020-01-31 or 2020-01-31 12:00:00.5, followed by a time zone \
             (Z, +02:00) if it has one",
            text.chars().take(60).collect::<String>()
        ),
    }
}

/// Returns the text of a value of a text type; `Some(None)` is null.
fn text_of(value: &ScalarValue) -> Option<Option<&str>> {
    match value {
        ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text) => Some(text.as_deref()),
        _ => None,
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Returns the nanoseconds of the unit of a time type.
fn tick(data_type: &DataType) -> Option<i128> {
    Some(match data_type {
        DataType::Timestamp(TimeUnit::Second, _) => NANOS,
        DataType::Timestamp(TimeUnit::Millisecond, _) | DataType::Date64 => 1_000_000,
        DataType::Timestamp(TimeUnit::Microsecond, _) => MICRO_NANOS,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => 1,
        DataType::Date32 => DAY_NANOS,
        _ => return None,
    })
}

/// Returns the smallest and the largest count of a time type.
fn range(data_type: &DataType) -> RangeInclusive<i64> {
    match data_type {
        DataType::Date32 => i32::MIN.into()..=i32::MAX.into(),
        _ => i64::MIN..=i64::MAX,
    }
}

/// Returns a literal of a time type with `count` units, which must be in range.
fn ticks(count: Option<i64>, data_type: &DataType, zone: &Zone) -> Expr {
    let value = match data_type {
        DataType::Date32 => ScalarValue::Date32(count.and_then(|days| days.try_into().ok())),
        DataType::Date64 => ScalarValue::Date64(count),
        DataType::Timestamp(TimeUnit::Second, _) => ScalarValue::TimestampSecond(count, zone.clone()),
        DataType::Timestamp(TimeUnit::Millisecond, _) => ScalarValue::TimestampMillisecond(count, zone.clone()),
        DataType::Timestamp(TimeUnit::Microsecond, _) => ScalarValue::TimestampMicrosecond(count, zone.clone()),
        _ => ScalarValue::TimestampNanosecond(count, zone.clone()),
    };
    Expr::Literal(value, None)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum TimeComparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Distinct,
    NotDistinct,
}

/// Result of comparing times of a unit with a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimePredicate {
    /// True for times that compare to this count.
    If(TimeComparison, i64),
    /// True, but null for null.
    Always,
    /// False, but null for null.
    Never,
    /// The same for all, including null.
    Constant(bool),
}

impl TimeComparison {
    fn from_operator(op: Operator) -> Option<TimeComparison> {
        Some(match op {
            Operator::Eq => TimeComparison::Equal,
            Operator::NotEq => TimeComparison::NotEqual,
            Operator::Lt => TimeComparison::Less,
            Operator::LtEq => TimeComparison::LessOrEqual,
            Operator::Gt => TimeComparison::Greater,
            Operator::GtEq => TimeComparison::GreaterOrEqual,
            Operator::IsDistinctFrom => TimeComparison::Distinct,
            Operator::IsNotDistinctFrom => TimeComparison::NotDistinct,
            _ => return None,
        })
    }

    fn operator(self) -> Operator {
        match self {
            TimeComparison::Equal => Operator::Eq,
            TimeComparison::NotEqual => Operator::NotEq,
            TimeComparison::Less => Operator::Lt,
            TimeComparison::LessOrEqual => Operator::LtEq,
            TimeComparison::Greater => Operator::Gt,
            TimeComparison::GreaterOrEqual => Operator::GtEq,
            TimeComparison::Distinct => Operator::IsDistinctFrom,
            TimeComparison::NotDistinct => Operator::IsNotDistinctFrom,
        }
    }

    /// Returns the comparison with its sides exchanged.
    fn swapped(self) -> TimeComparison {
        match self {
            TimeComparison::Less => TimeComparison::Greater,
            TimeComparison::LessOrEqual => TimeComparison::GreaterOrEqual,
            TimeComparison::Greater => TimeComparison::Less,
            TimeComparison::GreaterOrEqual => TimeComparison::LessOrEqual,
            same => same,
        }
    }

    /// Converts the comparison with `instant` to counts of `tick` nanoseconds within `range`.
    fn with(self, instant: i128, tick: i128, range: RangeInclusive<i64>) -> TimePredicate {
        use TimeComparison::*;
        let (count, is_exact) = (instant.div_euclid(tick), instant.rem_euclid(tick) == 0);
        let (first, last) = (i128::from(*range.start()), i128::from(*range.end()));
        let holds = |is_true: bool| if is_true { TimePredicate::Always } else { TimePredicate::Never };
        let within = i64::try_from(count).ok().filter(|_| (first..=last).contains(&count));
        match (self, within) {
            (Equal | NotEqual, Some(count)) if is_exact => TimePredicate::If(self, count),
            (Distinct | NotDistinct, Some(count)) if is_exact => TimePredicate::If(self, count),
            (Equal | NotEqual, _) => holds(self == NotEqual),
            (Distinct | NotDistinct, _) => TimePredicate::Constant(self == Distinct),
            (Less | LessOrEqual, None) => holds(count > last),
            (Greater | GreaterOrEqual, None) => holds(count < first),
            // The instant is between this count and the next.
            (Less | LessOrEqual, Some(count)) if !is_exact => TimePredicate::If(LessOrEqual, count),
            (Greater | GreaterOrEqual, Some(count)) if !is_exact => TimePredicate::If(Greater, count),
            (_, Some(count)) => TimePredicate::If(self, count),
        }
    }

    fn of_instants<T: Ord>(self, a: Option<T>, b: Option<T>) -> Option<bool> {
        match (self, a, b) {
            (TimeComparison::Distinct, a, b) => Some(a != b),
            (TimeComparison::NotDistinct, a, b) => Some(a == b),
            (TimeComparison::Equal, Some(a), Some(b)) => Some(a == b),
            (TimeComparison::NotEqual, Some(a), Some(b)) => Some(a != b),
            (TimeComparison::Less, Some(a), Some(b)) => Some(a < b),
            (TimeComparison::LessOrEqual, Some(a), Some(b)) => Some(a <= b),
            (TimeComparison::Greater, Some(a), Some(b)) => Some(a > b),
            (TimeComparison::GreaterOrEqual, Some(a), Some(b)) => Some(a >= b),
            (_, _, _) => None,
        }
    }
}

/// Compares times of any two types, or text that is a time, as instants.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CompareTimes {
    op: TimeComparison,
    /// Time zone of text without one.
    zone: Zone,
    signature: Signature,
}

impl CompareTimes {
    fn new(op: TimeComparison, zone: Zone) -> CompareTimes {
        CompareTimes { op, zone, signature: Signature::any(2, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for CompareTimes {
    fn name(&self) -> &str {
        "compare_times"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let mut sides = Vec::with_capacity(2);
        for side in args.args {
            sides.push(instants(&side.into_array(args.number_rows)?, &self.zone)?);
        }
        let [left, right] = sides.as_slice() else { return exec_err!("two times are compared") };
        let compared = left.iter().zip(right).map(|(a, b)| self.op.of_instants(*a, *b));
        Ok(ColumnarValue::Array(Arc::new(compared.collect::<BooleanArray>())))
    }
}

/// Converts times to nanoseconds since 1970.
fn instants(times: &ArrayRef, zone: &Zone) -> Result<Vec<Option<i128>>> {
    let data_type = times.data_type();
    if is_text(data_type) {
        let texts = arrow_cast::cast(times, &DataType::LargeUtf8)?;
        let instants = texts.as_string::<i64>().iter();
        return instants.map(|text| text.map(|text| instant_of_text(text, zone)).transpose()).collect();
    }
    let Some(tick) = tick(data_type) else { return exec_err!("{data_type} is not a time type") };
    macro_rules! counts {
        ($type:ty) => {
            times.as_primitive::<$type>().iter().map(|count| count.map(|count| i128::from(count) * tick)).collect()
        };
    }
    Ok(match data_type {
        DataType::Date32 => counts!(Date32Type),
        DataType::Date64 => counts!(Date64Type),
        DataType::Timestamp(TimeUnit::Second, _) => counts!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => counts!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => counts!(TimestampMicrosecondType),
        _ => counts!(TimestampNanosecondType),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use TimeComparison::*;

    #[test]
    fn constants_come_to_the_unit_of_a_column() {
        let days = || range(&DataType::Date32);
        let all = || i64::MIN..=i64::MAX;
        for (op, instant, tick, range, expected) in [
            (Less, 5 * NANOS, NANOS, all(), TimePredicate::If(Less, 5)),
            (Less, 5 * NANOS + 1, NANOS, all(), TimePredicate::If(LessOrEqual, 5)),
            (LessOrEqual, 5 * NANOS + 1, NANOS, all(), TimePredicate::If(LessOrEqual, 5)),
            (Greater, -1, NANOS, all(), TimePredicate::If(Greater, -1)),
            (GreaterOrEqual, -1, NANOS, all(), TimePredicate::If(Greater, -1)),
            (GreaterOrEqual, -NANOS, NANOS, all(), TimePredicate::If(GreaterOrEqual, -1)),
            (Equal, 1, NANOS, all(), TimePredicate::Never),
            (NotEqual, 1, NANOS, all(), TimePredicate::Always),
            (Distinct, 1, NANOS, all(), TimePredicate::Constant(true)),
            (NotDistinct, 1, NANOS, all(), TimePredicate::Constant(false)),
            (Less, i128::from(i64::MAX) + 1, 1, all(), TimePredicate::Always),
            (GreaterOrEqual, i128::from(i64::MAX) + 1, 1, all(), TimePredicate::Never),
            (Greater, i128::from(i64::MIN) - 1, 1, all(), TimePredicate::Always),
            (LessOrEqual, i128::from(i64::MIN) - 1, 1, all(), TimePredicate::Never),
            (Less, (i128::from(i32::MAX) + 1) * DAY_NANOS, DAY_NANOS, days(), TimePredicate::Always),
            (
                LessOrEqual,
                i128::from(i32::MAX) * DAY_NANOS + 1,
                DAY_NANOS,
                days(),
                TimePredicate::If(LessOrEqual, i32::MAX.into()),
            ),
        ] {
            assert_eq!(op.with(instant, tick, range), expected, "{op:?} {instant} {tick}");
        }
    }
}
