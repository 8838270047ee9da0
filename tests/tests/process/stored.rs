//! Row groups of Parquet files that workers read themselves.

use std::fs::File;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use sandbar_tests::{Lab, Model, component, models};

/// Creates a file whose `y` is a linear function of `x + z`, in row groups of `group_rows` rows, with additional
/// columns `more`, and a job over it.
fn lab(rows: i64, group_rows: usize, more: &[&'static str], transform: &str, train: &str) -> Lab {
    let lab = Lab::new();
    let column = |value: &dyn Fn(i64) -> Option<i64>| Arc::new(Int64Array::from_iter((0..rows).map(value))) as ArrayRef;
    let mut columns = vec![
        ("unused", column(&|i| Some(i))),
        ("x", column(&|i| Some(i % 1_000))),
        ("z", column(&|i| Some(i / 7))),
        ("y", column(&|i| Some(3 * (i % 1_000 + i / 7) + 1))),
        ("key", column(&|i| (i % 11 != 3).then_some(i % 7))),
    ];
    columns.extend(more.iter().map(|name| (*name, column(&|i| Some(-i)))));
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    // Without a page index, with which the node could skip pages.
    let properties = WriterProperties::builder().set_statistics_enabled(EnabledStatistics::Chunk);
    let properties = properties.set_max_row_group_row_count(Some(group_rows)).build();
    let file = File::create(lab.path("rows.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let models = format!("models = [{{ udf = \"{}#linear\" }}]", component("udfs/models").display());
    lab.write(
        "job.toml",
        format!(
            "[input]\npaths = [\"rows.parquet\"]\n[[transform]]\n{transform}\n[train]\n{train}\n{models}\n\
             [output]\npath = \"out.parquet\"\n"
        ),
    );
    lab
}

/// Returns the number of rows read, and the models.
fn trained(lab: &Lab, arguments: &[&str]) -> (u64, Vec<Model>) {
    let json = lab.host(&[&["submit", "job.toml", "--json"], arguments].concat()).expect_code(0).json();
    (json["rows"].as_u64().unwrap(), models(&lab.path("out.parquet")))
}

#[test]
fn workers_read_the_rows_that_the_node_reads() {
    let add = format!("udf = \"{}#add\"\ncolumns = [\"x\", \"z\"]\noutput = \"sum\"", component("udfs/taxi").display());
    let five = format!(
        "udf = \"{}#scalar_of_five\"\ncolumns = [\"x\", \"z\", \"y\", \"y\", \"z\"]\noutput = \"sum\"",
        component("tests/hostile/polite").display()
    );
    let all = format!("udf = \"{}#batch_prints\"", component("tests/hostile/polite").display());
    // A batch of this many columns exceeds 1 MiB, from which on guests map their input.
    let more = ["a", "b", "c", "d"];
    for (transform, feature, group_rows) in
        [(&add, "sum", 60_000), (&add, "sum", 1_000), (&five, "sum", 25_000), (&all, "d", 60_000)]
    {
        let train = format!("group_by = [\"key\"]\nfeatures = [\"{feature}\"]\ntarget = \"y\"");
        let lab = lab(60_000, group_rows, &more, transform, &train);
        for filter in [
            "key IS NOT NULL",
            "key IS NULL",
            "key IS NOT NULL AND x > 10 AND 900 >= x",
            "unused <> 5 AND unused < 40000",
            "x = 500",
        ] {
            let with = |filter: &str, workers| {
                trained(&lab, &["--set", &format!("input.filter=\"{filter}\""), "--workers", workers])
            };
            // A condition that is not on one column is left to the node.
            let by_node = with(&format!("({filter}) OR ({filter})"), "2");
            assert!(by_node.1.iter().all(|model| model.rows_train > 0) && !by_node.1.is_empty(), "{filter}");
            for workers in ["1", "2", "4"] {
                let by_workers = with(filter, workers);
                assert!(by_workers == by_node, "{transform}, {filter}, {group_rows} rows a group, {workers} workers");
            }
        }
    }
}

#[test]
fn a_call_has_a_row_group_unless_that_is_too_much() {
    let polite = component("tests/hostile/polite");
    let train = "group_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\ntest = 0";
    let lab = |transform: &str| lab(400_000, 300_000, &[], transform, train);
    let batches = lab(&format!("udf = \"{}#batch_remembers\"", polite.display()));
    let values = lab(&format!("udf = \"{}#scalar_remembers\"\ncolumns = [\"x\"]\noutput = \"k\"", polite.display()));
    let rows_by_seen = |lab: &Lab, arguments: &[&str]| -> Vec<(i64, u32)> {
        let (read, models) = trained(lab, arguments);
        assert_eq!(read, 400_000);
        let mut rows: Vec<_> = models.iter().map(|m| (m.key[0].parse().unwrap(), m.rows_train)).collect();
        rows.sort_unstable();
        rows
    };
    // Groups of 18 full batches and one of 5,088 rows, and of 6 and one of 1,696.
    let whole = |seen| match seen {
        1..=6 => 2 * 16_384,
        7 => 16_384 + 1_696,
        8..=18 => 16_384,
        _ => 5_088,
    };
    let in_groups: Vec<_> = (1..=19).map(|seen| (seen, whole(seen))).collect();
    assert_eq!(rows_by_seen(&batches, &[]), in_groups);
    for filter in ["y IS NOT NULL", "z >= 0 AND x < 1000"] {
        assert_eq!(rows_by_seen(&values, &["--set", &format!("input.filter=\"{filter}\"")]), in_groups, "{filter}");
    }
    // The larger group returns 7.2 MB and the batches' headers, ten of its batches 4 MB.
    for output_bytes_max in [5_000_000, 7_200_000] {
        let in_tens = rows_by_seen(&batches, &["--set", &format!("limits.output_bytes_max={output_bytes_max}")]);
        assert_eq!(in_tens.len(), 10, "{in_tens:?}");
        assert_eq!(in_tens.iter().map(|(_, rows)| rows).sum::<u32>(), 400_000);
    }
}

#[test]
fn a_damaged_row_group_is_named_by_its_file() {
    let transform = format!("udf = \"{}#add\"\ncolumns = [\"x\", \"z\"]", component("udfs/taxi").display());
    let lab = lab(50_000, 20_000, &[], &transform, "features = [\"add\"]\ntarget = \"y\"");
    let mut bytes = std::fs::read(lab.path("rows.parquet")).unwrap();
    // Everything but the footer.
    let end = bytes.len() - 10_000;
    bytes[4..end].fill(0xff);
    lab.write("rows.parquet", bytes);
    lab.host(&["submit", "job.toml"]).expect_code(1).expect_stderr(&["can't read rows.parquet: ", "[input]"]);
    assert!(!lab.path("out.parquet").exists());
}
