//! Scans of files of every format: valid and damaged, local and remote.

mod broken;
mod columns;
mod filters;
mod hive;
mod http;
mod text;
mod times;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
    StringViewArray,
};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Schema};
use arrow_select::concat::concat_batches;
use datafusion::arrow::ipc::writer::{FileWriter, StreamWriter};
use futures::executor::block_on;
use futures::{StreamExt as _, TryStreamExt as _};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use tempfile::TempDir;

use super::*;

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the path as a user would give it.
    fn path_of(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::create_dir_all(self.path(name).parent().expect("a folder")).expect("a folder");
        fs::write(self.path(name), bytes).expect("a file");
        self.path_of(name)
    }

    fn parquet(&self, name: &str, rows: &RecordBatch, group_rows: usize) -> String {
        self.parquet_with(name, rows, WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)))
    }

    fn parquet_with(&self, name: &str, rows: &RecordBatch, properties: WriterPropertiesBuilder) -> String {
        let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties.build())).expect("a writer");
        writer.write(rows).expect("written");
        self.write(name, writer.into_inner().expect("a file"))
    }

    fn arrow(&self, name: &str, rows: &RecordBatch, batch_rows: usize) -> String {
        let mut writer = FileWriter::try_new(Vec::new(), rows.schema_ref()).expect("a writer");
        let mut at = 0;
        while at < rows.num_rows() {
            writer.write(&rows.slice(at, batch_rows.min(rows.num_rows() - at))).expect("written");
            at += batch_rows;
        }
        self.write(name, writer.into_inner().expect("a file"))
    }

    fn arrow_stream(&self, name: &str, rows: &RecordBatch) -> String {
        let mut writer = StreamWriter::try_new(Vec::new(), rows.schema_ref()).expect("a writer");
        writer.write(rows).expect("written");
        self.write(name, writer.into_inner().expect("a file"))
    }
}

fn source(paths: impl IntoIterator<Item = String>) -> ScanSource {
    ScanSource { paths: paths.into_iter().collect(), ..ScanSource::default() }
}

fn columns(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|n| (*n).to_owned()).collect())
}

fn open(source: &ScanSource) -> Result<Scan, DatasetError> {
    block_on(Scan::open(source.clone(), ScanOptions::default()))
}

/// Returns all batches in the order of morsels.
async fn batches(scan: &Scan) -> Result<Vec<RecordBatch>, DatasetError> {
    let mut all = Vec::new();
    for morsel in 0..scan.morsels().len() {
        all.append(&mut scan.read(morsel)?.try_collect().await?);
    }
    Ok(all)
}

fn read_with(source: &ScanSource, options: ScanOptions) -> Result<RecordBatch, DatasetError> {
    block_on(async {
        let scan = Scan::open(source.clone(), options).await?;
        let batches = batches(&scan).await?;
        assert!(batches.iter().all(|b| b.schema_ref() == scan.schema() && b.num_rows() > 0));
        Ok(concat_batches(scan.schema(), &batches).expect("batches of one schema"))
    })
}

/// Reads row groups by [`RowGroupReader`] where possible. Returns the rows, the number of row groups and the number of
/// other morsels.
fn read_stored(source: &ScanSource, options: ScanOptions) -> Result<(RecordBatch, (usize, usize)), DatasetError> {
    block_on(async {
        let batch_rows = options.batch_rows;
        let scan = Scan::open(source.clone(), options).await?;
        let (mut all, mut from_row_groups, mut left) = (Vec::new(), 0, 0);
        for morsel in 0..scan.morsels().len() {
            let Some(groups) = scan.row_groups(morsel).await else {
                all.append(&mut scan.read(morsel)?.try_collect().await?);
                left += 1;
                continue;
            };
            for group in groups {
                let reader = RowGroupReader::new(group.file().clone(), group.description(), batch_rows)?;
                let batches = reader.collect::<Result<Vec<_>, _>>()?;
                assert!(batches.iter().all(|batch| batch.num_rows() <= batch_rows));
                let rows = batches.iter().map(RecordBatch::num_rows).sum::<usize>() as u64;
                assert!(rows <= group.rows() && (source.filter.is_some() || rows == group.rows()));
                let named = |batch: RecordBatch| batch.with_schema(scan.schema().clone()).expect("columns of the scan");
                all.extend(batches.into_iter().map(named));
                from_row_groups += 1;
            }
        }
        Ok((concat_batches(scan.schema(), &all).expect("batches of one schema"), (from_row_groups, left)))
    })
}

