//! Scans of damaged and mislabelled files.

use datafusion::arrow::ipc::CompressionType;
use datafusion::arrow::ipc::writer::IpcWriteOptions;
use parquet::file::metadata::{ColumnChunkMetaDataBuilder, ParquetMetaDataReader, ParquetMetaDataWriter};

use super::*;

fn error_of(source: &ScanSource, options: ScanOptions) -> String {
    match read_with(source, options) {
        Err(error) => {
            assert_eq!(error.code(), sandbar_core::Code::Input, "{error}");
            error.to_string()
        }
        Ok(_) => panic!("{source:?} was read"),
    }
}

#[test]
fn truncated_and_overwritten_parquet_is_named() {
    let folder = Folder::new();
    let path = folder.parquet("a.parquet", &sample(10_000), 1_000);
    let whole = fs::read(&path).expect("a file");
    let mut scribbled = whole.clone();
    scribbled[5_000..9_000].fill(0xff);
    for (label, bytes) in [
        ("half", whole[..whole.len() / 2].to_vec()),
        ("all but the end", whole[..whole.len() - 5].to_vec()),
        ("all but the beginning", whole[100..].to_vec()),
        ("four bytes", b"PAR1".to_vec()),
        ("text", b"this is no Parquet file at all".to_vec()),
        ("scribbled", scribbled),
    ] {
        let path = folder.write("b.parquet", bytes);
        let error = error_of(&source([path.clone()]), ScanOptions::default());
        assert!(error.starts_with(&format!("can't read {path}: ")), "{label}: {error}");
    }
}

#[test]
fn two_columns_of_one_name_are_refused() {
    let folder = Folder::new();
    let column = |value| Arc::new(Int64Array::from(vec![value])) as ArrayRef;
    let field = |name: &str| arrow_schema::Field::new(name, DataType::Int64, true);
    let schema = Arc::new(Schema::new(vec![field("k"), field("k"), field("z")]));
    let rows = RecordBatch::try_new(schema, vec![column(1), column(2), column(3)]).expect("a batch");
    for path in [
        folder.parquet("a.parquet", &rows, 10),
        folder.arrow("a.arrow", &rows, 10),
        folder.write("a.csv", "k,k,z\n1,2,3\n"),
    ] {
        let error = error_of(&source([path.clone()]), ScanOptions::default());
        assert_eq!(error, format!("can't read {path}: two of its columns are named `k`"));
        let other = ScanSource { columns: columns(&["z"]), ..source([path]) };
        assert_eq!(text(&read(&other).expect("rows")), ["3"]);
    }
}

#[test]
fn binary_files_are_named() {
    let folder = Folder::new();
    for (bytes, expected) in [
        (&b"\x1f\x8b\x08\x00junk"[..], ": it starts like a gzip file (.gz), not like text"),
        (b"\x28\xb5\x2f\xfdjunk", ": it starts like a Zstandard file (.zst)"),
        (b"PK\x03\x04junk", ": it starts like an archive (.zip)"),
        (b"\xff\xfe\0\0k\0\0\0", ": it starts like UTF-32 text"),
        (b"k\xfc,x\n1,2\n", ", line 1: `k\u{fffd}` is not UTF-8; declare the encoding, as in [input] encoding"),
        (
            b"k\0,\0x\0\n\x001\0,\x002\0\n\0",
            ", line 1: the name of the column `k\u{fffd}` contains a NUL character; if the file is UTF-16",
        ),
    ] {
        let path = folder.write("a.csv", bytes);
        let error = error_of(&source([path.clone()]), ScanOptions::default());
        assert!(error.starts_with(&format!("can't read {path}{expected}")), "{error}");
    }
    let path = folder.write("b.csv", "\n\n");
    assert_eq!(open(&source([path.clone()])).err().expect("an error").to_string(), format!("{path} has no columns"));
}

#[test]
fn no_damage_to_a_file_makes_the_reader_panic() {
    let folder = Folder::new();
    let rows = sample(2_000);
    let mut random = sandbar_core::Seed::new(11);
    for (name, path) in
        [("p.parquet", folder.parquet("a.parquet", &rows, 500)), ("p.arrow", folder.arrow("a.arrow", &rows, 300))]
    {
        let whole = fs::read(path).expect("a file");
        for _ in 0..200 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u32) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            let source = source([folder.write(name, bytes)]);
            // Damage within a value may yield another value; all other damage is an error.
            let _ = read_with(&source, ScanOptions::default());
            let _ = read_stored(&source, ScanOptions::default());
        }
    }
}

