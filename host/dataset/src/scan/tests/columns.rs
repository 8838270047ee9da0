//! Scans of files with different schemas.

use arrow_array::Float32Array;

use super::*;

fn one(name: &str, column: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter([(name, column), ("z", Arc::new(Int32Array::from(vec![1])) as ArrayRef)])
        .expect("a batch")
}

#[test]
fn widths_may_differ_between_files() {
    let folder = Folder::new();
    let narrow = one("k", Arc::new(Int32Array::from(vec![3])));
    let wide = one("k", Arc::new(Int64Array::from(vec![1 << 40])));
    let float = one("k", Arc::new(Float64Array::from(vec![0.5])));
    for (paths, expected) in [
        (
            vec![folder.parquet("a.parquet", &narrow, 10), folder.parquet("b.parquet", &wide, 10)],
            vec!["3", "1099511627776"],
        ),
        (vec![folder.arrow("a.arrow", &narrow, 10), folder.arrow("b.arrow", &wide, 10)], vec!["3", "1099511627776"]),
        (vec![folder.write("a.csv", "k,z\n3,1\n"), folder.write("b.csv", "z,k\n1,0.5\n")], vec!["3.0", "0.5"]),
        (vec![folder.write("a.jsonl", "{\"k\":3}\n"), folder.write("b.jsonl", "{\"k\":0.5}\n")], vec!["3.0", "0.5"]),
        (vec![folder.path_of("a.parquet"), folder.parquet("c.parquet", &float, 10)], vec!["3.0", "0.5"]),
        (vec![folder.path_of("a.csv"), folder.path_of("b.parquet")], vec!["3", "1099511627776"]),
    ] {
        let selection = ScanSource { columns: columns(&["k"]), ..source(paths.clone()) };
        assert_eq!(text(&read(&selection).unwrap_or_else(|e| panic!("{e}"))), expected, "{paths:?}");
        let filtered = ScanSource { filter: Some("k > 2".to_owned()), ..selection };
        assert_eq!(read(&filtered).expect("rows").num_rows(), expected.iter().filter(|k| !k.starts_with('0')).count());
    }
}

#[test]
fn a_filter_sees_the_types_that_all_files_agree_on() {
    let folder = Folder::new();
    let whole = one("k", Arc::new(Int32Array::from(vec![3])));
    let float = one("k", Arc::new(Float32Array::from(vec![3.0])));
    for paths in [
        [folder.parquet("a.parquet", &whole, 10), folder.parquet("b.parquet", &float, 10)],
        [folder.arrow("a.arrow", &whole, 10), folder.arrow("b.arrow", &float, 10)],
        [folder.arrow_stream("c.arrow", &whole), folder.arrow_stream("d.arrow", &float)],
        [folder.write("a.csv", "k,z\n3,1\n"), folder.write("b.csv", "k,z\n3.0,1\n")],
    ] {
        for (filter, expected) in [("k / 2 = 1.5", 2), ("k / 2 = 1", 0)] {
            let source =
                ScanSource { filter: Some(filter.to_owned()), columns: columns(&["z"]), ..source(paths.clone()) };
            assert_eq!(read(&source).expect("rows").num_rows(), expected, "{paths:?}: {filter}");
        }
    }
}

#[test]
fn integers_beyond_float_precision_are_rejected() {
    let folder = Folder::new();
    let float = one("k", Arc::new(Float32Array::from(vec![0.5])));
    let other = folder.parquet("float.parquet", &float, 10);
    let text = folder.write("float.csv", "k,z\n0.5,1\n");
    for (value, fits) in [((1_i64 << 53) - 1, true), (1 << 53, false), ((1 << 53) + 1, false), (-(1 << 60), false)] {
        let whole = one("k", Arc::new(Int64Array::from(vec![value])));
        for (path, other) in [
            (folder.parquet("a.parquet", &whole, 10), &other),
            (folder.arrow("b.arrow", &whole, 10), &other),
            (folder.write("c.csv", format!("k,z\n{value},1\n")), &text),
        ] {
            let both = source([path.clone(), other.clone()]);
            match read(&ScanSource { columns: columns(&["z", "k"]), ..both.clone() }) {
                Ok(_) => assert!(fits, "{path}: {value}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!fits, "{error}");
                    if path.ends_with(".csv") {
                        let expected = format!("can't read {path}, line 2: column `k` has the integer `{value}` here");
                        assert!(error.starts_with(&expected), "{error}");
                    } else {
                        let expected = format!("can't read {path}: column `k` has an integer of about ");
                        assert!(error.starts_with(&expected), "{error}");
                        assert!(error.contains(&format!("and floats in {other}, ")), "{error}");
                    }
                }
            }
            assert!(read(&ScanSource { columns: columns(&["z"]), ..both }).is_ok(), "the column is not requested");
            assert!(read(&source([path])).is_ok(), "no other file");
        }
    }
}