/// Reads with several sizes of batches and morsels, all of which must return the same rows.
fn read(source: &ScanSource) -> Result<RecordBatch, DatasetError> {
    let rows = read_with(source, ScanOptions::default())?;
    for (batch_rows, morsel_bytes) in [(1, 1 << 20), (100, 1_000), (1_000, 77), (65_536, 4_096), (7, 1)] {
        // Planning a morsel takes milliseconds, so thousands of them are too slow.
        let sizes = source.paths.iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.len());
        if sizes.sum::<u64>() / morsel_bytes > 300 {
            continue;
        }
        let options = ScanOptions { batch_rows, morsel_bytes };
        let again = read_with(source, options.clone()).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        assert!(again == rows, "{options:?} reads other rows");
        let (again, _) = read_stored(source, options.clone()).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        assert!(again == rows, "{options:?} reads other rows in row groups");
    }
    Ok(rows)
}

/// Formats rows as text: `1|x|`.
fn text(rows: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default();
    let columns: Vec<_> =
        rows.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).expect("a formatter")).collect();
    (0..rows.num_rows())
        .map(|row| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|"))
        .collect()
}

fn sample(rows: i64) -> RecordBatch {
    let n = Int64Array::from_iter_values(0..rows);
    let x = Float64Array::from_iter((0..rows).map(|i| (i % 10 != 3).then_some(i as f64 + 0.5)));
    let s = StringArray::from_iter((0..rows).map(|i| (i % 7 != 2).then(|| format!("s{}", i % 100))));
    let b = BooleanArray::from_iter((0..rows).map(|i| Some(i % 3 == 0)));
    let columns: [(&str, ArrayRef, bool); 4] =
        [("n", Arc::new(n), true), ("x", Arc::new(x), true), ("s", Arc::new(s), true), ("b", Arc::new(b), true)];
    RecordBatch::try_from_iter_with_nullable(columns).expect("a batch")
}

fn separated(rows: &RecordBatch, separator: &str) -> String {
    let lines = text(rows).into_iter().map(|line| line.replace('|', separator) + "\n");
    let names: Vec<_> = rows.schema_ref().fields().iter().map(|f| f.name().as_str()).collect();
    names.join(separator) + "\n" + &lines.collect::<String>()
}

fn json_lines(rows: &RecordBatch) -> String {
    let mut out = datafusion::arrow::json::LineDelimitedWriter::new(Vec::new());
    out.write(rows).expect("written");
    out.finish().expect("written");
    String::from_utf8(out.into_inner()).expect("text")
}

/// Writes the rows in each format.
fn every_format(folder: &Folder, rows: &RecordBatch) -> Vec<String> {
    vec![
        folder.parquet("a.parquet", rows, 300),
        folder.write("a.csv", separated(rows, ",")),
        folder.write("a.tsv", separated(rows, "\t")),
        folder.write("a.jsonl", json_lines(rows)),
        folder.arrow("a.arrow", rows, 170),
        folder.arrow_stream("b.arrow", rows),
    ]
}

#[test]
fn every_format_gives_the_same_rows() {
    let folder = Folder::new();
    let rows = sample(1_000);
    for path in every_format(&folder, &rows) {
        let found = read(&source([path.clone()])).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut expected = text(&rows);
        if path.ends_with("jsonl") {
            let by_name = rows.project(&["b", "n", "s", "x"].map(|n| rows.schema_ref().index_of(n).expect("a column")));
            let order: Vec<_> = found.schema_ref().fields().iter().map(|f| f.name().clone()).collect();
            if order == ["b", "n", "s", "x"] {
                expected = text(&by_name.expect("columns"));
            }
        }
        assert_eq!(text(&found), expected, "{path}");
        let some = ScanSource { columns: columns(&["s", "n"]), ..source([path.clone()]) };
        let expected = text(&rows.project(&[2, 0]).expect("columns"));
        assert_eq!(text(&read(&some).expect("rows")), expected, "{path}");
    }
}

