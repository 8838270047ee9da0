//! CSV and JSON: values are not changed unless the user declares another type.

use std::io::Write as _;

use super::*;

fn options(change: impl FnOnce(&mut TextSpec)) -> TextOptions {
    let mut spec = TextSpec::default();
    change(&mut spec);
    TextOptions::new(&spec).expect("options")
}

fn types(pairs: &[(&str, &str)]) -> TextOptions {
    options(|spec| spec.types = pairs.iter().map(|(c, t)| ((*c).to_owned(), (*t).to_owned())).collect())
}

fn with(path: &str, text: TextOptions) -> ScanSource {
    ScanSource { text, ..source([path.to_owned()]) }
}

/// Returns the rows of a file and its types, or the error without the file's name.
fn found(path: &str, source: &ScanSource) -> Result<(Vec<String>, Vec<DataType>), String> {
    match read(source) {
        Ok(rows) => Ok((text(&rows), rows.schema().fields().iter().map(|f| f.data_type().clone()).collect())),
        Err(error) => Err(error.to_string().replace(&format!("can't read {path}"), "")),
    }
}

#[test]
fn the_first_text_value_of_a_column_is_named() {
    let folder = Folder::new();
    let path = folder.write("a.csv", "k,x,\"a b\"\n1,2,3\n2,n/a,4\n3,?,x y\n");
    let scan = open(&source([path.clone()])).expect("a scan");
    let explained = |column: &str, data_type: &str| {
        let (role, reason) = ("feature".to_owned(), "but must be a number".to_owned());
        let (column, data_type) = (column.to_owned(), data_type.to_owned());
        block_on(scan.explain(DatasetError::ColumnType { role, column, data_type, reason })).to_string()
    };
    for (column, data_type, expected) in [
        ("x", "Utf8", Some(("line 3 has `n/a`", "types = { x = \"float64\" }"))),
        ("a b", "Utf8", Some(("line 4 has `x y`", "types = { \"a b\" = \"float64\" }"))),
        // A column that a transform made text, and a column of another type.
        ("k", "Utf8", None),
        ("x", "Binary", None),
    ] {
        let message = explained(column, data_type);
        match expected {
            Some((place, remedy)) => {
                assert!(
                    message.contains(&format!("must be a number; {path}, {place}")) && message.ends_with(remedy),
                    "{message}"
                );
            }
            None => assert!(message.ends_with("must be a number"), "{message}"),
        }
    }
}

#[test]
fn values_keep_their_written_form() {
    use DataType::{Boolean, Float64, Int64, UInt64, Utf8};
    let folder = Folder::new();
    for (values, data_type, expected) in [
        (&["01234", "1234", "00501"][..], Utf8, None),
        (&["18446744073709551614", "18446744073709551615"], UInt64, None),
        (&["9223372036854775807", "-9223372036854775808"], Int64, None),
        (&["18446744073709551616", "1"], Utf8, None),
        (&["-1", "18446744073709551615"], Utf8, None),
        (&["+5", "5"], Utf8, None),
        (&["1e400", "1"], Utf8, None),
        (&["0.50", "1"], Float64, Some(&["0.5", "1.0"][..])),
        (&["-0", "1"], Float64, Some(&["-0.0", "1.0"])),
        (&["1_000", "0x10"], Utf8, None),
        (&["NaN", "1.5"], Float64, None),
        (&["True", "FALSE"], Boolean, Some(&["true", "false"])),
        (&["yes", "true"], Utf8, None),
        (&["1e5", "1e6"], Float64, Some(&["100000.0", "1000000.0"])),
        (&["2019-02-30", "2019-02-28"], Utf8, None),
        (&["\"1,000\"", "\"2,000\""], Utf8, Some(&["1,000", "2,000"])),
        (&["a\0b", "\u{feff}c"], Utf8, None),
        (&[" 5", "5"], Utf8, None),
        (&["'5", "=1+1"], Utf8, None),
    ] {
        let lines: String = values.iter().map(|value| format!("{value},1\n")).collect();
        let path = folder.write("a.csv", format!("k,x\n{lines}"));
        let selection = ScanSource { columns: columns(&["k"]), ..source([path.clone()]) };
        let expected: Vec<String> = expected.unwrap_or(values).iter().map(|value| (*value).to_owned()).collect();
        assert_eq!(found(&path, &selection), Ok((expected, vec![data_type])), "{values:?}");
    }
}

