//! Columns of folder names.

use super::*;

fn rows(from: i64, to: i64) -> RecordBatch {
    let columns: [(&str, ArrayRef); 2] = [
        ("x", Arc::new(Int64Array::from_iter_values(from..to))),
        ("s", Arc::new(StringArray::from_iter_values((from..to).map(|n| format!("s{n}"))))),
    ];
    RecordBatch::try_from_iter(columns).expect("a batch")
}

/// Writes the same table in each format, two rows per folder.
fn tables(folder: &Folder, folders: &[&str]) -> Vec<String> {
    for (number, name) in folders.iter().enumerate() {
        let (from, to) = (number as i64 * 2, number as i64 * 2 + 2);
        folder.parquet(&format!("p/{name}/a.parquet"), &rows(from, to), 1);
        folder.write(&format!("c/{name}/a.csv"), separated(&rows(from, to), ","));
        folder.write(&format!("j/{name}/a.jsonl"), json_lines(&rows(from, to)));
        folder.arrow(&format!("a/{name}/a.arrow"), &rows(from, to), 1);
        folder.arrow_stream(&format!("t/{name}/a.arrow"), &rows(from, to));
    }
    ["p", "c", "j", "a", "t"].map(|table| folder.path_of(table)).to_vec()
}

fn typed(types: &[(&str, &str)]) -> TextOptions {
    let types = types.iter().map(|(column, name)| ((*column).to_owned(), (*name).to_owned())).collect();
    TextOptions::new(&TextSpec { types, ..TextSpec::default() }).expect("options")
}

#[test]
fn folders_are_columns() {
    let folder = Folder::new();
    let folders = [
        "year=2019/month=05/k=a%20b",
        "year=2019/month=12/k=__HIVE_DEFAULT_PARTITION__",
        "year=2020/month=05/k=%C3%BC%2F=1",
    ];
    for table in tables(&folder, &folders) {
        let read = |names: &[&str], filter: Option<&str>, types: &[(&str, &str)]| {
            let source = ScanSource {
                columns: columns(names),
                filter: filter.map(str::to_owned),
                text: typed(types),
                ..source([table.clone()])
            };
            text(&read(&source).unwrap_or_else(|e| panic!("{table} {filter:?}: {e}")))
        };
        let all = ["0|2019|05|a b", "1|2019|05|a b", "2|2019|12|", "3|2019|12|", "4|2020|05|ü/=1", "5|2020|05|ü/=1"];
        assert_eq!(read(&["x", "year", "month", "k"], None, &[]), all, "{table}");
        assert_eq!(read(&["k", "x"], Some("x = 4"), &[]), ["ü/=1|4"], "{table}");
        for (filter, expected) in [
            ("year = 2019", &["0", "1", "2", "3"][..]),
            ("year = 2019 AND x > 1", &["2", "3"]),
            ("year = 2019 AND (month = '12' AND s = 's3')", &["3"]),
            ("year > 2019 OR x = 0", &["0", "4", "5"]),
            ("k IS NULL", &["2", "3"]),
            ("k <> 'a b'", &["4", "5"]),
            ("year + x = 2024", &["4"]),
            ("year = 1999", &[]),
            ("NOT (month = '05')", &["2", "3"]),
        ] {
            assert_eq!(read(&["x"], Some(filter), &[]), expected, "{table}: {filter}");
        }
        assert_eq!(read(&["x"], Some("month = 5"), &[("month", "int64")]), ["0", "1", "4", "5"], "{table}");
        assert_eq!(read(&["year"], Some("x = 5"), &[("year", "utf8")]), ["2020"], "{table}");
        let source = ScanSource { columns: columns(&["year", "month"]), ..source([table.clone()]) };
        let types: Vec<_> =
            open(&source).expect("a scan").schema().fields().iter().map(|field| field.data_type().clone()).collect();
        assert_eq!(types, [DataType::Int64, DataType::Utf8], "{table}");
    }
    let one = ScanSource { columns: columns(&["year"]), ..source([folder.path_of("p/year=2020/*/*/*.parquet")]) };
    assert_eq!(text(&read(&one).expect("rows")), ["2020", "2020"]);
    let bad = ScanSource { text: typed(&[("month", "date32")]), ..source([folder.path_of("p")]) };
    let error = open(&bad).err().expect("an error").to_string();
    assert!(
        error.contains("its folder: `05` in column `month` is not a valid Date32, the type declared in `input.types`"),
        "{error}"
    );
}

#[test]
fn files_that_folders_rule_out_are_not_opened() {
    let folder = Folder::new();
    let table = &tables(&folder, &["k=1", "k=2", "k=3"])[0];
    folder.write("p/k=2/a.parquet", "no Parquet at all");
    folder.write("p/k=4/b.parquet", "");
    let with = |filter: &str| {
        let selection = ScanSource { columns: columns(&["x"]), filter: Some(filter.into()), ..source([table.clone()]) };
        read_stored(&selection, ScanOptions::default()).map(|(rows, counts)| (text(&rows), counts))
    };
    let rows = |rows: &[&str]| rows.iter().map(|row| (*row).to_owned()).collect::<Vec<_>>();
    // A condition that the folders decide is removed from the row filter, so workers can read the row groups.
    assert_eq!(with("k = 3").expect("rows"), (rows(&["4", "5"]), (2, 0)));
    assert_eq!(with("k IN (1, 3) AND k <> 3").expect("rows"), (rows(&["0", "1"]), (2, 0)));
    assert_eq!(with("k = 3 AND x + 1 > 5").expect("rows"), (rows(&["5"]), (0, 1)));
    assert_eq!(with("k < 1").expect("rows"), (rows(&[]), (0, 0)));
    assert!(with("x = 3").is_err() && with("k = 2").is_err());
}

#[test]
fn a_files_column_takes_precedence_over_its_folders_key() {
    let folder = Folder::new();
    folder.parquet("p/x=7/a.parquet", &rows(0, 2), 10);
    folder.parquet("p/x=8/a.parquet", &rows(2, 4), 10);
    // The files' own column wins, in the filter too.
    let selection =
        ScanSource { columns: columns(&["x"]), filter: Some("x < 3".into()), ..source([folder.path_of("p")]) };
    assert_eq!(text(&read(&selection).expect("rows")), ["0", "1", "2"]);
    // Only one of the files has the column.
    folder.parquet("q/x=7/a.parquet", &rows(0, 2).project(&[1]).expect("a column"), 10);
    folder.parquet("q/x=8/a.parquet", &rows(2, 4), 10);
    let error =
        open(&ScanSource { columns: columns(&["x"]), ..source([folder.path_of("q")]) }).err().expect("an error");
    assert!(error.to_string().contains("`x` is a column of it and a key of its folders; rename one"), "{error}");
    assert!(
        read(&ScanSource { columns: columns(&["s"]), ..source([folder.path_of("q")]) }).is_ok(),
        "the column is not requested"
    );
    // A key must be in the paths of all files.
    folder.parquet("r/a.parquet", &rows(0, 2), 10);
    folder.parquet("r/k=1/a.parquet", &rows(2, 4), 10);
    let error =
        open(&ScanSource { columns: columns(&["k"]), ..source([folder.path_of("r")]) }).err().expect("an error");
    assert!(error.to_string().starts_with("column `k` is not in the 2 input files; its columns are `x`"), "{error}");
    assert_eq!(read(&source([folder.path_of("r")])).expect("rows").num_rows(), 4);
}