#[test]
fn large_files_are_cut_into_morsels_that_depend_on_their_size_alone() {
    let folder = Folder::new();
    let rows = sample(50_000);
    for path in every_format(&folder, &rows) {
        let options = ScanOptions { batch_rows: 4_096, morsel_bytes: 100_000 };
        let scan = block_on(Scan::open(ScanSource { columns: columns(&["n"]), ..source([path.clone()]) }, options))
            .expect("a scan");
        let size = fs::metadata(&path).expect("a file").len();
        let expected = if path.ends_with("b.arrow") { 1 } else { size.div_ceil(100_000) };
        assert_eq!(scan.morsels().len() as u64, expected, "{path}");
        let found = read(&ScanSource { columns: columns(&["n"]), ..source([path.clone()]) }).expect("rows");
        assert_eq!(text(&found), text(&rows.project(&[0]).expect("a column")), "{path}");
    }
}

#[test]
fn batches_have_about_the_requested_number_of_rows() {
    let folder = Folder::new();
    let rows = sample(50_000);
    let paths = [
        folder.parquet("a.parquet", &rows, 100_000),
        folder.write("a.csv", separated(&rows, ",")),
        folder.arrow("a.arrow", &rows, 50_000),
    ];
    for path in paths {
        let options = ScanOptions { batch_rows: 10_000, ..ScanOptions::default() };
        let scan = block_on(Scan::open(source([path.clone()]), options)).expect("a scan");
        let sizes: Vec<_> = block_on(batches(&scan)).expect("rows").iter().map(RecordBatch::num_rows).collect();
        assert_eq!(sizes, [10_000; 5], "{path}");
    }
}

#[test]
fn morsels_can_be_read_again_and_in_any_order() {
    let folder = Folder::new();
    let path = folder.parquet("a.parquet", &sample(5_000), 500);
    let options = ScanOptions { morsel_bytes: 5_000, ..ScanOptions::default() };
    let scan = block_on(Scan::open(source([path]), options)).expect("a scan");
    let read = |morsel: usize| -> Vec<RecordBatch> {
        block_on(scan.read(morsel).expect("a stream").try_collect()).expect("rows")
    };
    let last = scan.morsels().len() - 1;
    assert!(last > 3);
    let (a, b) = (read(last), read(0));
    assert_eq!((read(0), read(last)), (b, a));
}

#[test]
fn paths_globs_folders_and_urls() {
    let folder = Folder::new();
    let one = |n: i64| sample(n + 1).slice(n as usize, 1);
    for (n, name) in
        ["2019-01.parquet", "2019-02.parquet", "deep/er/x.parquet", "deep/a b ü.parquet", "deep/[1].parquet"]
            .into_iter()
            .enumerate()
    {
        folder.parquet(name, &one(n as i64), 10);
    }
    folder.write(".hidden/y.parquet", "no");
    folder.write("notes.txt", "no");
    let root = folder.path_of("");
    let url = |name: &str| Url::from_file_path(folder.path(name)).expect("a path").to_string();
    for (paths, expected) in [
        (vec![folder.path_of("2019-02.parquet"), folder.path_of("2019-01.parquet")], vec!["0", "1"]),
        (vec![folder.path_of("2019-*.parquet")], vec!["0", "1"]),
        (vec![folder.path_of("2019-0[2-9].parquet")], vec!["1"]),
        (vec![folder.path_of("2019-0?.parquet"), folder.path_of("2019-01.parquet")], vec!["0", "1"]),
        (vec![folder.path_of("**/*.parquet")], vec!["0", "1", "4", "3", "2"]),
        (vec![folder.path_of("deep/**")], vec!["4", "3", "2"]),
        (vec![folder.path_of("*/x.parquet"), folder.path_of("*/*/x.parquet")], vec!["2"]),
        (vec![folder.path_of("deep/[1].parquet")], vec!["4"]),
        (vec![root.clone()], vec!["0", "1", "4", "3", "2"]),
        (vec![folder.path_of("deep/../deep/./er")], vec!["2"]),
        (vec![url("2019-01.parquet"), url("deep/a b ü.parquet")], vec!["0", "3"]),
    ] {
        let rows = match read(&ScanSource { columns: columns(&["n"]), ..source(paths.clone()) }) {
            Ok(rows) => rows,
            // The second pattern may match nothing else.
            Err(DatasetError::Input { reason, .. }) if paths.len() == 2 && reason == "no file matches it" => continue,
            Err(error) => panic!("{paths:?}: {error}"),
        };
        assert_eq!(text(&rows), expected, "{paths:?}");
    }
    folder.write("deep/_temporary/z.parquet", "no");
    folder.write("deep/er/_success.parquet", "no");
    let scan = open(&source([folder.path_of("deep")])).expect("a scan");
    assert_eq!(scan.files()[2], folder.path_of("deep/er/x.parquet"));
}

