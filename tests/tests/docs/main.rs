//! Runs the instructions of README.md, docs/*.md and deploy/README.md block by block in a fresh folder.
//!
//! The label of a block selects the check: see [`page::Label`]. Blocks of a page share a folder and a shell.

mod page;
mod shell;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use sandbar_tests::{Lab, Running, print_line, taxi_files, workspace};

use crate::page::{Label, Page};

/// Column names of New York's own files, and those of generated trips.
const CITY_COLUMNS: [(&str, &str); 4] = [
    ("pickup_at", "tpep_pickup_datetime"),
    ("dropoff_at", "tpep_dropoff_datetime"),
    ("pickup_location_id", "PULocationID"),
    ("dropoff_location_id", "DOLocationID"),
];

/// Returns README.md, the pages of docs, and deploy/README.md.
fn names() -> Vec<String> {
    let files = fs::read_dir(workspace().join("docs")).unwrap().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let mut pages: Vec<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    pages.extend(["README.md", "deploy/README.md"].map(str::to_owned));
    pages.sort();
    pages
}

#[test]
fn every_block_can_be_pasted() {
    let downloads = Lab::new();
    write_city_file(&downloads.path("yellow_tripdata_2019-01.parquet"));
    let mut faults = Vec::new();
    for name in names() {
        let since = Instant::now();
        let checked = Page::read(workspace(), &name).and_then(|page| check(&page, &downloads.path("")));
        print_line(format_args!("{name}: {:.1} s", since.elapsed().as_secs_f64()));
        faults.extend(checked.err());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// Runs all checks of a page.
fn check(page: &Page, downloads: &Path) -> Result<(), String> {
    let lab = shell::fresh_clone();
    shell::run(page, &lab, downloads)?;
    shell::parse_console(page, &lab)?;
    test_rust(page, &lab)?;
    check_jobs(page)?;
    for block in page.blocks(Label::Json) {
        let parsed = serde_json::from_str::<serde_json::Value>(&block.text);
        parsed.map_err(|error| format!("{}:{}: {error}", page.name, block.line))?;
    }
    Ok(())
}

/// Writes the Rust blocks as a crate's only file, and runs its tests.
fn test_rust(page: &Page, lab: &Lab) -> Result<(), String> {
    if page.blocks(Label::Rust).next().is_none() {
        return Ok(());
    }
    // One name per page: crates of the same name share cargo's build folder.
    let folder = format!("tmp/blocks-of-{}", page.name.replace(['/', '.'], "-"));
    lab.host(&["new", &folder]).expect_code(0);
    lab.write(&format!("{folder}/src/lib.rs"), page.only(Label::Rust, |_| String::new()));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--lib"]).current_dir(lab.path(&folder));
    shell::environment(&mut cargo, lab);
    let output = cargo.output().expect("cargo starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: its blocks of Rust (the lines of src/lib.rs are the page's):\n{stderr}\n{stdout}", page.name))
}

/// Has the host read each job file with an input that does not exist: the host reports the input only if the file is
/// valid.
fn check_jobs(page: &Page) -> Result<(), String> {
    for block in page.blocks(Label::Job) {
        let lab = shell::fresh_clone();
        lab.write("block.toml", &block.text);
        let line =
            ["submit", "block.toml", "--input", "absent.csv", "--set", "output.path=\"block.parquet\"", "--quiet"];
        let ended = Running::new(lab.command(&line)).wait();
        if ended.status.code() != Some(1) || !ended.stderr.contains("absent.csv") {
            let text = &block.text;
            return Err(format!("{}:{}: {text}--- the host says:\n{}", page.name, block.line, ended.stderr));
        }
    }
    Ok(())
}

/// Writes a month of trips with the city's column names and 64-bit zones.
fn write_city_file(path: &Path) {
    let month = File::open(&taxi_files()[0]).unwrap();
    let mut batches = ParquetRecordBatchReaderBuilder::try_new(month).unwrap().build().unwrap();
    let batch = batches.next().unwrap().unwrap();
    let (fields, columns): (Vec<_>, Vec<_>) = batch
        .schema()
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, column)| {
            let city_name = CITY_COLUMNS.iter().find(|(name, _)| name == field.name()).map(|(_, city)| *city);
            let data_type = if field.data_type() == &DataType::Int32 { &DataType::Int64 } else { field.data_type() };
            let renamed = field.as_ref().clone().with_data_type(data_type.clone());
            let renamed = renamed.with_name(city_name.unwrap_or(field.name()));
            (renamed, arrow_cast::cast(column, data_type).unwrap())
        })
        .unzip();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    for (_, name) in CITY_COLUMNS {
        assert!(batch.column_by_name(name).is_some(), "{name}");
    }
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn a_page_that_is_wrong_fails() {
    let nothing = Lab::new();
    for (text, expected_text) in [
        ("```sh\necho $((1 + 1))\n```\n```text\n2\n```\n", &[][..]),
        // One shell and one folder for the page.
        ("```sh\nx=1 && mkdir -p f && cd f\n```\n```sh\ntest $x = 1 && test ${PWD##*/} = f\n```\n", &[]),
        ("```sh\ntrue\n```\n\n```sh\ntrue\necho so far\nfalse\n```\n", &["p.md:5:", "so far", "line 8 of the page"]),
        ("```sh\nfalse | true\n```\n", &["p.md:1:"]),
        ("```sh\necho $undefined\n```\n", &["p.md:1:", "undefined"]),
        ("```sh\nif true\n```\n", &["p.md"]),
        ("```sh\nhost submit gone.toml\n```\n", &["p.md:1:", "gone.toml"]),
        ("```sh\ncurl -O https://example.org/gone\n```\n", &["p.md:1:", "gone"]),
        ("```sh\necho 3\n```\nprints\n```text\n2\n```\n", &["p.md:5: `2` is not"]),
        ("```console\na$ host serve --join b:7410 \\\n    --token x   # and so on\nanything\n```\n", &[]),
        ("```console\na$ host serve --jion b:7410\n```\n", &["p.md:1:", "--jion"]),
        ("```console\na$ cd / && host fly\n```\n", &["p.md:1:", "fly"]),
        ("```console\na$ sudo -u x mkdir y\na$ sudo -u x host fly\n```\n", &["p.md:1:", "fly"]),
        // A command that is not run reads its whole standard input.
        ("```console\n$ printf '%100000d' 1 | sudo tee x\n```\n", &[]),
        ("```console\n$ kubectl exec x -- host fly |\n    kubectl create\n```\n", &["p.md:1:", "fly"]),
        ("```toml\n[input]\npaths = [\"a.csv\"]\n```\n", &[]),
        ("```toml\n[input]\npath = [\"a.csv\"]\n```\n", &["p.md:1:", "path"]),
        ("```json\n{\"a\": 1,}\n```\n", &["p.md:1:", "line 1"]),
    ] {
        let faults = check(&Page::parse("p.md", text).unwrap(), &nothing.path(""));
        match faults {
            Ok(()) => assert!(expected_text.is_empty(), "{text}"),
            Err(fault) => {
                assert!(!expected_text.is_empty(), "{text}: {fault}");
                expected_text
                    .iter()
                    .for_each(|word| assert!(fault.contains(word), "{text}: `{word}` is not in {fault}"));
            }
        }
    }
}