#[test]
fn no_length_in_an_arrow_file_is_believed() {
    let folder = Folder::new();
    let rows = sample(20).project(&[0, 2]).expect("columns");
    let packed = |codec| {
        let options = IpcWriteOptions::default().try_with_compression(Some(codec)).expect("options");
        let mut writer = FileWriter::try_new_with_options(Vec::new(), rows.schema_ref(), options).expect("a writer");
        writer.write(&rows).expect("written");
        writer.into_inner().expect("a file")
    };
    let (lz4, zstd) = (packed(CompressionType::LZ4_FRAME), packed(CompressionType::ZSTD));
    let paths = [
        folder.arrow("a.arrow", &rows, 20),
        folder.arrow_stream("b.arrow", &rows),
        folder.write("c.arrow", lz4),
        folder.write("d.arrow", zstd),
    ];
    for path in paths {
        assert_eq!(text(&read(&source([path.clone()])).expect("rows")), text(&rows), "{path}");
        let whole = fs::read(path).expect("a file");
        let mut refused = 0;
        for at in 0..whole.len() {
            // A length of several bytes becomes far too large, or negative if its last byte changes.
            let mut bytes = whole.clone();
            bytes[at] ^= if at % 8 == 7 { 1 << 7 } else { 1 << 6 };
            let path = folder.write("damaged.arrow", bytes);
            let read = read_with(&source([path.clone()]), ScanOptions::default());
            refused += usize::from(read.is_err_and(|e| e.to_string().contains("it is damaged, or not an Arrow file")));
        }
        assert!(refused > 50, "{refused}");
    }
}

#[test]
fn no_length_in_a_parquet_file_is_believed() {
    let folder = Folder::new();
    let whole = fs::read(folder.parquet("a.parquet", &sample(2_000), 2_000)).expect("a file");
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(whole.clone())).expect("a footer");
    type Change = dyn Fn(ColumnChunkMetaDataBuilder) -> ColumnChunkMetaDataBuilder;
    let written = |change: &Change| {
        let mut footer = metadata.clone().into_builder();
        let mut groups = footer.take_row_groups();
        let mut group = groups.remove(0).into_builder();
        let mut columns = group.take_columns();
        let first = columns.remove(0).into_builder();
        columns.insert(0, change(first).build().expect("a column"));
        let footer = footer.add_row_group(group.set_column_metadata(columns).build().expect("a row group")).build();
        let mut bytes = whole.clone();
        ParquetMetaDataWriter::new(&mut bytes, &footer).finish().expect("written");
        source([folder.write("b.parquet", bytes)])
    };
    assert_eq!(read(&written(&|column| column)).expect("rows").num_rows(), 2_000);
    let changes: [(&str, &Change); 6] = [
        ("far too long", &|c| c.set_total_compressed_size(7 << 40)),
        ("negative", &|c| c.set_total_compressed_size(-1)),
        ("far behind the end", &|c| c.set_dictionary_page_offset(None).set_data_page_offset(1 << 50)),
        ("behind the end", &|c| c.set_total_compressed_size(1 << 20)),
        ("before the beginning", &|c| c.set_dictionary_page_offset(None).set_data_page_offset(-8)),
        ("from the last byte there is to the first", &|c| c.set_dictionary_page_offset(Some(i64::MAX))),
    ];
    for (label, change) in changes {
        let error = error_of(&written(change), ScanOptions::default());
        assert!(error.contains("b.parquet: "), "{label}: {error}");
    }
    // The damaged column is not read.
    let unread_damage = written(&|c| c.set_dictionary_page_offset(None).set_data_page_offset(1 << 50));
    let unread = ScanSource { columns: columns(&["x"]), ..unread_damage };
    let rows = read_with(&unread, ScanOptions::default()).expect("rows");
    assert_eq!((rows.num_rows(), (0, 1)), (2_000, read_stored(&unread, ScanOptions::default()).expect("rows").1));
    // Each range is within the file, but the total exceeds it.
    let bytes = whole.len() as i64 - 4;
    let nearly_all =
        written(&move |c| c.set_dictionary_page_offset(None).set_data_page_offset(4).set_total_compressed_size(bytes));
    let error = error_of(&nearly_all, ScanOptions::default());
    assert!(error.contains("b.parquet: it is damaged: it refers to parts of "), "{error}");
}

#[test]
fn a_bad_row_of_a_csv_file_is_named_with_its_line() {
    let folder = Folder::new();
    let mut lines: Vec<String> = (0..60_000).map(|i| format!("{i},{}", i * 2)).collect();
    lines.insert(0, "n,m".to_owned());
    for (label, bad) in [("a word", "12,many"), ("a value too few", "12"), ("a value too many", "12,13,14")] {
        let mut lines = lines.clone();
        lines[54_321] = bad.to_owned();
        let path = folder.write("a.csv", lines.join("\n"));
        let text = TextSpec { types: [("m".to_owned(), "int64".to_owned())].into(), ..TextSpec::default() };
        let text = TextOptions::new(&text).expect("options");
        for morsel_bytes in [1 << 20, 10_000, 333_333] {
            let options = ScanOptions { morsel_bytes, batch_rows: 1_000 };
            let error = error_of(&ScanSource { text: text.clone(), ..source([path.clone()]) }, options);
            assert!(error.starts_with(&format!("can't read {path}, line 54322: ")), "{label}: {error}");
        }
    }
}