#[test]
fn links_to_folders_above_are_not_followed_for_ever() {
    let folder = Folder::new();
    folder.parquet("data/a.parquet", &sample(1), 10);
    folder.parquet("data/sub/b.parquet", &sample(2), 10);
    for (to, link) in
        [("..", "data/sub/one"), ("../../data", "data/sub/two"), (".", "data/three"), ("sub", "data/four")]
    {
        std::os::unix::fs::symlink(to, folder.path(link)).expect("a link");
    }
    for pattern in ["data", "data/**", "data/**/*.parquet", "**/*.parquet", "da*/**/?.parquet"] {
        let scan = open(&source([folder.path_of(pattern)])).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        // A file that is found on several paths counts once.
        assert_eq!(scan.files().len(), 2, "{pattern}: {:?}", scan.files());
    }
}

#[test]
fn archives_are_not_missed_in_silence() {
    let folder = Folder::new();
    folder.write("a.csv", "n\n1\n");
    folder.write("notes.gz", "no data");
    assert!(open(&source([folder.path_of("")])).is_ok());
    let packed = folder.write("c.CSV.zip", "x");
    for pattern in ["", "*", "**", "**/*.zip"] {
        let error = open(&source([folder.path_of(pattern)])).err().expect("an error").to_string();
        assert_eq!(error, format!("{packed}: archives (.zip) are not supported; unpack it"), "{pattern}");
    }
    assert!(open(&source([folder.path_of("*.csv")])).is_ok());
}

#[test]
fn names_that_others_hide_are_left_out_below_folders_and_globs() {
    let folder = Folder::new();
    for (n, name) in [
        "table/a.parquet",
        "table/k=1/b.parquet",
        "table/_temporary/0/a.parquet",
        "table/_delta_log/0.parquet",
        "table/.staging/c.parquet",
        "table/_metadata.parquet",
        "table/.d.parquet",
        "_own/e.parquet",
    ]
    .into_iter()
    .enumerate()
    {
        folder.parquet(name, &sample(n as i64 + 1).slice(n, 1), 10);
    }
    folder.write("table/.a.parquet.crc", "crc");
    folder.write("table/_delta_log/0.json", "{\"commitInfo\":{}}\n");
    for (pattern, expected) in [
        ("table", &["0", "1"][..]),
        ("table/**", &["0", "1"]),
        ("table/**/*.parquet", &["0", "1"]),
        ("t*/**/*.parquet", &["0", "1"]),
        ("**/*.parquet", &["0", "1"]),
        ("table/*.parquet", &["0"]),
        ("table/*/*.parquet", &["1"]),
        ("table/_*.parquet", &["5"]),
        ("table/_metadata.parquet", &["5"]),
        ("table/.d.parquet", &["6"]),
        ("table/.*.parquet", &["6"]),
        ("table/_delta_log/*.parquet", &["3"]),
        ("table/_delta*/*.parquet", &["3"]),
        ("table/_temporary/**/*.parquet", &["2"]),
        ("**/_temporary/**/*.parquet", &["2"]),
        ("table/[_a]*.parquet", &["0"]),
        ("_own", &["7"]),
        ("_own/*", &["7"]),
        ("_own/**", &["7"]),
        ("*/e.parquet", &[]),
    ] {
        let selected = ScanSource { columns: columns(&["n"]), ..source([folder.path_of(pattern)]) };
        match read_with(&selected, ScanOptions::default()) {
            Ok(rows) => assert_eq!(text(&rows), expected, "{pattern}"),
            Err(error) => assert!(expected.is_empty(), "{pattern}: {error}"),
        }
        let found = find_files(&folder.path_of(pattern)).map(|files| files.len()).unwrap_or_default();
        assert_eq!(found, expected.len(), "{pattern}");
    }
}

