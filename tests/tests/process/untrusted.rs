//! Input is data: no content of a file starts a process or opens a file that the user did not name.
//!
//! The kernel reports the paths that the host and its descendants use. Each has to be named by the command or be the
//! host's own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::{
    KeyValue, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::WriterProperties;
use sandbar_tests::{Access, AccessKind, CommandOutput, Lab, component, watch};
use serde_json::{Value, json};

/// The canary, which no file may cause to be opened, changed or run: a crate whose build leaves a mark, a component,
/// rows, and paths to write to.
const CANARY: &str = "canary";
const MARK: &str = "canary/built";

/// A lab with rows, the models of a job with a transform, the canary, and a cache of its own.
struct Scene {
    lab: Lab,
    job: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let lab = Lab::new();
        lab.write("rows.csv", "x,z,y\n1,2,3\n2,3,5\n3,5,8\n4,4,8\n");
        lab.write("canary/rows.csv", "x,z,y\n9,9,9\n");
        lab.write("canary/Cargo.toml", CANARY_MANIFEST);
        lab.write("canary/src/lib.rs", "");
        let mark = lab.path(MARK);
        lab.write(
            "canary/build.rs",
            format!("fn main() {{ std::fs::write({:?}, \"built\").unwrap(); }}", mark.display()),
        );
        std::fs::copy(component("udfs/models"), lab.path("canary/models.wasm")).unwrap();
        let job = lab.write(
            "job.toml",
            format!(
                "[input]\npaths = [\"rows.csv\"]\n[[transform]]\nudf = \"{}#add\"\ncolumns = [\"x\", \"z\"]\noutput = \"sum\"\n\
                 [train]\nfeatures = [\"sum\"]\ntarget = \"y\"\nmodels = [{{ udf = \"{}#linear\" }}]\n\
                 [output]\npath = \"m.parquet\"\n",
                component("udfs/taxi").display(),
                component("udfs/models").display()
            ),
        );
        let scene = Scene { lab, job };
        assert_eq!(scene.run(&["submit", "job.toml"]).0.status.code(), Some(0));
        scene
    }

    /// Runs the host with the scene's cache.
    fn run(&self, arguments: &[&str]) -> (CommandOutput, Vec<Access>) {
        let mut command = self.lab.command(arguments);
        // Its own target folder as well, so that it waits for no other build.
        command.env("XDG_CACHE_HOME", self.lab.path("cache")).env("CARGO_TARGET_DIR", self.lab.path("target"));
        // Cargo sets library folders for its tests that a user's shell does not.
        command.env_remove("LD_LIBRARY_PATH");
        watch(command)
    }

    /// Runs the host, which may use the paths of the lab in `named` and no others, as reported by the kernel.
    #[track_caller]
    fn check(&self, arguments: &[&str], named: &[&str], code: i32, expected_texts: &[&str]) {
        let (ended, accesses) = self.run(arguments);
        let ended = ended.expect_code(code).expect_stderr(expected_texts);
        let wrong: Vec<_> = accesses.iter().filter(|access| !self.may(access, named)).collect();
        assert!(wrong.is_empty(), "{}: {wrong:#?}", ended.line);
        assert!(!accesses.is_empty() && !self.lab.path(MARK).exists(), "{}", ended.line);
    }

    /// Returns whether a command that names these paths of the lab may use this path.
    fn may(&self, access: &Access, named: &[&str]) -> bool {
        let Access { kind, path } = access;
        let own = self.lab.path("").canonicalize().unwrap();
        let host = sandbar_tests::host();
        if *kind == AccessKind::Run {
            // The host itself, and the programs of its processes.
            let folder = host.parent().unwrap().canonicalize().unwrap();
            return path.parent() == Some(&folder)
                && path.file_name().is_some_and(|n| n == "host" || n == "host-worker");
        }
        if named.iter().any(|name| *path == own.join(name)) {
            return true;
        }
        match path.strip_prefix(&own) {
            Ok(inside) => {
                let is_kept = ["cache", "state", "tmp"].iter().any(|folder| inside.starts_with(folder));
                let is_own = inside.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b".sandbar-"));
                // The host searches the output folder for files that a killed run left.
                is_kept || is_own || inside.as_os_str().is_empty()
            }
            // Libraries, and files of the kernel, which hold no user's data.
            Err(_) => {
                let system = ["/proc", "/sys", "/dev", "/etc", "/lib", "/lib64", "/usr"];
                *kind == AccessKind::Open
                    && (system.iter().any(|folder| path.starts_with(folder)) || path.parent() == host.parent())
            }
        }
    }

    /// Writes the models with a change to their job metadata.
    fn models(&self, name: &str, change: impl Fn(&mut Value)) {
        let (rows, mut metadata) = read(&self.lab.path("m.parquet"));
        change(&mut metadata);
        write(&self.lab.path(name), &rows, &metadata);
    }

    fn canary(&self) -> String {
        self.lab.path(CANARY).display().to_string()
    }
}