#[test]
fn lines_of_a_csv_file_are_counted_with_those_that_are_no_rows() {
    let folder = Folder::new();
    for (rows, empty, bad) in [(100, 1, 50), (9_000, 3, 8_000), (30_000, 2, 25_000), (30_000, 1, 25_000)] {
        // Every tenth line is followed by empty lines.
        let mut lines = vec!["n,m".to_owned()];
        (0..rows).for_each(|row| {
            lines.push(format!("{row},{row}"));
            lines.extend((0..if row % 10 == 0 { empty } else { 0 }).map(|_| String::new()));
        });
        let bad = lines.iter().position(|line| *line == format!("{bad},{bad}")).expect("a line");
        for wrong in ["1", "1,2,3"] {
            lines[bad] = wrong.to_owned();
            let path = folder.write("a.csv", lines.join("\n"));
            for morsel_bytes in [1 << 20, 20_000] {
                let error = error_of(&source([path.clone()]), ScanOptions { morsel_bytes, batch_rows: 1_000 });
                assert!(error.starts_with(&format!("can't read {path}, line {}: ", bad + 1)), "{error}");
            }
        }
    }
}

#[test]
fn a_quoted_line_break_is_never_a_row() {
    let folder = Folder::new();
    let lines: Vec<String> = (0..2_000).map(|row| format!("{row},\"a \"\"{row}\"\"\n{row},b\"\n")).collect();
    let path = folder.write("a.csv", format!("n,s\n{}", lines.concat()));
    let selection = ScanSource { columns: columns(&["n"]), ..source([path.clone()]) };
    for morsel_bytes in [1 << 20, 15_000, 5_000, 1_000, 777] {
        let options = ScanOptions { morsel_bytes, batch_rows: 1_000 };
        let scan = block_on(Scan::open(selection.clone(), options.clone())).expect("a scan");
        assert!(morsel_bytes > 20_000 || scan.morsels().len() > 2, "{morsel_bytes}");
        assert_eq!(read_with(&selection, options).expect("rows").num_rows(), 2_000, "{morsel_bytes}");
    }
    // A quote inside a value is an ordinary character.
    let inches: String = (0..3_000).map(|row| format!("{row},{row}\" pipe\n")).collect();
    let path = folder.write("b.csv", format!("n,s\n{inches}"));
    assert_eq!(read(&source([path])).expect("rows").num_rows(), 3_000);
}

#[test]
fn a_file_that_vanishes_is_named() {
    let folder = Folder::new();
    let paths = [
        folder.parquet("a.parquet", &sample(10), 10),
        folder.write("b.csv", separated(&sample(10), ",")),
        folder.write("c.jsonl", json_lines(&sample(10))),
        folder.arrow("d.arrow", &sample(10), 10),
    ];
    for path in paths {
        let scan = open(&source([path.clone()])).expect("a scan");
        fs::remove_file(&path).expect("a file");
        let error = block_on(async { scan.read(0)?.next().await.expect("an item") }).expect_err("an error").to_string();
        assert!(error.starts_with(&format!("can't read {path}: ")), "{error}");
        assert!(error.contains("No such file"), "{error}");
    }
}

#[test]
fn bad_json_is_named() {
    let folder = Folder::new();
    let good = "{\"n\":1}\n";
    for (before, bad, line, expected) in [
        (1, "{\"n\":\n".to_owned(), 2, "the object that starts in the line does not end"),
        (3, format!("{{\"n\": 1, \"m\":\n{good}{good}"), 4, "expected `,` or `}`, found `{\"n\":1}`"),
        (0, " \n[{\"n\":1},\n{\"n\":2}]\n".to_owned(), 2, "it holds an array; write one object per line"),
        (30_000, "{\"n\":NaN}\n".to_owned(), 30_001, "column `n` is NaN or infinite, for which JSON has no number"),
        (
            30_000,
            "{\"n\":\"x\"}\n".to_owned(),
            30_001,
            "column `n` is text here, but a number before; declare its type",
        ),
        (2, "{\"n\":1,\"n\":2}\n".to_owned(), 3, "column `n` occurs twice in the object"),
        (2, "{\"n\":01}\n".to_owned(), 3, "column `n` is not a JSON value"),
    ] {
        let path = folder.write("a.jsonl", good.repeat(before) + &bad + good);
        for morsel_bytes in [1 << 20, 50_000] {
            let error = error_of(&source([path.clone()]), ScanOptions { morsel_bytes, batch_rows: 1_000 });
            assert!(error.starts_with(&format!("can't read {path}, line {line}: {expected}")), "{error}");
        }
    }
}