#[test]
fn paths_that_lead_nowhere_are_named() {
    let folder = Folder::new();
    folder.write("empty/readme.md", "no data");
    folder.write("a.parquet.gz", "x");
    folder.write("a.csv.zip", "x");
    folder.write("a.xlsx", "x");
    folder.write("empty.csv", "");
    for (path, expected) in [
        (folder.path_of("missing.parquet"), "there is no such file or folder"),
        (folder.path_of("*.parquet"), "no file matches it"),
        (folder.path_of("empty"), "no file there has a supported extension (.parquet, .arrow"),
        (folder.path_of("empty/*"), "no file there has a supported extension (.parquet, .arrow"),
        (folder.path_of("a.csv.zip"), "archives (.zip) are not supported; unpack it"),
        (folder.path_of("a.parquet.gz"), "only text formats can be compressed as a whole (.gz); decompress it"),
        (folder.path_of("a.xlsx"), "its extension is not supported; supported extensions are .parquet, .arrow"),
        (folder.path_of("[.parquet*"), "it is not a valid glob: "),
        ("ftp://host/a.parquet".to_owned(), "the scheme `ftp` is not supported; supported schemes are file, http"),
        ("https://host/*.parquet".to_owned(), "folders and globs can't be listed over HTTP"),
        ("https://host/a.parquet?key=1".to_owned(), "URLs with a query are not supported"),
        ("s3:///a.parquet".to_owned(), "the URL must name a host or bucket"),
    ] {
        match open(&source([path.clone()])) {
            Err(error @ DatasetError::Input { .. }) => {
                assert!(error.to_string().starts_with(&format!("{path}: {expected}")), "{error}\n{expected}");
                assert_eq!(error.code(), sandbar_core::Code::Input);
            }
            Err(error) => panic!("{path}: {error}"),
            Ok(_) => panic!("{path} was found"),
        }
    }
    let error = open(&source([String::new()])).err().expect("an error");
    assert_eq!(error.to_string(), "an input path is empty");
    let error = open(&source([folder.path_of("empty.csv")])).err().expect("an error");
    assert_eq!(error.to_string(), format!("can't read {}: the file is empty", folder.path_of("empty.csv")));
}

/// The scan is that of the files under their names, wherever they are and even if they have the same content.
#[test]
fn named_files_are_read_under_their_names() {
    let folder = Folder::new();
    let rows = sample(30);
    let table = |name: &str| folder.parquet(&format!("data/year=2019/{name}.parquet"), &rows, 10);
    let paths = vec![table("b"), table("a"), folder.write("data/year=2020/c.csv", "n\n7\n8\n")];
    let stored = |number: usize| folder.path(&format!("stored/{number}"));
    fs::create_dir(folder.path("stored")).expect("a folder");
    // The first two have the same content, which is stored once.
    let stored = [stored(0), stored(0), stored(2)];
    for (path, stored) in paths.iter().zip(&stored) {
        fs::copy(path, stored).expect("a copy");
    }
    let names = paths.iter().zip(stored);
    let named: Vec<NamedFile> = names.map(|(name, path)| NamedFile { name: name.clone(), path }).collect();
    for filter in [None, Some("year = 2019 AND n > 3")] {
        let filter = filter.map(str::to_owned);
        let by_path = ScanSource { columns: columns(&["n", "year"]), filter, ..source(paths.clone()) };
        // Nothing opens these.
        let nowhere = vec!["/nowhere/x.csv".to_owned()];
        let by_name = ScanSource { named: Some(named.clone().into()), paths: nowhere, ..by_path.clone() };
        let [of_path, of_name] = [&by_path, &by_name].map(|source| open(source).expect("a scan"));
        assert_eq!((of_name.files(), of_name.morsels()), (of_path.files(), of_path.morsels()));
        let options = ScanOptions::default;
        let expected = read_with(&by_path, options()).expect("rows");
        assert_eq!(read_with(&by_name, options()).expect("rows"), expected);
        assert!(expected.num_rows() > 50);
        assert_eq!(read_stored(&by_name, options()).expect("rows"), read_stored(&by_path, options()).expect("rows"));
    }
    let found = block_on(list_local_files(&[folder.path_of("data")])).expect("files");
    let found: Vec<(String, PathBuf)> = found.into_iter().map(|file| (file.name, file.path)).collect();
    let expected =
        ["2019/a.parquet", "2019/b.parquet", "2020/c.csv"].map(|name| folder.path_of(&format!("data/year={name}")));
    let expected: Vec<(String, PathBuf)> =
        expected.iter().map(|name| (name.clone(), fs::canonicalize(name).expect("a file"))).collect();
    assert_eq!(found, expected);
    let url = block_on(list_local_files(&["s3://bucket/a.csv".to_owned()])).unwrap_err().to_string();
    assert!(url.contains("reads no URLs for its tenants"), "{url}");
}