#[test]
fn whole_numbers_beyond_floats_beside_fractions_are_refused_by_name() {
    let folder = Folder::new();
    let keys = ["1", "9007199254740992", "9007199254740993", "0.5"];
    let csv = folder.write("a.csv", format!("id,x\n{}", keys.map(|key| format!("{key},1\n")).concat()));
    let json = keys.map(|key| format!("{{\"id\": {key}, \"x\": 1}}\n")).concat();
    let json = folder.write("a.jsonl", json);
    for (path, line) in [(&csv, 3), (&json, 2)] {
        let expected = format!(
            ", line {line}: column `id` has the integer `9007199254740992` and elsewhere the number `0.5`; floats \
             can't represent all integers from 2^53 on; declare its type, as in [input] types = {{ id = \"utf8\" }}"
        );
        assert_eq!(found(path, &with(path, TextOptions::default())), Err(expected));
        let ids = ScanSource { columns: columns(&["id"]), ..with(path, types(&[("id", "utf8")])) };
        assert_eq!(found(path, &ids).expect("rows").0, keys);
        let ids = ScanSource { columns: columns(&["id"]), ..with(path, types(&[("id", "float64")])) };
        assert_eq!(found(path, &ids).expect("rows").0[0], "1.0");
        assert!(
            read(&ScanSource { columns: columns(&["x"]), ..source([path.clone()]) }).is_ok(),
            "the column is not requested"
        );
    }
}

#[test]
fn a_type_that_changes_late_is_read() {
    let folder = Folder::new();
    let lines = |last: &str| format!("k,y\n{}{last}\n", (0..12_000).map(|n| format!("{n},{n}\n")).collect::<String>());
    for (last, filter, expected) in
        [("1,2.5", "y = 2.5", "1"), ("A7,2", "k = 'A7'", "A7"), ("007,2", "k = '007'", "007")]
    {
        let path = folder.write("a.csv", lines(last));
        let selection = ScanSource { columns: columns(&["k"]), filter: Some(filter.into()), ..source([path]) };
        assert_eq!(text(&read_with(&selection, ScanOptions::default()).expect("rows")), [expected]);
    }
}

#[test]
fn a_value_that_no_longer_fits_is_named() {
    let folder = Folder::new();
    // Longer than the part of the file that types are inferred from.
    let line = format!("7,{}\n", "x".repeat(100_000));
    let head = "k,s\n".to_owned() + &line.repeat(700);
    for (last, shown) in [("A7,z", "A7"), ("07,z", "07"), ("1.5,z", "1.5")] {
        let path = folder.write("a.csv", format!("{head}{last}\n"));
        let selection = ScanSource { columns: columns(&["k"]), ..source([path.clone()]) };
        let error = read_with(&selection, ScanOptions::default()).expect_err("an error").to_string();
        let expected = format!(
            "can't read {path}, line 702: `{shown}` in column `k` is not in the canonical form of Int64, unlike the \
             values that its type was inferred from; declare the column's type, as in [input] types = {{ k = \"utf8\" }}"
        );
        assert_eq!(error, expected);
        let text = types(&[("k", "utf8")]);
        assert_eq!(read_with(&ScanSource { text, ..selection }, ScanOptions::default()).expect("rows").num_rows(), 701);
    }
}