#[test]
fn rust_that_is_wrong_fails() {
    let nothing = Lab::new();
    let page = |line: &str| {
        Page::parse("p.md", &format!("a\n```rust\n#[test]\nfn t() {{ {line} }}\n```\n```rust,ignore\n…\n```\n"))
            .unwrap()
    };
    check(&page("assert_eq!(1, 1);"), &nothing.path("")).unwrap();
    for (line, expected_text) in [("assert_eq!(1, 2);", "left: 1"), ("absent();", "src/lib.rs:4")] {
        let fault = check(&page(line), &nothing.path("")).unwrap_err();
        assert!(fault.contains(expected_text), "{fault}");
    }
}

#[test]
fn the_job_in_the_readme_is_the_example() {
    let page = Page::read(workspace(), "README.md").unwrap();
    let example = fs::read_to_string(workspace().join("examples/taxi.toml")).unwrap();
    // The page describes the file's first lines in prose.
    let without_comment: String = example.split_inclusive('\n').skip_while(|line| line.starts_with('#')).collect();
    assert!(page.blocks(Label::Job).any(|block| block.text == without_comment), "{without_comment}");
}

/// Counts the commands of the first-hour page up to the first trained model.
#[test]
fn the_first_hour_comes_to_a_model_in_ten_commands() {
    let page = Page::read(workspace(), "docs/first-hour.md").unwrap();
    let until_trained = page.blocks(Label::Shell).scan(false, |is_trained, block| {
        let goes_on = !*is_trained;
        *is_trained = block.text.contains("host submit train.toml");
        goes_on.then(|| commands(&block.text))
    });
    let commands: Vec<String> = until_trained.flatten().collect();
    assert_eq!(commands.last().map(String::as_str), Some("host submit train.toml"), "{commands:?}");
    assert!(commands.len() <= 10, "{commands:#?}");
}

/// Returns the commands of a block, without here-documents.
fn commands(block: &str) -> Vec<String> {
    let mut until = None;
    let mut commands = Vec::new();
    for line in block.lines() {
        match until {
            Some(end) if line == end => until = None,
            Some(_) => {}
            None if line.trim().is_empty() => {}
            None => {
                until = line.split_once("<<'").and_then(|(_, rest)| rest.split_once('\'')).map(|(end, _)| end);
                commands.push(line.to_owned());
            }
        }
    }
    commands
}