#[test]
fn relative_paths_stay_relative() {
    let scan = open(&source(["./Cargo.toml".to_owned()])).err().expect("an error").to_string();
    assert!(scan.starts_with("Cargo.toml: its extension"), "{scan}");
    let nowhere = Path::new("tests/nowhere.csv").display().to_string();
    let error = open(&source([nowhere])).err().expect("an error").to_string();
    assert_eq!(error, "tests/nowhere.csv: there is no such file or folder");
}

#[test]
fn filters_skip_row_groups_by_statistics() {
    let folder = Folder::new();
    let rows = sample(10_000);
    let paths = every_format(&folder, &rows);
    for path in &paths {
        for (filter, expected) in [
            ("n >= 9990 AND NOT b", vec!["9991", "9992", "9994", "9995", "9997", "9998"]),
            ("n < 30 AND x IS NULL", vec!["3", "13", "23"]),
            ("s = 's5' AND n < 300 AND x IS NOT NULL", vec!["5", "105"]),
            ("n BETWEEN 5 AND 7 OR n = 0", vec!["0", "5", "6", "7"]),
            ("n * 2 = 10 AND upper(s) = 'S5'", vec!["5"]),
            ("false", vec![]),
        ] {
            let source =
                ScanSource { filter: Some(filter.to_owned()), columns: columns(&["n"]), ..source([path.clone()]) };
            let found = read(&source).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert_eq!(text(&found), expected, "{path}: {filter}");
        }
    }
    let pruned = |filter: &str| {
        let source =
            ScanSource { filter: Some(filter.to_owned()), columns: columns(&["x"]), ..source([paths[0].clone()]) };
        let scan = open(&source).expect("a scan");
        let rows: usize = block_on(batches(&scan)).expect("rows").iter().map(RecordBatch::num_rows).sum();
        (rows, scan.counted("bytes_scanned"))
    };
    let (all, few) = (pruned("n >= 0"), pruned("n >= 9700"));
    assert_eq!((all.0, few.0), (10_000, 300));
    assert!(few.1 * 10 < all.1, "bytes read: {} of {}", few.1, all.1);
}

#[test]
fn a_filter_selects_the_same_rows_in_any_layout() {
    let folder = Folder::new();
    let f = [1.0, 9.0, f64::NAN, 5.0, 2.0, f64::NAN, 5.0, 5.0, -0.0, 0.0];
    let values: [(&str, ArrayRef); 2] =
        [("f", Arc::new(Float64Array::from(f.to_vec()))), ("n", Arc::new(Int64Array::from_iter_values(0..10)))];
    let rows = RecordBatch::try_from_iter(values).expect("a batch");
    for (filter, expected) in [
        ("f > 5", &["1", "2", "5"][..]),
        ("f <> 5", &["0", "1", "2", "4", "5", "8", "9"]),
        ("f > 5.0", &["1", "2", "5"]),
        ("f <> 5.0", &["0", "1", "2", "4", "5", "8", "9"]),
        ("f <= 2.0", &["0", "4", "8", "9"]),
        ("f = 0.0", &["8", "9"]),
        ("f >= 0.0 AND n > 6", &["7", "8", "9"]),
        ("-0.0 >= f", &["8", "9"]),
        ("f <> 0.0", &["0", "1", "2", "3", "4", "5", "6", "7"]),
        ("f < 0.0", &[]),
        ("f > -0.0", &["0", "1", "2", "3", "4", "5", "6", "7"]),
        ("NOT (f <= 5)", &["1", "2", "5"]),
        ("f > 5 AND n < 5", &["1", "2"]),
        ("f > 100 OR n = 7", &["2", "5", "7"]),
    ] {
        for group_rows in [1, 2, 8] {
            let path = folder.parquet("a.parquet", &rows, group_rows);
            let source = ScanSource { filter: Some(filter.to_owned()), columns: columns(&["n"]), ..source([path]) };
            assert_eq!(text(&read(&source).expect("rows")), expected, "{filter}, {group_rows} rows a group");
        }
    }
}

#[test]
fn only_the_columns_that_are_used_are_read() {
    let folder = Folder::new();
    let path = folder.parquet("a.parquet", &sample(10_000), 10_000);
    let bytes = |columns| {
        let scan = open(&ScanSource { columns, ..source([path.clone()]) }).expect("a scan");
        block_on(batches(&scan)).expect("rows");
        scan.counted("bytes_scanned")
    };
    assert!(bytes(columns(&["b"])) * 10 < bytes(None));
}