const CANARY_MANIFEST: &str = "[package]\nname = \"canary\"\nversion = \"0.1.0\"\nedition = \"2024\"\nbuild = \"build.rs\"\n\
                               [lib]\ncrate-type = [\"cdylib\"]\n[workspace]\n";

fn read(path: &Path) -> (Vec<RecordBatch>, Value) {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let metadata = pairs.iter().find(|pair| pair.key == "sandbar").and_then(|pair| pair.value.as_deref()).unwrap();
    let metadata = serde_json::from_str(metadata).unwrap();
    (reader.build().unwrap().map(Result::unwrap).collect(), metadata)
}

fn write(path: &Path, rows: &[RecordBatch], metadata: &Value) {
    let pair = KeyValue::new("sandbar".to_owned(), metadata.to_string());
    let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![pair])).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), rows[0].schema(), Some(properties)).unwrap();
    rows.iter().for_each(|rows| writer.write(rows).unwrap());
    writer.close().unwrap();
}

/// A hash of no component.
const UNKNOWN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Control: the watcher reports the canary when the user names it.
#[test]
fn user_named_files_are_checked() {
    let scene = Scene::new();
    let canary = scene.canary();
    scene.models("m2.parquet", |metadata| metadata["trainers"]["linear"]["component"] = json!(UNKNOWN));
    let predict = ["predict", "m2.parquet", "--input", "rows.csv", "--output", "p.csv", "--component", &canary];
    let (ended, accesses) = scene.run(&predict);
    ended.expect_code(2).expect_stderr(&["--component", &canary, "was trained with this component", UNKNOWN]);
    assert!(scene.lab.path(MARK).exists(), "the crate that the user names is built");
    let own = scene.lab.path(CANARY).canonicalize().unwrap();
    for (kind, path) in [
        (AccessKind::Open, own.join("Cargo.toml")),
        (AccessKind::Open, own.join("src/lib.rs")),
        (AccessKind::Open, own.join("built")),
    ] {
        assert!(
            accesses.contains(&Access { kind, path: path.clone() }),
            "{} is not among {accesses:#?}",
            path.display()
        );
    }
    let is_cargo =
        |access: &&Access| access.kind == AccessKind::Run && access.path.file_name().is_some_and(|n| n == "cargo");
    let is_build = |access: &&Access| access.kind == AccessKind::Run && access.path.ends_with("build-script-build");
    assert!(accesses.iter().any(|access| is_cargo(&access)) && accesses.iter().any(|access| is_build(&access)));
    assert!(accesses.iter().any(|access| !scene.may(access, &["m2.parquet", "rows.csv", "p.csv"])));
    // The same for rows.
    let (ended, accesses) = scene.run(&["predict", "m.parquet", "--input", "canary/rows.csv", "--output", "p.csv"]);
    ended.expect_code(0);
    assert!(accesses.contains(&Access { kind: AccessKind::Open, path: own.join("rows.csv") }));
}

/// A change to the metadata of a models file, the expected exit code, and words of the message.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Value), i32, &'a [&'a str]);

