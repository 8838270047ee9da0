//! Filters as SQL users write them, and rejected filters.

use arrow_array::{Date32Array, TimestampMicrosecondArray};

use super::*;

/// Returns six rows with nulls, with a column of each common type.
fn people() -> RecordBatch {
    const DAY: i64 = 86_400_000_000;
    let first = 18_262; // 2020-01-01
    let x = vec![Some(1.0), None, Some(3.0), Some(4.0), Some(5.0), Some(6.0)];
    let i = vec![Some(1), Some(2), None, Some(4), Some(5), Some(6)];
    let b = vec![Some(true), Some(false), None, Some(true), Some(true), Some(false)];
    let columns: [(&str, ArrayRef); 8] = [
        ("k", Arc::new(StringArray::from(vec![Some("a"), Some("b"), Some("a"), Some("b"), None, Some("c d")]))),
        ("x", Arc::new(Float64Array::from(x))),
        ("i", Arc::new(Int64Array::from(i))),
        ("z", Arc::new(Float64Array::from_iter_values((0..6).map(f64::from)))),
        ("y", Arc::new(Float64Array::from_iter_values((0..6).map(|n| 2.0 * f64::from(n))))),
        (
            "t",
            Arc::new(TimestampMicrosecondArray::from_iter_values(
                (0..6).map(|d| (i64::from(first) + d) * DAY + d * DAY / 24),
            )),
        ),
        ("d", Arc::new(Date32Array::from_iter_values((0..6).map(|d| first + d)))),
        ("b", Arc::new(BooleanArray::from(b))),
    ];
    let nullable = columns.map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(nullable).expect("a batch")
}