#[test]
fn row_groups_are_read_separately_where_they_need_only_be_decoded() {
    let folder = Folder::new();
    let rows = sample(10_000);
    let properties = || WriterProperties::builder().set_max_row_group_row_count(Some(1_500));
    let without_pages = || properties().set_statistics_enabled(EnabledStatistics::Chunk);
    let plain = folder.parquet_with("plain.parquet", &rows, without_pages());
    let pages = folder.parquet_with("pages.parquet", &rows, properties());
    let bloom = folder.parquet_with("bloom.parquet", &rows, without_pages().set_bloom_filter_enabled(true));
    let long =
        |rows: i64| RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef)]);
    let long = |name, rows, group_rows| folder.parquet(name, &long(rows).expect("a batch"), group_rows);
    let (longest, too_many) = (long("most.parquet", 1 << 20, 1 << 20), long("more.parquet", (1 << 20) + 1, 1 << 21));
    let narrow = RecordBatch::try_from_iter([("n", Arc::new(Int32Array::from(vec![1; 100])) as ArrayRef)]);
    let narrow = folder.parquet("narrow.parquet", &narrow.expect("a batch"), 100);
    let fields = vec![Arc::new(arrow_schema::Field::new("n", DataType::Int64, true))];
    let within = arrow_array::StructArray::new(fields.into(), vec![rows.column(0).clone()], None);
    let nested = [("n", rows.column(0).clone()), ("o", Arc::new(within) as ArrayRef)];
    let nested = folder.parquet("nested.parquet", &RecordBatch::try_from_iter(nested).expect("a batch"), 5_000);
    let wide = [("s", arrow_cast::cast(rows.column(2), &DataType::LargeUtf8).expect("text"))];
    let wide = folder.parquet("wide.parquet", &RecordBatch::try_from_iter(wide).expect("a batch"), 5_000);
    let csv = folder.write("a.csv", separated(&rows, ","));
    let with = |paths: &[&String], names: &[&str], filter: Option<&str>| ScanSource {
        paths: paths.iter().map(|path| (*path).clone()).collect(),
        columns: if names.is_empty() { None } else { columns(names) },
        filter: filter.map(str::to_owned),
        ..ScanSource::default()
    };
    for (label, source, expected) in [
        ("all columns", with(&[&plain], &[], None), (7, 0)),
        ("some, in another order", with(&[&plain], &["b", "x", "n"], None), (7, 0)),
        ("rows left out", with(&[&plain], &[], Some("n > 5 AND 9000 >= n AND n <> 77")), (7, 0)),
        ("by a float", with(&[&plain], &["n"], Some("x < 400.5")), (7, 0)),
        ("by a column that is not read", with(&[&plain], &["n"], Some("s IS NOT NULL AND x IS NULL")), (7, 0)),
        ("row groups left out", with(&[&plain], &["x"], Some("n >= 9100")), (1, 0)),
        ("all of them", with(&[&plain], &["n"], Some("n < 0")), (0, 0)),
        ("for none of their values being null", with(&[&plain], &["n"], Some("b IS NULL")), (0, 0)),
        ("pages may be left out", with(&[&pages], &["x"], Some("n >= 9100")), (0, 1)),
        ("of row groups that are wanted", with(&[&pages], &["x"], Some("n >= 9000")), (1, 0)),
        ("by floats they are not", with(&[&pages], &["n"], Some("x < 400.5")), (7, 0)),
        ("for being null", with(&[&pages], &["n"], Some("x IS NULL")), (7, 0)),
        ("row groups may be left out for their values", with(&[&bloom], &["x"], Some("n = 77")), (0, 1)),
        ("by a number of another kind", with(&[&plain], &[], Some("n > 5.5")), (0, 1)),
        ("by a number that the type does not hold", with(&[&narrow], &[], Some("n > 3000000000")), (0, 1)),
        ("by two columns", with(&[&plain], &[], Some("n > x")), (0, 1)),
        ("by text", with(&[&plain], &[], Some("s = 's5'")), (0, 1)),
        ("by one condition or another", with(&[&plain], &[], Some("n > 5 OR x > 6.0")), (0, 1)),
        ("text", with(&[&csv], &[], None), (0, 1)),
        ("a file of them is text", with(&[&plain, &csv], &["n"], None), (7, 1)),
        ("a type that is widened in one file", with(&[&plain, &narrow], &["n"], None), (7, 1)),
        ("a struct that is not read", with(&[&nested], &["n"], None), (2, 0)),
        ("a struct that is read", with(&[&nested], &["n", "o"], None), (0, 1)),
        ("a type that only Arrow knows", with(&[&wide], &[], None), (0, 1)),
        ("as many rows as can be", with(&[&longest], &[], None), (1, 0)),
        ("more rows", with(&[&too_many], &[], None), (0, 1)),
    ] {
        let (read, from_row_groups) = read_stored(&source, ScanOptions::default()).expect("rows");
        assert!(read == read_with(&source, ScanOptions::default()).expect("rows"), "{label}");
        assert_eq!(from_row_groups, expected, "{label}");
    }
}