#[test]
fn paths_in_models_are_not_followed() {
    let scene = Scene::new();
    let (canary, wasm) = (scene.canary(), scene.lab.path("canary/models.wasm").display().to_string());
    let climbing = "../../canary/models";
    let cases: [Case<'_>; 12] = [
        ("nothing is changed", &|_| {}, 0, &[]),
        (
            "an unknown component at a crate",
            &|metadata| {
                metadata["trainers"]["linear"] =
                    json!({"component": UNKNOWN, "function": "linear", "params": "{}", "path": canary})
            },
            2,
            &[UNKNOWN, "is not in", "cache/sandbar/components", "--component"],
        ),
        (
            "an unknown component at a component",
            &|metadata| {
                metadata["trainers"]["linear"] =
                    json!({"component": UNKNOWN, "function": "linear", "params": "{}", "path": wasm})
            },
            2,
            &[UNKNOWN, "is not in"],
        ),
        ("a known component at a crate", &|metadata| metadata["trainers"]["linear"]["path"] = json!(canary), 0, &[]),
        (
            "a component that is a path",
            &|metadata| metadata["trainers"]["linear"]["component"] = json!(climbing),
            2,
            &["m2.parquet: its metadata is malformed", "is not a SHA-256"],
        ),
        ("a transform at a crate", &|metadata| metadata["transforms"][0]["path"] = json!(canary), 0, &[]),
        (
            "an unknown transform at a crate",
            &|metadata| {
                metadata["transforms"][0]["component"] = json!(UNKNOWN);
                metadata["transforms"][0]["path"] = json!(canary);
            },
            2,
            &[UNKNOWN, "is not in"],
        ),
        (
            "the job's transform is of a crate",
            &|metadata| metadata["job"]["transform"][0]["udf"] = json!(format!("{canary}#add")),
            0,
            &[],
        ),
        (
            "transforms that are of no component",
            &|metadata| {
                metadata["job"]["transform"][0]["udf"] = json!(format!("{canary}#add"));
                metadata["transforms"] = json!([]);
            },
            2,
            &["lacks the components of the job's transforms"],
        ),
        (
            "the job's trainer, rows, output and folders are the canary's",
            &|metadata| {
                metadata["job"]["train"]["models"][0]["udf"] = json!(format!("{canary}#linear"));
                metadata["job"]["input"]["paths"] = json!([format!("{canary}/rows.csv"), canary]);
                metadata["job"]["output"]["path"] = json!(format!("{canary}/p.parquet"));
            },
            0,
            &[],
        ),
        (
            "a job that trained nothing",
            &|metadata| metadata["job"]["train"] = json!(null),
            2,
            &["malformed", "trains no models"],
        ),
        (
            "a key and a feature that are paths",
            &|metadata| metadata["job"]["train"]["features"] = json!([format!("{canary}/rows.csv")]),
            1,
            &["the models need the feature"],
        ),
    ];
    for (label, change, code, expected_texts) in cases {
        scene.models("m2.parquet", change);
        sandbar_tests::print_line(format_args!("{label}"));
        let predict = ["predict", "m2.parquet", "--input", "rows.csv", "--output", "p.csv"];
        scene.check(&predict, &["m2.parquet", "rows.csv", "p.csv"], code, expected_texts);
    }
}

#[test]
fn cached_files_match_their_names() {
    let scene = Scene::new();
    let (_, metadata) = read(&scene.lab.path("m.parquet"));
    let id = metadata["trainers"]["linear"]["component"].as_str().unwrap();
    let kept = scene.lab.path(&format!("cache/sandbar/components/{id}.wasm"));
    let own = std::fs::read(&kept).unwrap();
    let predict = ["predict", "m.parquet", "--input", "rows.csv", "--output", "p.csv"];
    let named = ["m.parquet", "rows.csv", "p.csv"];
    for other in [std::fs::read(component("udfs/taxi")).unwrap(), own[..own.len() - 1].to_vec(), Vec::new()] {
        std::fs::write(&kept, other).unwrap();
        scene.check(&predict, &named, 1, &[id, "is not component", "remove it"]);
    }
    // A training job writes a truncated file again.
    let components =
        ["udfs/taxi", "udfs/models"].map(|folder| component(folder).canonicalize().unwrap().display().to_string());
    let of_job = ["job.toml", "rows.csv", "m.parquet", &components[0], &components[1]];
    scene.check(&["submit", "job.toml"], &of_job, 0, &[]);
    assert!(std::fs::read(&kept).unwrap() == own);
    scene.check(&predict, &named, 0, &[]);
    // A component that the user names replaces the missing one.
    std::fs::remove_file(&kept).unwrap();
    std::fs::copy(component("udfs/models"), scene.lab.path("named.wasm")).unwrap();
    scene.check(&predict, &named, 2, &[id, "is not in", "--component"]);
    let with_component = [&predict[..], &["--component", "named.wasm"]].concat();
    scene.check(&with_component, &["m.parquet", "rows.csv", "p.csv", "named.wasm"], 0, &[]);
    let other = scene.lab.path("other.wasm");
    std::fs::copy(component("tests/hostile/polite"), &other).unwrap();
    let with_other = [&predict[..], &["--component", "other.wasm"]].concat();
    scene.check(
        &with_other,
        &["m.parquet", "rows.csv", "other.wasm"],
        2,
        &["--component other.wasm", "was trained with this component", id],
    );
    assert!(scene.job.is_file());
}

/// Writes a copy of a Parquet file whose column chunks refer to another file.
fn move_column_chunks(from: &Path, to: &Path, other: &str) {
    let bytes = std::fs::read(from).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&File::open(from).unwrap()).unwrap();
    let footer = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap()) as usize;
    let groups = metadata.row_groups().iter().map(|group| {
        let columns = group.columns().iter();
        let columns =
            columns.map(|column| column.clone().into_builder().set_file_path(other.to_owned()).build().unwrap());
        let columns = columns.collect();
        RowGroupMetaData::builder(group.schema_descr_ptr())
            .set_num_rows(group.num_rows())
            .set_total_byte_size(group.total_byte_size())
            .set_column_metadata(columns)
            .build()
            .unwrap()
    });
    let moved = ParquetMetaData::new(metadata.file_metadata().clone(), groups.collect());
    let mut out = bytes[..bytes.len() - 8 - footer].to_vec();
    ParquetMetaDataWriter::new(&mut out, &moved).finish().unwrap();
    std::fs::write(to, out).unwrap();
}

