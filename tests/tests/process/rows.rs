//! Jobs that write rows: values, formats and order of the output, and what remains after a failure.

use sandbar_tests::{Lab, component};

const ROWS: &str =
    "k,x,y,z\na,1,1.5,one\na,2,2.5,\"t,w\"\nb,3,-0.5,\"say \"\"three\"\"\"\n,4,1e300,four\nb,5,,\"fi\nve\"\n";

/// Creates a lab with these rows and a job over them.
fn lab(rows: &str, job: &str) -> Lab {
    let lab = Lab::new();
    lab.write("rows.csv", rows);
    lab.write("job.toml", format!("name = \"copy\"\n[input]\npaths = [\"rows.csv\"]\n{job}"));
    lab
}

/// Returns a transform by one of the hostile functions.
fn transform(function: &str, rest: &str) -> String {
    format!("[[transform]]\nudf = \"{}#{function}\"\n{rest}\n", component("tests/hostile/polite").display())
}

fn text(lab: &Lab, name: &str) -> String {
    std::fs::read_to_string(lab.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn a_job_need_not_train() {
    let add = format!(
        "[[transform]]\nudf = \"{}#add\"\ncolumns = [\"x\", \"x\"]\noutput = \"twice\"\n",
        component("udfs/taxi").display()
    );
    let lab = lab(ROWS, &format!("filter = \"x > 1\"\n{add}[output]\npath = \"out.csv\"\n"));
    let json = lab.host(&["submit", "job.toml", "--json"]).expect_code(0).json();
    let expected =
        "k,x,y,z,twice\na,2,2.5,\"t,w\",4\nb,3,-0.5,\"say \"\"three\"\"\",6\n,4,1e300,four,8\nb,5,,\"fi\nve\",10\n";
    assert_eq!(text(&lab, "out.csv"), expected);
    for (field, value) in
        [("rows", 4), ("rows_written", 4), ("rows_dropped", 0), ("files", 1), ("bytes", expected.len())]
    {
        assert_eq!(json[field], value, "{field} of {json}");
    }
    assert_eq!(json["output"], "out.csv");
    let ended = lab.host(&["submit", "job.toml"]).expect_code(0);
    for expected_text in
        ["copy: 4 rows that passed the filter, all kept by the transforms; ran in ", "rows: out.csv (4 rows, "]
    {
        assert!(ended.stdout.contains(expected_text), "{}", ended.stdout);
    }
}

#[test]
fn every_format_is_read_again() {
    let lab = lab(ROWS, "[output]\npath = \"out.csv\"\n");
    lab.host(&["submit", "job.toml"]).expect_code(0);
    let expected = text(&lab, "out.csv");
    for name in [
        "o.parquet",
        "o.csv",
        "o.tsv",
        "o.json",
        "o.jsonl",
        "o.ndjson",
        "o.arrow",
        "o.feather",
        "o.ipc",
        "deep/er/o.CSV",
    ] {
        lab.host(&["submit", "job.toml", "--output", name]).expect_code(0);
        lab.host(&["submit", "job.toml", "--input", name, "--output", "again.csv"]).expect_code(0);
        assert_eq!(text(&lab, "again.csv"), expected, "{name}");
    }
    lab.host(&["submit", "job.toml", "--output", "o.dat", "--set", "output.format=\"json\""]).expect_code(0);
    assert_eq!(text(&lab, "o.dat"), text(&lab, "o.jsonl"));
}

#[test]
fn numbers_that_json_has_not_are_texts() {
    let lab = lab("x\n1.5\nNaN\ninf\n-inf\n\n0.1\n", "[output]\npath = \"out.jsonl\"\n");
    lab.host(&["submit", "job.toml"]).expect_code(0);
    let expected = "{\"x\":1.5}\n{\"x\":\"NaN\"}\n{\"x\":\"Infinity\"}\n{\"x\":\"-Infinity\"}\n{\"x\":0.1}\n";
    assert_eq!(text(&lab, "out.jsonl"), expected);
}

#[test]
fn rows_that_transforms_leave_out_are_counted() {
    let rows: String = (0..100).map(|x| format!("{x},{}\n", x % 7)).collect();
    let lab = lab(
        &format!("x,y\n{rows}"),
        &(transform("batch_keeps", "params = { rows = 30 }") + "[output]\npath = \"out.csv\"\n"),
    );
    let json = lab.host(&["submit", "job.toml", "--json"]).expect_code(0).json();
    assert_eq!(
        (&json["rows"], &json["rows_written"], &json["rows_dropped"]),
        (&100.into(), &30.into(), &70.into()),
        "{json}"
    );
    let ended = lab.host(&["submit", "job.toml"]).expect_code(0);
    assert!(ended.stdout.contains("100 rows, 30 after the transforms (70 dropped)"), "{}", ended.stdout);
    assert_eq!(text(&lab, "out.csv").lines().count(), 31);
    let train = format!(
        "[train]\nfeatures = [\"x\"]\ntarget = \"y\"\nmodels = [{{ udf = \"{}#linear\" }}]\n[output]\npath = \"m.parquet\"\n",
        component("udfs/models").display()
    );
    lab.write("train.toml", text(&lab, "job.toml").replace("[output]\npath = \"out.csv\"\n", &train));
    let json = lab.host(&["submit", "train.toml", "--json"]).expect_code(0).json();
    assert_eq!(
        (&json["rows"], &json["rows_transformed"], &json["rows_dropped"]),
        (&100.into(), &30.into(), &70.into()),
        "{json}"
    );
    assert_eq!(json["bytes"], std::fs::metadata(lab.path("m.parquet")).unwrap().len());
    // Predictions are written in any format as well.
    let predict = ["predict", "m.parquet", "--input", "rows.csv", "--output", "p.jsonl", "--json"];
    let json = lab.host(&predict).expect_code(0).json();
    assert_eq!(
        (&json["rows"], &json["rows_written"], &json["rows_dropped"]),
        (&100.into(), &30.into(), &70.into()),
        "{json}"
    );
    assert!(text(&lab, "p.jsonl").lines().all(|line| line.contains("\"prediction\":")));
}

/// Returns the names of the files in a folder of a lab.
fn files(lab: &Lab, folder: &str) -> Vec<String> {
    let names = lab.names().into_iter().filter(|name| !name.ends_with('/'));
    names.filter_map(|name| Some(name.strip_prefix(folder)?.to_owned())).collect()
}

#[test]
fn columns_name_folders() {
    let rows = "k,d,x\na/b,2024-01-02,1\n,2024-01-02,2\na/b,2024-01-03,3\nc d,,4\na/b,2024-01-02,5\n";
    let lab = lab(rows, "[output]\npath = \"out\"\npartition_by = [\"k\", \"d\"]\nformat = \"csv\"\n");
    let json = lab.host(&["submit", "job.toml", "--json"]).expect_code(0).json();
    let null = "__HIVE_DEFAULT_PARTITION__";
    let expected = [
        ("k=a%2Fb/d=2024-01-02/part-00000.csv".to_owned(), "x\n1\n5\n"),
        ("k=a%2Fb/d=2024-01-03/part-00000.csv".to_owned(), "x\n3\n"),
        (format!("k={null}/d=2024-01-02/part-00000.csv"), "x\n2\n"),
        (format!("k=c d/d={null}/part-00000.csv"), "x\n4\n"),
    ];
    let mut names: Vec<_> = expected.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    assert_eq!(files(&lab, "out/"), names);
    for (name, rows) in &expected {
        assert_eq!(text(&lab, &format!("out/{name}")), *rows, "{name}");
    }
    assert_eq!((&json["files"], &json["rows_written"]), (&4.into(), &5.into()), "{json}");
    // Rows never mix with those of an older output; an empty folder may be written to.
    let before = lab.names();
    lab.host(&["submit", "job.toml"]).expect_code(1).expect_stderr(&["can't write out", "not empty"]);
    assert_eq!(lab.names(), before);
    std::fs::create_dir(lab.path("free")).unwrap();
    for folder in ["free", "new/er/", "table.parquet"] {
        lab.host(&["submit", "job.toml", "--output", folder]).expect_code(0);
        assert_eq!(files(&lab, &format!("{}/", folder.trim_end_matches('/'))).len(), 4, "{folder}");
    }
}

#[test]
fn more_folders_than_files_may_be_open() {
    // Rows of all folders alternate.
    let rows: String = (0..3000).map(|x| format!("{},{x}\n", x % 300)).collect();
    let lab = lab(&format!("k,x\n{rows}"), "[output]\npath = \"out\"\npartition_by = [\"k\"]\nformat = \"csv\"\n");
    let json = lab.host(&["submit", "job.toml", "--json"]).expect_code(0).json();
    assert_eq!(json["rows_written"], 3000, "{json}");
    for k in [0, 7, 299] {
        let names: Vec<_> = files(&lab, &format!("out/k={k}/"));
        let rows: Vec<u32> = names
            .iter()
            .flat_map(|name| {
                let text = text(&lab, &format!("out/k={k}/{name}"));
                text.lines().skip(1).map(|line| line.parse().unwrap()).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(rows, (0..10).map(|i| k + 300 * i).collect::<Vec<_>>(), "{names:?}");
    }
}

#[test]
fn rows_keep_their_order_whoever_works() {
    let lab = lab(
        "x,y\n1,1\n",
        &(transform("scalar_refuses", "columns = [\"x\"]\noutput = \"z\"") + "[output]\npath = \"o.csv\"\n"),
    );
    let mut expected = String::from("x,y,z\n");
    for file in 0..40 {
        // Some files are long, so that later ones are ready before them.
        let rows = if file % 7 == 0 { 60_000 } else { 50 };
        let text: String = (0..rows).map(|row| format!("{},{row}\n", file * 100_000 + row)).collect();
        lab.write(&format!("in/{file:02}.csv"), format!("x,y\n{text}"));
        (0..rows).for_each(|row| expected += &format!("{0},{row},{0}\n", file * 100_000 + row));
    }
    let outputs = ["1", "2", "5"].map(|workers| {
        lab.host(&["submit", "job.toml", "--input", "in", "--workers", workers]).expect_code(0);
        lab.host(&["submit", "job.toml", "--input", "in", "--workers", workers, "--output", "o.parquet"])
            .expect_code(0);
        (text(&lab, "o.csv"), std::fs::read(lab.path("o.parquet")).unwrap())
    });
    assert!(outputs[0].0 == expected);
    assert!(outputs[1] == outputs[0] && outputs[2] == outputs[0]);
}

#[test]
fn rows_are_written_whole_or_not_at_all() {
    let rows: String = (0..50_000).map(|x| format!("{},{x}\n", x % 3)).collect();
    let refusing = transform("scalar_refuses", "columns = [\"x\"]\noutput = \"z\"");
    let lab = lab(&format!("k,x\n{rows}0,-1\n"), &format!("{refusing}[output]\npath = \"out.csv\"\n"));
    lab.write("out.csv", "as it was");
    let before = lab.names();
    for more in [&[][..], &["--output", "new/o.parquet"], &["--output", "new", "--set", "output.partition_by=[\"k\"]"]]
    {
        let ended = lab.host(&[&["submit", "job.toml"], more].concat()).expect_code(1);
        ended.expect_stderr(&["scalar_refuses: rows.csv, row 50001: -1 is negative [refused]"]);
        assert_eq!(lab.names().into_iter().filter(|name| name != "new/").collect::<Vec<_>>(), before, "{more:?}");
    }
    assert_eq!(text(&lab, "out.csv"), "as it was");
}

#[test]
fn outputs_of_rows_that_can_not_be() {
    let lab = lab("k,x\na,1\n", "[output]\npath = \"out.csv\"\n");
    lab.write("nested.jsonl", "{\"x\": 1, \"places\": [1, 2]}\n");
    std::fs::create_dir(lab.path("folder.csv")).unwrap();
    for (arguments, code, expected_text) in [
        (&["--output", "out"][..], 2, &["--output: the output `out` does not say its format", ".parquet, .csv"][..]),
        (&["--output", "out.exe"], 2, &["does not say its format"]),
        (&["--output", "out/"], 2, &["is no file", "`partition_by`"]),
        (&["--output", "s3://bucket/x.csv"], 2, &["is a URL"]),
        (&["--output", "rows.csv"], 2, &["would replace `rows.csv`, which is read"]),
        (&["--output", "folder.csv"], 1, &["it is a folder"]),
        (&["--output", "rows.csv/out.csv"], 1, &["rows.csv/out.csv", "Not a directory"]),
        (&["--input", "nested.jsonl"], 1, &["column `places` has type List", "CSV can't represent"]),
        (&["--set", "output.partition_by=[\"kk\"]"], 1, &["column of `partition_by` `kk` is not in the output", "`k`"]),
        (&["--set", "output.partition_by=[\"k\", \"k\"]"], 1, &["names `k` twice"]),
        (&["--set", "output.partition_by=[\"k\", \"x\"]"], 1, &["names all columns"]),
        (&["--set", "output.format=\"xml\""], 2, &["--set output.format=…: unknown variant `xml`"]),
    ] {
        let before = lab.names();
        lab.host(&[&["submit", "job.toml"], arguments].concat()).expect_code(code).expect_stderr(expected_text);
        assert_eq!(lab.names(), before, "{arguments:?}");
    }
    // Formats other than CSV can write lists.
    lab.host(&["submit", "job.toml", "--input", "nested.jsonl", "--output", "n.jsonl"]).expect_code(0);
    assert_eq!(text(&lab, "n.jsonl"), "{\"x\":1,\"places\":[1,2]}\n");
}

#[test]
fn errors_name_the_row_of_the_file() {
    let rows = |from: i64, to: i64, bad: &[i64]| -> String {
        let row = |x: i64| format!("{},{}\n", x % 2, if bad.contains(&x) { -x } else { x });
        format!("k,x\n{}", (from..to).map(row).collect::<String>())
    };
    let lab = lab(
        "",
        &(transform("scalar_refuses", "columns = [\"x\"]\noutput = \"x\"") + "[output]\npath = \"out.parquet\"\n"),
    );
    lab.write("rows.csv", rows(0, 20_000, &[]));
    lab.write("bad.csv", rows(0, 30_000, &[20_001, 20_003]));
    lab.host(&["submit", "job.toml", "--input", "bad.csv", "--output", "bad.parquet", "--set", "transform=[]"])
        .expect_code(0);
    let panics = format!(
        "transform=[{{udf=\"{}#scalar_panics\", columns=[\"x\"]}}]",
        component("tests/hostile/polite").display()
    );
    for (arguments, expected_text) in [
        (&["--input", "bad.csv"][..], "bad.csv, row 20002: -20001 is negative [refused]"),
        (&["--input", "bad.parquet"], "bad.parquet, row 20002: -20001 is negative [refused]"),
        (&["--input", "rows.csv", "--input", "bad.csv"], "bad.csv, row 20002: -20001 is negative [refused]"),
        // Row numbers count the rows that the filter drops.
        (
            &["--input", "bad.csv", "--set", "input.filter=\"k = 1 AND x <> -20001\""],
            "bad.csv, row 20004: -20003 is negative",
        ),
        (
            &["--input", "bad.parquet", "--set", "input.filter=\"k = 1 AND x <> -20001\""],
            "bad.parquet, row 20004: -20003",
        ),
        // For a panic, the function gives no row number.
        (
            &["--input", "rows.csv", "--set", &panics, "--set", "input.filter=\"x > 2\""],
            "rows.csv, row 4: panicked at ",
        ),
    ] {
        lab.host(&[&["submit", "job.toml"], arguments].concat()).expect_code(1).expect_stderr(&[expected_text]);
    }
}

#[test]
fn values_that_can_not_be_used_are_found_in_their_file() {
    let lab = Lab::new();
    let models = component("udfs/models");
    let job = |transform: &str, train: &str| {
        format!(
            "[input]\npaths = [\"rows.csv\"]\nfilter = \"x <> 2\"\n{transform}[train]\n{train}\nfeatures = [\"x\"]\ntarget = \"y\"\n\
             models = [{{ udf = \"{}#linear\" }}]\n[output]\npath = \"m.parquet\"\n",
            models.display()
        )
    };
    lab.write("rows.csv", "k,x,y\na,1,2\na,2,4\na,3,6\na,4,8\na,5,1\nb,1,1\nb,3,\nb,4,4\nb,5,\nb,6,6\n");
    let again = transform("scalar_refuses", "columns = [\"x\"]\noutput = \"x\"");
    let head = transform("batch_keeps", "");
    for transform in ["", &again, &head] {
        for train in ["group_by = [\"k\"]", "group_by = [\"k\"]\nper_file = true", "per_file = true", ""] {
            lab.write("job.toml", job(transform, train));
            lab.host(&["submit", "job.toml"])
                .expect_code(1)
                .expect_stderr(&["2 values of column `y` are null (the first: rows.csv, row 7): fill them in"]);
        }
    }
    lab.write("good.csv", "k,x,y\na,1,2\na,3,6\na,4,8\na,5,1\n");
    lab.host(&["submit", "job.toml", "--input", "good.csv"]).expect_code(0);
    lab.write("new.csv", "x\n1\n2\n\n4\n");
    lab.write("new.jsonl", "{\"x\": 1}\n{\"x\": 3}\n{\"x\": null}\n");
    let predict = ["predict", "m.parquet", "--input", "new.jsonl", "--output", "p.csv"];
    lab.host(&predict).expect_code(1).expect_stderr(&["failed: new.jsonl, row 3: a feature is null"]);
    assert!(lab.path("p.csv").exists());
}

#[test]
fn parameters_that_a_function_refuses_are_named() {
    let lab =
        lab("x,y\n1,2\n", &(transform("batch_keeps", "params = { rows = 1 }") + "[output]\npath = \"out.csv\"\n"));
    for (set, expected_text) in [
        ("transform.0.params.row=5", "`--set transform.0.params.row=…`: "),
        ("transform.0.params.row=5", "unknown field `row` (did you mean `rows`?)"),
        ("transform.0.params.rows=\"all\"", "`--set transform.0.params.rows=…`: "),
        ("transform.0.params.rows=\"all\"", "invalid type: string \"all\""),
    ] {
        lab.host(&["submit", "job.toml", "--set", set]).expect_code(1).expect_stderr(&[
            "#batch_keeps",
            expected_text,
            "[refused]",
        ]);
    }
    lab.write("bad.toml", text(&lab, "job.toml").replace("rows = 1", "rows = -1"));
    lab.host(&["submit", "bad.toml"]).expect_code(1).expect_stderr(&["`transform[0].params.rows`: "]);
}