#[test]
fn column_types_must_agree_if_the_column_is_requested() {
    let folder = Folder::new();
    let number = one("k", Arc::new(Int32Array::from(vec![3])));
    let words = one("k", Arc::new(StringArray::from(vec!["three"])));
    let (a, b) = (folder.parquet("a.parquet", &number, 10), folder.parquet("b.parquet", &words, 10));
    let both = source([a.clone(), b.clone()]);
    let advice = "declare its type in [input] types if the files are text, or read the files separately";
    let expected = format!("column `k` is Int32 in {a} but Utf8 in {b}; {advice}");
    for source in [both.clone(), ScanSource { columns: columns(&["k"]), ..both.clone() }] {
        assert_eq!(read(&source).expect_err("an error").to_string(), expected);
    }
    let filtered = ScanSource { filter: Some("k = 3".to_owned()), columns: columns(&["z"]), ..both.clone() };
    assert_eq!(read(&filtered).expect_err("an error").to_string(), expected);
    assert_eq!(text(&read(&ScanSource { columns: columns(&["z"]), ..both }).expect("rows")), ["1", "1"]);
}

#[test]
fn columns_that_are_not_there_are_named_with_those_that_are() {
    let folder = Folder::new();
    let a = folder.parquet("a.parquet", &sample(3), 10);
    let b = folder.write("b.csv", "n,y\n1,2\n");
    let selection = |paths: &[&String], name: &str| {
        let source = ScanSource { columns: columns(&[name]), ..source(paths.iter().map(|p| (*p).clone())) };
        open(&source).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let there = "its columns are `n`, `x`, `s`, `b`";
    assert_eq!(selection(&[&a], "q1"), format!("column `q1` is not in {a}; {there}"));
    assert_eq!(selection(&[&a], "N"), format!("column `N` is not in {a} (did you mean `n`?); {there}"));
    assert_eq!(selection(&[&a, &b], "x"), format!("column `x` is not in {b}; its columns are `n`, `y`"));
    assert_eq!(selection(&[&a, &b], "n"), "");
    let twins = folder.write("twins.csv", "n,n\n1,2\n");
    let failure =
        read(&ScanSource { columns: columns(&["n"]), ..source([twins.clone()]) }).err().map(|e| e.to_string());
    assert!(failure.as_ref().is_some_and(|e| e.contains(&twins)), "{failure:?}");
}

#[test]
fn values_that_come_late_are_kept() {
    let folder = Folder::new();
    let late = |first: &str, then: &str| first.repeat(10_000) + then;
    let csv = |name: &str, lines: String| folder.write(name, format!("k,c\n{lines}"));
    let quoted = folder.write("q.csv", format!("k,\"a \"\"b\"\"\"\n{}", late("1,\n", "2,7\n")));
    for (path, selection, filter, expected) in [
        (folder.write("a.jsonl", late("{\"c\":1}\n", "{\"c\":0.5}\n")), "c", "c < 1", "0.5"),
        (folder.write("b.jsonl", late("{\"c\":null}\n", "{\"c\":7}\n")), "c", "c > 1", "7"),
        (csv("a.csv", late("1,\n", "2,7\n")), "c", "c = 7", "7"),
        (csv("b.csv", late("1,\n", "2,7\n")), "k", "c = 7", "2"),
        (csv("c.csv", late("1,\n", "2,x\n")), "k", "c = 'x'", "2"),
        (csv("d.csv", late("1,\n", "2,true\n")), "k", "c", "2"),
        (quoted, "k", "\"a \"\"b\"\"\" = 7", "2"),
    ] {
        let source =
            ScanSource { filter: Some(filter.to_owned()), columns: columns(&[selection]), ..source([path.clone()]) };
        let rows = read_with(&source, ScanOptions::default()).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(text(&rows), [expected], "{path}");
    }
    let selection = ScanSource { columns: columns(&["c"]), ..source([csv("e.csv", late("1,\n", ""))]) };
    assert_eq!(open(&selection).expect("a scan").schema().field(0).data_type(), &DataType::Null);
}