#[test]
fn paths_in_rows_are_not_followed() {
    let scene = Scene::new();
    let canary = scene.lab.path("canary/rows.csv").display().to_string();
    // Column chunks in another file, and values that are paths, commands or formulas in other contexts.
    scene.lab.write("copy.toml", "[input]\npaths = [\"rows.csv\"]\n[output]\npath = \"out.csv\"\n");
    scene.check(
        &["submit", "copy.toml", "--output", "rows.parquet"],
        &["copy.toml", "rows.csv", "rows.parquet"],
        0,
        &[],
    );
    move_column_chunks(&scene.lab.path("rows.parquet"), &scene.lab.path("moved.parquet"), &canary);
    move_column_chunks(&scene.lab.path("m.parquet"), &scene.lab.path("moved-models.parquet"), &canary);
    let text = format!("x,z,y\n@{canary},file://{canary},`{canary}`\n$(cat {canary}),=cmd|'{canary}',|{canary}\n");
    scene.lab.write("words.csv", &text);
    let json = json!({"x": format!("@{canary}"), "$ref": canary, "file": canary});
    scene.lab.write("words.jsonl", format!("{json}\n"));
    for input in ["moved.parquet", "words.csv", "words.jsonl"] {
        let submit = ["submit", "copy.toml", "--input", input, "--output", "out.jsonl"];
        scene.check(&submit, &["copy.toml", input, "out.jsonl"], 0, &[]);
        let out = std::fs::read_to_string(scene.lab.path("out.jsonl")).unwrap();
        assert!(!out.contains("\"x\":9"), "{out}");
    }
    let predict = ["predict", "moved-models.parquet", "--input", "rows.csv", "--output", "p.csv"];
    scene.check(&predict, &["moved-models.parquet", "rows.csv", "p.csv"], 0, &[]);
    // A file that is not a component is not taken for the path or crate that it contains.
    for (name, text) in [("path.wasm", canary.clone()), ("crate.wasm", CANARY_MANIFEST.to_owned())] {
        scene.lab.write(name, text);
        scene.check(&["inspect", name], &[name], 1, &[name, "not-a-component"]);
    }
}

#[test]
fn paths_in_job_records_are_not_followed() {
    let scene = Scene::new();
    let canary = scene.canary();
    let id = "20260131-235959-123-4f3a9c";
    let record = json!({
        "version": 1, "id": id, "program": canary, "arguments": [["data", format!("@{canary}/rows.csv")]],
        "submitted_ms": 1, "state": "succeeded", "process": 1, "log": {"lines": 0, "dropped": 0},
        "result": format!("@{canary}/rows.csv"), "folder": canary, "path": canary,
    });
    scene.lab.write(&format!("state/sandbar/jobs/{id}/job.json"), record.to_string());
    scene.lab.write(&format!("state/sandbar/jobs/{id}/log"), format!("{{\"name\":\"{canary}\"}}\n@{canary}\n"));
    scene.lab.write(
        &format!("state/sandbar/jobs/{id}/tasks.json"),
        json!({"total": 1, "rows": [], "path": canary}).to_string(),
    );
    scene.lab.write(&format!("state/sandbar/jobs/{id}/lock"), "");
    for arguments in [
        &["jobs", "list"][..],
        &["jobs", "status", "4f3a9c"],
        &["jobs", "logs", "4f3a9c"],
        &["list", "tasks", "--job", "4f3a9c"],
        &["summary", "tasks", "--job", "4f3a9c"],
        &["timeline", "4f3a9c"],
    ] {
        let (ended, accesses) = scene.run(arguments);
        assert!(ended.status.code().is_some_and(|code| code < 2), "{}: {}", ended.line, ended.stderr);
        let wrong: Vec<_> = accesses.iter().filter(|access| !scene.may(access, &[])).collect();
        assert!(wrong.is_empty() && !scene.lab.path(MARK).exists(), "{}: {wrong:#?}", ended.line);
        let record = Arc::new(scene.lab.path(&format!("state/sandbar/jobs/{id}")).canonicalize().unwrap());
        assert!(accesses.iter().any(|access| access.path.starts_with(&*record)), "{}: it was looked at", ended.line);
    }
}