#[test]
fn text_is_text_in_all_files_of_csv() {
    let folder = Folder::new();
    let paths = [
        folder.write("a.csv", "zip,x\n1234,1\n"),
        folder.write("b.csv", "zip,x\n01234,2\n"),
        folder.write("c.tsv", "zip\tx\n99999\t3\n"),
    ];
    let selection = ScanSource { columns: columns(&["zip"]), ..source(paths.clone()) };
    assert_eq!(text(&read(&selection).expect("rows")), ["1234", "01234", "99999"]);
    // Types are inferred from all files together.
    for (values, data_type, expected) in [
        (["7", "18446744073709551615"], DataType::UInt64, ["7", "18446744073709551615"]),
        (["-7", "18446744073709551615"], DataType::Utf8, ["-7", "18446744073709551615"]),
        (["2019-01-31", "2019-01-31 00:00:00.5"], DataType::Timestamp(arrow_schema::TimeUnit::Millisecond, None), {
            ["2019-01-31T00:00:00", "2019-01-31T00:00:00.500"]
        }),
        (
            ["2019-01-31T10:00:00Z", "2019-01-31T10:00:00.5+02:00"],
            DataType::Timestamp(arrow_schema::TimeUnit::Millisecond, Some("UTC".into())),
            ["2019-01-31T10:00:00Z", "2019-01-31T08:00:00.500Z"],
        ),
        (["true", "7"], DataType::Utf8, ["true", "7"]),
        (["1", "1.5"], DataType::Float64, ["1.0", "1.5"]),
    ] {
        let paths = [("a.csv", values[0]), ("b.csv", values[1])]
            .map(|(name, value)| folder.write(name, format!("zip,x\n{value},1\n")));
        let rows = read(&ScanSource { paths: paths.to_vec(), ..selection.clone() }).expect("rows");
        assert_eq!(
            (rows.schema().field(0).data_type(), text(&rows)),
            (&data_type, expected.map(str::to_owned).to_vec())
        );
        let json = |value: &str| value.parse::<f64>().is_ok().then(|| format!("{{\"zip\": {value}}}\n"));
        let [Some(first), Some(second)] = values.map(json) else { continue };
        let paths = [folder.write("a.jsonl", first), folder.write("b.jsonl", second)];
        let rows = read(&ScanSource { paths: paths.to_vec(), ..selection.clone() }).expect("rows");
        assert_eq!(
            (rows.schema().field(0).data_type(), text(&rows)),
            (&data_type, expected.map(str::to_owned).to_vec())
        );
    }
    let json = folder.write("d.jsonl", "{\"zip\": \"1234\"}\n");
    let error = read(&ScanSource { paths: [folder.write("e.csv", "zip\n12\n"), json].to_vec(), ..selection })
        .expect_err("an error");
    assert!(error.to_string().starts_with("column `zip` is Utf8 in "), "{error}");
}

#[test]
fn declared_text_options_apply() {
    let folder = Folder::new();
    type Change<'a> = &'a dyn Fn(&mut TextSpec);
    type Case<'a> = (&'a str, Change<'a>, Result<&'a [&'a str], &'a str>);
    let cases: [Case<'_>; 16] = [
        ("k;x\n1,5;2\n", &|s| s.delimiter = Some(";".into()), Ok(&["1,5|2"])),
        ("k\tx\n1\t2\n", &|s| s.delimiter = Some("\t".into()), Ok(&["1|2"])),
        ("1,a\n2,b\n", &|s| s.header = Some(false), Ok(&["1|a", "2|b"])),
        ("k,x\n'a,b',2\n", &|s| s.quote = Some("'".into()), Ok(&["a,b|2"])),
        ("k,x\n\"a,2\n", &|s| s.quote = Some("".into()), Ok(&["\"a|2"])),
        ("# it's\nk,x\n#no,\"rows\n1,2\n", &|s| s.comment = Some("#".into()), Ok(&["1|2"])),
        ("k,x\nNA,1\n-,2\n,3\n", &|s| s.null_values = Some(vec!["NA".into(), "-".into(), "".into()]), {
            Ok(&["|1", "|2", "|3"])
        }),
        ("k,x\nNA,1\n,2\n", &|s| s.null_values = Some(vec!["NA".into()]), Ok(&["|1", "|2"])),
        ("k,x\n007,1\n", &|s| _ = s.types.insert("k".into(), "int64".into()), Ok(&["7|1"])),
        ("k,x\n1.50,1\n", &|s| _ = s.types.insert("k".into(), "decimal128(10, 2)".into()), Ok(&["1.50|1"])),
        ("k,x\n1.555,1\n", &|s| _ = s.types.insert("k".into(), "decimal128(10, 2)".into()), {
            Err(", line 2: `1.555` in column `k` is not a valid Decimal128(10, 2), the type declared in `input.types`")
        }),
        ("k,x\n2019-01-02 03:04:05,1\n", &|s| _ = s.types.insert("k".into(), "timestamp[us]".into()), {
            Ok(&["2019-01-02T03:04:05|1"])
        }),
        (
            "k,x\n1,1\n",
            &|s| _ = s.types.insert("q".into(), "utf8".into()),
            Err("column of `input.types` `q` is not in "),
        ),
        ("k,x\n1,1\n\n2,\"x\n", &|_| (), Err(", line 4: a quote in the line is not closed")),
        ("k,x\r1,2\r3,4\r", &|_| (), Ok(&["1|2", "3|4"])),
        ("k,x\n1,2\n3\n", &|_| (), Err(", line 3: the line has 1 values, but the first has 2")),
    ];
    for (content, change, expected) in cases {
        let path = folder.write("a.csv", content);
        match (found(&path, &with(&path, options(change))), expected) {
            (Ok((rows, _)), Ok(expected)) => assert_eq!(rows, expected, "{content:?}"),
            (Err(error), Err(expected)) => assert!(error.starts_with(expected), "{content:?}: {error}"),
            (found, expected) => panic!("{content:?}: {found:?}, not {expected:?}"),
        }
    }
    // Parquet files state their types.
    let path = folder.parquet("a.parquet", &sample(3), 10);
    let error = read(&with(&path, types(&[("n", "utf8")]))).expect_err("an error").to_string();
    assert!(
        error.contains("column `n` is Int64 here, but Utf8 in `input.types`, which is for text files only"),
        "{error}"
    );
    assert!(read(&with(&path, types(&[("n", "int64")]))).is_ok());
}