#[test]
fn empty_files_do_not_affect_the_schema() {
    let folder = Folder::new();
    let none = sample(1).slice(0, 0);
    let some = sample(5);
    let paths = [folder.parquet("a.parquet", &none, 10), folder.parquet("b.parquet", &some, 10)];
    assert_eq!(read(&source([paths[0].clone()])).expect("no rows").num_rows(), 0);
    assert_eq!(read(&source(paths.clone())).expect("rows").num_rows(), 5);
    let path = folder.write("c.csv", "n,x\n");
    assert_eq!(read(&source([path])).expect("no rows").num_rows(), 0);
    // With other types, as pandas writes them, or without columns.
    let empty: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
    let other = RecordBatch::try_from_iter([("n", empty.clone()), ("y", empty)]).expect("a batch");
    let columnless = RecordBatch::new_empty(Arc::new(Schema::empty()));
    for (label, without) in [
        ("parquet", folder.parquet("0.parquet", &other, 10)),
        ("no columns", folder.parquet("1.parquet", &columnless, 10)),
        ("arrow", folder.arrow("2.arrow", &other, 10)),
        ("a stream", folder.arrow_stream("3.arrow", &other)),
        ("a stream of nothing", folder.arrow_stream("4.arrow", &none)),
        ("only names", folder.write("5.csv", "n,x,s,b\n")),
        ("other names", folder.write("6.csv", "m\n\n")),
        ("nothing", folder.write("7.csv", "")),
        ("a mark", folder.write("8.csv", "\u{feff}")),
        ("nothing at all", folder.write("9.jsonl", " \n")),
    ] {
        for both in [[without.clone(), paths[1].clone()], [paths[1].clone(), without.clone()]] {
            let selected = ScanSource { columns: columns(&["n", "s"]), filter: Some("n > 1".into()), ..source(both) };
            let rows = read(&selected).unwrap_or_else(|e| panic!("{label}: {e}"));
            assert_eq!((rows.num_rows(), rows.schema().field(0).data_type()), (3, &DataType::Int64), "{label}");
        }
    }
    // Integers that floats can't represent are exact if the float column has no rows.
    let large = RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from(vec![(1 << 53) + 1])) as ArrayRef)]);
    let floats = RecordBatch::try_from_iter([("k", Arc::new(Float64Array::from(Vec::<f64>::new())) as ArrayRef)]);
    let paths = [
        folder.parquet("large.parquet", &large.expect("a batch"), 10),
        folder.parquet("none.parquet", &floats.expect("a batch"), 10),
    ];
    assert_eq!(text(&read(&source(paths)).expect("rows")), ["9007199254740993"]);
}

#[test]
fn dictionaries_and_views_come_as_plain_strings() {
    let folder = Folder::new();
    let dictionary: DictionaryArray<arrow_array::types::Int32Type> = ["x", "y", "x"].into_iter().collect();
    let views = StringViewArray::from(vec!["a", "a string that is too long to be inlined", "b"]);
    let columns: [(&str, ArrayRef); 2] = [("d", Arc::new(dictionary)), ("v", Arc::new(views))];
    let rows = RecordBatch::try_from_iter(columns).expect("a batch");
    for path in [folder.parquet("a.parquet", &rows, 10), folder.arrow("a.arrow", &rows, 10)] {
        let found = read(&source([path.clone()])).expect("rows");
        assert!(found.schema_ref().fields().iter().all(|f| *f.data_type() == DataType::Utf8), "{path}");
        assert_eq!(text(&found), text(&rows), "{path}");
        let filtered = ScanSource { filter: Some("d = 'y' AND v LIKE 'a%'".to_owned()), ..source([path]) };
        assert_eq!(read(&filtered).expect("rows").num_rows(), 1);
    }
}