#[test]
#[rustfmt::skip]
fn filters_are_sql() {
    let folder = Folder::new();
    let rows = people();
    let parquet = [folder.parquet("a.parquet", &rows, 10), folder.parquet("b.parquet", &rows, 2)];
    let paths = [&parquet[..], &[folder.arrow("a.arrow", &rows, 4)]].concat();
    let mut wrong = Vec::new();
    for (expected, filter) in [
        (4, "coalesce(x, 0) > 2"),
        (4, "nvl(x, 0) > 2"),
        (4, "ifnull(x, 0) > 2"),
        (1, "nullif(i, 4) IS NULL AND i IS NOT NULL"),
        (1, "nvl2(x, 0, 1) = 1"),
        (5, "x IS DISTINCT FROM 3"),
        (2, "i BETWEEN 4 AND 5"),
        (2, "k IN ('a')"),
        (3, "k NOT IN ('a')"),
        (1, "k LIKE '% %'"),
        (1, "k ILIKE 'C%'"),
        (2, "starts_with(k, 'a')"),
        (1, "length(k) = 3"),
        (1, "upper(k) = 'C D'"),
        (1, "strpos(k, ' ') > 0"),
        (2, "substr(k, 1, 1) = 'b'"),
        (2, "split_part(k, ' ', 1) = 'b'"),
        (3, "b"),
        (2, "NOT b"),
        (3, "b IS NOT TRUE"),
        (3, "CASE WHEN i > 3 THEN true ELSE false END"),
        (6, "greatest(z, 2) >= 2"),
        (4, "least(z, 3) < 3 OR z = 5"),
        (5, "abs(z) > 0"),
        (3, "i % 2 = 0"),
        (2, "z > 3.5"),
        (3, "round(z / 2) >= 2"),
        (2, "t >= '2020-01-05'"),
        (2, "t >= TIMESTAMP '2020-01-05 00:00:00'"),
        (1, "d = '2020-01-03'"),
        (2, "d > DATE '2020-01-04'"),
        (2, "date_part('day', t) > 4"),
        (2, "extract(day from t) > 4"),
        (6, "date_trunc('month', t) = '2020-01-01'"),
        (2, "to_timestamp('2020-01-05') <= t"),
        (2, "t - INTERVAL '4 days' >= '2020-01-01'"),
        (6, "d + INTERVAL '1 month' > DATE '2020-01-31'"),
        (2, "d >= to_date('2020-01-05')"),
        (5, "CAST(i AS DOUBLE) > 0.5"),
        (5, "TRY_CAST(i AS VARCHAR) IS NOT NULL"),
        (5, "i::float > 0"),
        (6, "1 = 1"),
        (0, "false"),
        (0, "i = NULL"),
        (2, "concat(k, 'x') = 'ax'"),
        (2, "k || 'x' = 'ax'"),
        (2, "regexp_like(k, '^b')"),
        (2, "k ~ '^b'"),
        (2, "k SIMILAR TO 'b%'"),
        (1, "isnan(x / NULL) IS NULL AND i = 6"),
        (1, "i = (1 + 5)"),
        (1, "arrow_typeof(i) = 'Int64' AND i = 6"),
        (1, "i = 6 AND arrow_cast(z, 'Int32') = 5"),
        (1, "i = 6.0"),
        (0, "i = 6.5"),
        (1, "i = '6'"),
        (1, "-i < -5"),
        (5, "i IN (1, 2, 4, 5, 6, NULL)"),
        (1, "(i, z) = (6, 5)"),
        // Variations of the filters above.
        (6, ""),
        (6, " \n\t"),
        (0, "NULL"),
        (1, "coalesce(x, i, 0) = 2"),
        (4, "coalesce(nvl(x, NULL), ifnull(NULL, 0)) > 2"),
        (5, "nvl2(x, true, false)"),
        (4, "CASE WHEN coalesce(k, '') IN ('a', 'b') THEN coalesce(b, true) = coalesce(b, true) END"),
        (2, "arrow_try_cast(k, 'Int32') IS NULL AND k = 'a'"),
        (2, "coalesce(k, 'a') BETWEEN 'aa' AND 'c'"),
        (3, "nullif(k, 'a') IS NOT NULL"),
        (2, "left(k, 1) = 'a'"),
        (1, "right(k, 1) = 'd'"),
        (2, "SUBSTRING(k FROM 1 FOR 1) = 'a'"),
        (1, "substring(k, 3) = 'd'"),
        (1, "lpad(k, 4, '*') = '*c d'"),
        (1, "reverse(k) = 'd c'"),
        (1, "initcap(k) = 'C D'"),
        (1, "replace(k, ' ', '') = 'cd'"),
        (1, "regexp_replace(k, ' .*', '') = 'c'"),
        (2, "regexp_count(k, 'b') = 1"),
        (1, "char_length(k) = 3"),
        (1, "position(' ' IN k) = 2"),
        (5, "trim(k) = k"),
        (5, "lower(upper(k)) = k"),
        (1, "ends_with(k, 'd')"),
        (1, "contains(k, ' ')"),
        (3, "k NOT SIMILAR TO 'a'"),
        (1, "k SIMILAR TO '[a-d]_(d|e)+'"),
        (0, "k SIMILAR TO 'c'"),
        (1, "k SIMILAR TO 'c' || ' %'"),
        (0, "k SIMILAR TO NULL"),
        (1, "k LIKE 'c! %' ESCAPE '!'"),
        (0, "k LIKE '!_' ESCAPE '!'"),
        (0, "k LIKE NULL ESCAPE '!'"),
        (5, "k NOT ILIKE 'A!_%' ESCAPE '!'"),
        (0, "k SIMILAR TO '.'"),
        (4, "k SIMILAR TO '_'"),
        (2, "k !~ '^b' AND k <> 'c d'"),
        (3, "k ~* '^(A|C)'"),
        (2, "sqrt(z) = 2 OR power(z, 2) = 25"),
        (1, "floor(z / 2) = 0 AND ceil(z / 2) = 1"),
        (2, "z >= pi() + 0.5"),
        (6, "date_part('year', d) = 2020 AND extract(month from d) = 1"),
        (2, "date_trunc('day', t) >= TIMESTAMP '2020-01-05'"),
        (3, "date_bin(INTERVAL '2 days', t, TIMESTAMP '2020-01-01') = '2020-01-01' OR i = 6"),
        (1, "to_char(d, '%d') = '06'"),
        (2, "d BETWEEN '2020-01-02' AND '2020-01-03'"),
        (2, "CAST(t AS DATE) >= DATE '2020-01-05'"),
        (2, "t::date IN (DATE '2020-01-05', '2020-01-06')"),
        (3, "b IS TRUE"),
        (1, "b IS UNKNOWN"),
        (5, "b = b"),
        (3, "b <> false"),
        (2, "z IN (4, 5.0)"),
        (2, "k = 'a' -- those of a"),
        (2, "UPPER(k) = 'A'"),
        (1, "CASE k WHEN 'c d' THEN true END"),
        (3, "(b OR i = 2) AND NOT (k = 'a' AND z = 0)"),
    ] {
        for path in &paths {
            let filter_text = Some(filter.to_owned());
            let source = ScanSource { filter: filter_text, columns: columns(&["z"]), ..source([path.clone()]) };
            match read(&source) {
                Ok(found) if found.num_rows() == expected => {}
                Ok(found) => wrong.push(format!("{path}: {filter}: {expected} rows, not {:?}", text(&found))),
                Err(error) => wrong.push(format!("{path}: {filter}: {error}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsupported_filters_are_rejected_by_name() {
    let folder = Folder::new();
    let path = folder.parquet("a.parquet", &people(), 10);
    let there = "its columns are `k`, `x`, `i`, `z`, `y`, `t`, `d`, `b`";
    let mut wrong = Vec::new();
    for (filter, expected) in [
        ("z >", "Expected: an expression, found: EOF".to_owned()),
        ("z > 1 AND (k = 'a'", "Expected: ), found: EOF".to_owned()),
        ("z > 1 z < 2", "Expected: end of expression, found: z".to_owned()),
        ("z > 1 AS x", "`x` follows a complete expression; join conditions by AND or OR".to_owned()),
        ("z > 1; DROP TABLE x", "Expected: end of expression, found: ;".to_owned()),
        ("Z > 1", format!("column `Z` is not in the input (did you mean `z`?); {there}")),
        ("kk = 1 OR z > 1", format!("column `kk` is not in the input; {there}")),
        ("k = \"a\"", format!("column `a` is not in the input; {there}; text literals need single quotes: 'a'")),
        ("z + 1", "it has type Float64, but must be boolean".to_owned()),
        ("k", "it has type Utf8, but must be boolean".to_owned()),
        ("z > 1 AND nope(z)", "no function is named `nope`".to_owned()),
        ("uper(k) = 'A'", "no function is named `uper` (did you mean `upper`?)".to_owned()),
        ("a.b(k)", "no function is named `a.b`".to_owned()),
        ("a.k = 'a'", format!("column `a.k` is not in the input; {there}; columns in a filter need no `a.` prefix")),
        ("k RLIKE 'a'", "RLIKE is not supported; write `text ~ 'regular expression'`".to_owned()),
        ("i = ANY(ARRAY[1, 2])", "a part of it is not supported in filters".to_owned()),
        ("k LIKE k ESCAPE '!'", "the pattern of LIKE with ESCAPE must be a constant, but `k` is not".to_owned()),
        ("i > 9223372036854775807 + 1", "`".to_owned()),
        ("sum(z) > 3", "a filter is about one row: `sum` is an aggregate".to_owned()),
        ("count(*) > 3", "a filter is about one row: `count` is an aggregate".to_owned()),
        ("NOT (z > 1 AND MAX(z) > 3)", "a filter is about one row: `max` is an aggregate".to_owned()),
        (
            "row_number() OVER (ORDER BY z) < 3",
            "a filter is about one row: `row_number` is a window function".to_owned(),
        ),
        ("sum(z) OVER () > 3", "a filter is about one row: `sum` is a window function".to_owned()),
        (
            "z IN (SELECT 1)",
            "a filter is about one row: `z IN (SELECT 1)` is a subquery; list the values instead, as in `x IN (1, 2)`"
                .to_owned(),
        ),
        ("EXISTS (SELECT 1 FROM x)", "a filter is about one row: `EXISTS (SELECT 1 FROM x)` is a subquery".to_owned()),
        ("z > (SELECT max(z) FROM y)", "a filter is about one row: `(SELECT max(z) FROM y)` is a subquery".to_owned()),
        ("z > ALL (SELECT 1)", "a filter is about one row: `".to_owned()),
        ("z > $1", "`$1` is a placeholder; write the value in its place".to_owned()),
        ("z > ?", "`?` is a placeholder; write the value in its place".to_owned()),
        ("z > 1 AND now() > '2020-01-01'", "a filter may depend on the row alone, but `now`".to_owned()),
        ("random() < z", "a filter may depend on the row alone, but `random`".to_owned()),
        ("length(uuid()) > z", "a filter may depend on the row alone, but `uuid`".to_owned()),
        ("k SIMILAR TO k", "the pattern of SIMILAR TO must be a constant, but `k` is not; ".to_owned()),
        ("k SIMILAR TO '[a'", "the pattern `[a` has a `[` without its `]`".to_owned()),
        ("k ~ '('", "a regular expression does not compile: unclosed group".to_owned()),
        ("t > 'yesterday'", "`yesterday` is not a time; write it as 2020-01-31 or ".to_owned()),
        ("t > TIMESTAMP '2020-13-01'", "`2020-13-01` is not a time; write it as ".to_owned()),
        ("d > '2020-13-01'", "".to_owned()),
        ("i > CAST('six' AS INT)", "`CAST('six' AS Int32)` can't be evaluated: Cannot cast".to_owned()),
        ("z > 1 AND 1 / 0 = 1", "".to_owned()),
        ("t > 5", "".to_owned()),
    ] {
        let source = ScanSource { filter: Some(filter.to_owned()), ..source([path.clone()]) };
        let error = open(&source).err().unwrap_or_else(|| panic!("accepted: {filter}"));
        assert_eq!(error.code(), sandbar_core::Code::Columns, "{error}");
        let error = error.to_string();
        let expected = format!("filter `{filter}`: {expected}");
        let is_clean = ["DataFusion", "bug", "ternal", "can't read"].iter().all(|word| !error.contains(word));
        if !error.starts_with(&expected) || !is_clean {
            wrong.push(format!("{error}\n  not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn long_filters_end_no_thread() {
    let folder = Folder::new();
    let path = folder.parquet("a.parquet", &people(), 10);
    let repeated = |first: &str, again: &str, last: &str| {
        let count = (4096 - first.len() - last.len()) / again.len();
        format!("{first}{}{last}", again.repeat(count))
    };
    let nested = |open: &str, within: &str, close: &str, depth: usize| {
        format!("{}{within}{}", open.repeat(depth), close.repeat(depth))
    };
    let mut wrong = Vec::new();
    for (filter, is_read) in [
        (repeated("z > 0", " OR z = 1", ""), true),
        (repeated("z > 0", " AND z > 0", ""), true),
        (repeated("b", " OR b", ""), true),
        (repeated("NOT b", " OR NOT b", ""), true),
        (repeated("b", "=b", ""), false),
        (repeated("z", "+z", " > 0"), false),
        (repeated("i", "|i", " > 0"), false),
        (repeated("z", "-0", " > 0"), false),
        (repeated("k", "||k", " = 'a'"), false),
        (format!("z{} > 0", "+z".repeat(250)), true),
        (repeated("t IN ('2020-01-01'", ",'2020-01-01'", ")"), true),
        (repeated("z IN (1", ",2", ")"), true),
        (repeated("CASE", " WHEN b THEN b", " END"), true),
        (repeated("coalesce(b", ",b", ")"), true),
        (nested("(", "b", ")", 20), true),
        (nested("(", "b", ")", 2_000), false),
        (nested("coalesce(", "b", ",b)", 300), false),
        (format!("{} > 0", nested("abs(", "z", ")", 600)), false),
        (" ".repeat(5_000), true),
    ] {
        let source = ScanSource { filter: Some(filter.clone()), ..source([path.clone()]) };
        let read = read_with(&source, ScanOptions::default());
        let reason = read.as_ref().err().map(ToString::to_string).unwrap_or_default();
        if read.is_ok() != is_read || (reason.contains("nests deeper than") == is_read) {
            wrong.push(format!("{}…: {reason}", &filter[..filter.len().min(40)]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let source = ScanSource { filter: Some(nested("NOT ", "b", "", 1_000)), ..source([path]) };
    assert!(open(&source).is_err(), "it nests deeper than others");
}

#[test]
fn a_filter_that_is_too_long_is_refused() {
    let folder = Folder::new();
    let path = folder.parquet("a.parquet", &people(), 10);
    let long = ScanSource { filter: Some(format!("b{}", " ".repeat(4_096))), ..source([path]) };
    let error = open(&long).err().expect("an error").to_string();
    assert_eq!(error, "length of the filter in bytes is 4097, over the limit of 4096");
}

#[test]
fn a_row_that_a_filter_has_no_value_for_is_the_filters_fault() {
    let folder = Folder::new();
    let path = folder.parquet("a.parquet", &people(), 2);
    for (filter, row, expected) in [
        ("CAST(k AS INT) > 1", "k=a", "Cannot cast string 'a' to value of Int32 type; TRY_CAST gives null where"),
        ("10 / CAST(z AS INT) > 1 AND x = 1", "x=1.0, z=0.0", "Divide by zero error"),
        ("i + 9223372036854775807 > 0", "i=1", "Arithmetic overflow"),
        ("i * 9223372036854775807 > 0", "i=2", "Arithmetic overflow"),
        ("k = 'a' OR k > TIMESTAMP '2020-01-01'", "k=b", "`b` is not a time; write it as"),
    ] {
        let source = ScanSource { filter: Some(filter.to_owned()), ..source([path.clone()]) };
        let error = read(&source).expect_err("an error").to_string();
        let expected = format!("filter `{filter}`: it has no value for the row with {row} of {path}: {expected}");
        assert!(error.starts_with(&expected), "{error}\n{expected}");
    }
}