#[test]
fn headers_may_be_odd() {
    let folder = Folder::new();
    for (header, names, expected) in [
        ("\"a b\",\"x\"\"y\"", &["a b", "x\"y"][..], Ok(&["1|2"][..])),
        ("\"a\nb\",c", &["a\nb"], Ok(&["1"])),
        (",k", &["k"], Ok(&["2"])),
        ("k,k", &["k"], Err("two of its columns are named `k`")),
        ("ü,k", &["ü"], Ok(&["1"])),
        (" k ,x", &[" k "], Ok(&["1"])),
        ("\u{feff}k,x", &["k"], Ok(&["1"])),
    ] {
        let path = folder.write("a.csv", format!("{header}\n1,2\n"));
        let selection = ScanSource { columns: columns(names), ..source([path.clone()]) };
        match (found(&path, &selection), expected) {
            (Ok((rows, _)), Ok(expected)) => assert_eq!(rows, expected, "{header:?}"),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{header:?}: {error}"),
            (found, _) => panic!("{header:?}: {found:?}"),
        }
    }
    let path = folder.write("a.csv", "k,k,x\n1,2,3\n");
    assert_eq!(text(&read(&ScanSource { columns: columns(&["x"]), ..source([path]) }).expect("rows")), ["3"]);
    let twins = RecordBatch::try_new(
        Arc::new(Schema::new(
            ["k", "k", "x"].map(|name| arrow_schema::Field::new(name, DataType::Int64, true)).to_vec(),
        )),
        vec![Arc::new(Int64Array::from(vec![1])) as ArrayRef; 3],
    );
    let twins = folder.arrow("a.arrow", &twins.expect("a batch"), 10);
    let selection = ScanSource { columns: columns(&["x"]), filter: Some("x > 0".into()), ..source([twins]) };
    assert_eq!(text(&read(&selection).expect("rows")), ["1"]);
}

#[test]
fn unused_json_fields_do_not_matter() {
    let folder = Folder::new();
    let lines = |odd: [&str; 3]| -> String { odd.map(|odd| format!("{{\"k\":1,\"log\":{odd},\"x\":2}}\n")).concat() };
    for odd in [
        ["[1]", "[1, {}]", "[]"],
        ["7", "{\"a\": 1}", "\"x\""],
        ["NaN", "-", "01"],
        ["\"\\ud800\"", "\"\\q\"", "null"],
        ["9007199254740993", "0.5", "1e999"],
        ["1, \"log\": 2", "3", "true"],
        ["[1,, 2]", "{1: 2}", "[[[[]]]]"],
    ] {
        let path = folder.write("a.jsonl", lines(odd));
        let selection = ScanSource { columns: columns(&["x", "k"]), ..source([path.clone()]) };
        assert_eq!(found(&path, &selection).expect("rows").0, ["2|1"; 3], "{odd:?}");
    }
    let mut latin = b"{\"k\":1,\"log\":\"".to_vec();
    latin.extend(b"\xff\"}\n");
    let path = folder.write("b.jsonl", &latin);
    assert_eq!(text(&read(&ScanSource { columns: columns(&["k"]), ..source([path.clone()]) }).expect("rows")), ["1"]);
    let error = found(&path, &source([path.clone()])).expect_err("an error");
    assert_eq!(error, ", line 1: `\u{fffd}` is not UTF-8; declare the encoding, as in [input] encoding = \"latin-1\"");
    let path = folder.write("c.csv", b"k,s\n1,\xff\n");
    assert_eq!(text(&read(&ScanSource { columns: columns(&["k"]), ..source([path.clone()]) }).expect("rows")), ["1"]);
    let error = found(&path, &source([path.clone()])).expect_err("an error");
    assert!(error.starts_with(", line 2: `\u{fffd}` is not UTF-8; declare the encoding"), "{error}");
}

#[test]
fn json_values_keep_their_types() {
    use DataType::{Float64, UInt64, Utf8};
    let folder = Folder::new();
    let list = |item| DataType::List(Arc::new(arrow_schema::Field::new_list_field(item, true)));
    for (values, data_type, expected) in [
        (
            &["18446744073709551614", "18446744073709551615"][..],
            UInt64,
            &["18446744073709551614", "18446744073709551615"][..],
        ),
        (&["\"01\"", "\"1\""], Utf8, &["01", "1"]),
        (&["\"\"", "null"], Utf8, &["", ""]),
        (&["123456789012345678901", "1"], Utf8, &["123456789012345678901", "1"]),
        (&["1", "2.5"], Float64, &["1.0", "2.5"]),
        (&["\"a\\u00fc\\n\\ud834\\udd1e\"", "\"\\\"\""], Utf8, &["aü\n𝄞", "\""]),
        (&["[1, 2]", "[]"], list(DataType::Int64), &["[1, 2]", "[]"]),
        (&["[18446744073709551615]", "null"], list(UInt64), &["[18446744073709551615]", ""]),
        (&["[\"a\"]", "[null]"], list(Utf8), &["[a]", "[]"]),
        (
            &["{\"a\": 1}", "{\"b\": \"x\"}"],
            {
                let members = [("a", DataType::Int64), ("b", Utf8)];
                DataType::Struct(
                    members.map(|(name, field_type)| arrow_schema::Field::new(name, field_type, true)).to_vec().into(),
                )
            },
            &["{a: 1, b: }", "{a: , b: x}"],
        ),
    ] {
        let path = folder.write("a.jsonl", values.iter().map(|v| format!("{{\"k\": {v}}}\n")).collect::<String>());
        let (rows, types) = found(&path, &source([path.clone()])).unwrap_or_else(|e| panic!("{values:?}: {e}"));
        assert_eq!((rows, types), (expected.iter().map(|v| (*v).to_owned()).collect(), vec![data_type]), "{values:?}");
    }
    for (values, expected) in [
        (["7", "\"7\""], "column `k` is text here, but a number before"),
        (["true", "1"], "column `k` is a number here, but `true` or `false` before"),
        (["{}", "[]"], "column `k` is a list here, but an object before"),
        (["[9007199254740993]", "[0.5]"], "column `k` has the integer `9007199254740993` and elsewhere"),
    ] {
        let path = folder.write("a.jsonl", values.map(|v| format!("{{\"k\": {v}}}\n")).concat());
        let error = found(&path, &source([path.clone()])).expect_err("an error");
        assert!(error.contains(expected) && error.contains("types = { k = \"utf8\" }"), "{values:?}: {error}");
        let (rows, _) = found(&path, &with(&path, types(&[("k", "utf8")]))).expect("rows");
        assert_eq!(rows, values.map(|value| value.trim_matches('"').to_owned()));
    }
    let pretty = folder.write("b.json", "{\n  \"k\": 1\n}\n{\n  \"k\": 2\n}\n".repeat(100));
    assert_eq!(read(&source([pretty])).expect("rows").num_rows(), 200);
}

#[test]
fn encodings_and_compressions_are_read() {
    let folder = Folder::new();
    let csv = "näme,x\n\"日\n本\",1\nb,2\n";
    let json = "{\"näme\":\"日\\n本\",\"x\":1}\n{\"näme\":\"b\",\"x\":2}\n";
    let expected = ["日\n本|1", "b|2"];
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let plain = |bytes: Vec<u8>| bytes;
    type Pack = fn(Vec<u8>) -> Vec<u8>;
    let gzip: Pack = |bytes| {
        let mut packed = Vec::new();
        // Two gzip members, as written by `cat a.gz b.gz`.
        for half in [&bytes[..bytes.len() / 2], &bytes[bytes.len() / 2..]] {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            writer.write_all(half).expect("written");
            packed.extend(writer.finish().expect("packed"));
        }
        packed
    };
    let zstd: Pack = |bytes| ::zstd::stream::encode_all(&bytes[..], 3).expect("packed");
    let bzip2: Pack = |bytes| {
        let mut writer = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::default());
        writer.write_all(&bytes).expect("written");
        writer.finish().expect("packed")
    };
    let xz: Pack = |bytes| {
        let mut writer = liblzma::write::XzEncoder::new(Vec::new(), 6);
        writer.write_all(&bytes).expect("written");
        writer.finish().expect("packed")
    };
    for (extension, pack) in [("", plain as Pack), (".gz", gzip), (".zst", zstd), (".bz2", bzip2), (".XZ", xz)] {
        for (name, content) in [("a.csv", csv), ("a.tsv", &csv.replace(',', "\t")), ("a.jsonl", json), ("a.json", json)]
        {
            for (marked, encoding) in [
                (content.as_bytes().to_vec(), None),
                (format!("\u{feff}{content}").into_bytes(), None),
                (utf16(&format!("\u{feff}{content}")), None),
                (utf16(content), Some("utf-16")),
            ] {
                let path = folder.write(&format!("{name}{extension}"), pack(marked));
                let text = options(|spec| spec.encoding = encoding.map(str::to_owned));
                let found = found(&path, &with(&path, text)).unwrap_or_else(|e| panic!("{path} {encoding:?}: {e}"));
                assert_eq!(found.0, expected, "{path} {encoding:?}");
                fs::remove_file(path).expect("a file");
            }
        }
        let many: String = (0..200_000).map(|n| format!("{n},\"x\ny\"\n")).collect();
        let path = folder.write(&format!("many.csv{extension}"), pack(format!("k,s\n{many}").into_bytes()));
        let selection = ScanSource { columns: columns(&["k"]), ..source([path.clone()]) };
        assert_eq!(read_with(&selection, ScanOptions::default()).expect("rows").num_rows(), 200_000, "{path}");
        let bad = folder.write(&format!("bad.csv{extension}"), pack(format!("k,s\n{many}z,\n").into_bytes()));
        let selection = with(&bad, types(&[("k", "int64")]));
        let error = read_with(&selection, ScanOptions::default()).expect_err("an error").to_string();
        assert!(
            error.starts_with(&format!("can't read {bad}, line 400002: `z` in column `k` is not a valid Int64")),
            "{error}"
        );
        let whole = fs::read(&path).expect("a file");
        let half = folder.write(&format!("half.csv{extension}"), &whole[..whole.len() / 2]);
        let error =
            read_with(&ScanSource { columns: columns(&["k"]), ..source([half.clone()]) }, ScanOptions::default());
        assert!(error.is_err() || extension.is_empty(), "half of {path} was read");
    }
    let latin = folder.write("latin.csv", b"n\xe4me,x\n\xfc,1\n");
    let text = options(|spec| spec.encoding = Some("latin-1".to_owned()));
    assert_eq!(found(&latin, &with(&latin, text.clone())).expect("rows").0, ["ü|1"]);
    let latin = folder.write("latin.jsonl", b"{\"k\":\"\xfc\"}\n");
    assert_eq!(found(&latin, &with(&latin, text)).expect("rows").0, ["ü"]);
}

#[test]
fn highly_compressed_text_is_read_in_bounded_memory() {
    let folder = Folder::new();
    // 1 GiB in one line, compressed to a few hundred kilobytes.
    let mut writer = ::zstd::stream::write::Encoder::new(Vec::new(), 3).expect("a writer");
    writer.write_all(b"k\n").expect("written");
    (0..1024).for_each(|_| writer.write_all(&vec![b'7'; 1 << 20]).expect("written"));
    let path = folder.write("a.csv.zst", writer.finish().expect("packed"));
    let error = open(&source([path.clone()])).err().expect("an error").to_string();
    assert_eq!(
        error,
        format!("can't read {path}, line 2: the record that starts in the line does not end within 64 MiB")
    );
}

#[test]
fn encrypted_files_are_called_so() {
    let folder = Folder::new();
    let path = folder.parquet("plain.parquet", &sample(3), 10);
    assert!(read(&source([path.clone()])).is_ok());
    // A plain footer that ends with the encryption algorithm and is followed by a signature.
    let whole = fs::read(&path).expect("a file");
    let (rest, len) =
        (&whole[..whole.len() - 8], u32::from_le_bytes(whole[whole.len() - 8..][..4].try_into().expect("a length")));
    let (data, footer) = rest.split_at(rest.len() - len as usize);
    let footer = [&footer[..footer.len() - 1], &[0x1c_u8, 0x1c, 0x00, 0x00, 0x00], &[7; 28]].concat();
    let plain_footer = [data, &footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat();
    for bytes in [[&whole[..whole.len() - 4], b"PARE"].concat(), plain_footer] {
        let path = folder.write("a.parquet", bytes);
        let error = open(&source([path.clone()])).err().expect("an error").to_string();
        assert_eq!(
            error,
            format!("can't read {path}: it is encrypted, and encrypted files are not supported; decrypt it first")
        );
    }
}
