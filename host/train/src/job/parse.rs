//! Parsing of job files with command-line overrides. Errors name the line, or the flag that is to blame.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::error::{JobFileError, ValidationError};
use super::{Job, KeyFlag};

/// A command-line setting that overrides one of the job file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// Flag: `--set`, `--input` or `--output`.
    flag: &'static str,
    /// Assignment: `dotted.key=VALUE`.
    assignment: String,
}

impl Override {
    /// Creates the override of a flag. The assignment is `dotted.key=VALUE` with a TOML value.
    pub fn new(flag: &'static str, assignment: impl Into<String>) -> Override {
        Override { flag, assignment: assignment.into() }
    }

    /// Returns the flag as messages show it.
    fn label(&self) -> String {
        let key = self.assignment.split('=').next().unwrap_or_default().trim();
        if self.flag == "--set" { format!("--set {key}=…") } else { self.flag.to_owned() }
    }

    fn key_flag(&self) -> KeyFlag {
        let key = self.assignment.split('=').next().unwrap_or_default().trim().to_owned();
        KeyFlag { key, label: self.label() }
    }
}

impl Job {
    /// Parses and validates a job file, with overrides of its settings.
    ///
    /// # Errors
    /// Fails if the text is not a job, or the job is invalid.
    pub fn parse(text: &str, overrides: &[Override]) -> Result<Job, JobFileError> {
        let error = match parse_valid(text, overrides) {
            Ok(mut job) => {
                job.flags = overrides.iter().map(Override::key_flag).collect();
                return Ok(job);
            }
            Err(error) => error,
        };
        // The last override of the shortest prefix that yields this error is to blame.
        let is_same =
            |count: &usize| parse_valid(text, &overrides[..*count]).is_err_and(|other| other.message == error.message);
        let count = (0..=overrides.len()).find(is_same).unwrap_or(overrides.len());
        if let Some(blamed) = count.checked_sub(1).and_then(|last| overrides.get(last)) {
            return Err(JobFileError { flag: Some(blamed.label()), position: None, message: error.message });
        }
        // Without overrides the position is known as well.
        let error = parse_valid(text, &[]).err().unwrap_or(error);
        let span = error.span.or_else(|| span_of(text, error.key.as_deref()?));
        // A field that the whole file lacks has no position.
        let span = span.filter(|span| span.start > 0 || !error.message.starts_with("missing field"));
        let position = span.map(|span| line_and_column(text, span.start));
        Err(JobFileError { flag: None, position, message: error.message })
    }
}

/// Parses and validates a job with overrides.
fn parse_valid(text: &str, overrides: &[Override]) -> Result<Job, ValidationError> {
    let job: Job = if overrides.is_empty() {
        toml::from_str(text).map_err(|e| ValidationError::from_toml(&e))?
    } else {
        let mut table: toml::Table = text.parse().map_err(|e| ValidationError::from_toml(&e))?;
        let invalid = |message| ValidationError { key: None, span: None, message };
        overrides.iter().try_for_each(|o| set_key(&mut table, &o.assignment)).map_err(invalid)?;
        toml::Value::Table(table).try_into().map_err(|e| ValidationError::from_toml(&e))?
    };
    job.check().map(|()| job)
}

/// Returns the byte range of a dotted key's value, or of its innermost parent in the text.
fn span_of(text: &str, key: &str) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let mut keys = key.split('.');
    let mut value = table.get_ref().get(keys.next()?)?;
    for key in keys {
        let next = match value.get_ref() {
            DeValue::Table(table) => table.get(key),
            DeValue::Array(list) => key.parse().ok().and_then(|index: usize| list.get(index)),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => break,
        }
    }
    Some(value.span())
}

/// Returns the line and column of a byte of a text, from 1.
fn line_and_column(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Sets a dotted key of `table` to a TOML value: `train.seed=7`, `input.paths=["a", "b"]`,
/// `train.models.0.params.max_depth=5`.
fn set_key(table: &mut toml::Table, assignment: &str) -> Result<(), String> {
    let Some((path, text)) = assignment.split_once('=') else {
        return Err(format!("`{assignment}` is not KEY=VALUE"));
    };
    let parsed: toml::Table = format!("value = {}", text.trim()).parse().map_err(|_| {
        format!("`{}` is not a TOML value; text needs quotes: --set '{path}=\"{}\"'", text.trim(), text.trim())
    })?;
    let value = parsed.get("value").cloned().ok_or_else(|| format!("`{assignment}` has no value"))?;
    let keys: Vec<&str> = path.trim().split('.').collect();
    let (last, parents) = keys.split_last().ok_or("the key is empty")?;
    let mut root = toml::Value::Table(std::mem::take(table));
    let result = insert(&mut root, parents, last, value)
        .map_err(|key| format!("`{path}` can't be set: `{key}` is neither a table nor an element of a list"));
    if let toml::Value::Table(changed) = root {
        *table = changed;
    }
    result
}

/// Inserts a value below `parents`.
///
/// # Errors
/// Returns the first key that is neither in a table nor an element of a list.
fn insert<'a>(root: &mut toml::Value, parents: &[&'a str], last: &'a str, value: toml::Value) -> Result<(), &'a str> {
    let mut parent = root;
    for key in parents {
        parent = match parent {
            toml::Value::Table(table) => table.entry(*key).or_insert_with(|| toml::Value::Table(toml::Table::new())),
            toml::Value::Array(list) => key.parse::<usize>().ok().and_then(|i| list.get_mut(i)).ok_or(*key)?,
            _ => return Err(*key),
        };
    }
    match parent {
        toml::Value::Table(table) => {
            table.insert(last.to_owned(), value);
        }
        toml::Value::Array(list) => {
            *last.parse::<usize>().ok().and_then(|i| list.get_mut(i)).ok_or(last)? = value;
        }
        _ => return Err(last),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::Metric;

    const JOB: &str = r#"
        [input]
        paths = ["data"]
        [train]
        features = ["x"]
        target = "y"
        models = [{ udf = "m#linear" }, { udf = "m#tree", params = { max_depth = 3 } }]
        [output]
        path = "out.parquet"
    "#;

    fn sets(overrides: &[&str]) -> Vec<Override> {
        overrides.iter().map(|o| Override::new("--set", *o)).collect()
    }

    fn check(overrides: &[&str], expect: Result<fn(&Job) -> bool, &str>) {
        match (Job::parse(JOB, &sets(overrides)), expect) {
            (Ok(job), Ok(holds)) => assert!(holds(&job), "{overrides:?}: {job:?}"),
            (Err(e), Err(expected)) => {
                assert!(e.to_string().contains(expected), "{overrides:?}: {e}");
                assert!(e.to_string().starts_with("--set "), "{overrides:?}: {e}");
            }
            (actual, _) => panic!("{overrides:?}: {actual:?}"),
        }
    }

    #[test]
    fn anything_can_be_set() {
        fn train(job: &Job) -> &crate::job::TrainSpec {
            job.train.as_ref().unwrap()
        }
        check(&[], Ok(|j| train(j).test == 0.25 && train(j).min_rows == 4 && train(j).models[1].label() == "tree"));
        check(&["train.seed=7"], Ok(|j| train(j).seed == 7));
        check(&["input.paths=[\"a\", \"b\"]"], Ok(|j| j.input.paths == ["a", "b"]));
        check(&["input.types.zip=\"utf8\"", "input.header=false"], Ok(|j| j.input.types["zip"] == "utf8"));
        check(&["train.models.1.params.max_depth=5"], Ok(|j| train(j).models[1].params["max_depth"] == 5));
        check(&["limits.time_ms_max=5"], Ok(|j| j.limits.time_ms_max == 5));
        check(&["train.metric=\"r2\""], Ok(|j| train(j).metric == Metric::R2));
        check(&["transform=[{udf=\"t#f\", columns={a=\"b\"}}]"], Ok(|j| j.transform.len() == 1));
    }

    #[test]
    fn errors_name_the_flag() {
        check(&["train.seed"], Err("not KEY=VALUE"));
        check(&["train.target=y"], Err("text needs quotes"));
        check(&["train.colour=1"], Err("--set train.colour=…: unknown field `colour`"));
        check(
            &["train.seed=1", "train.tets=0.5", "train.test=0.5"],
            Err("--set train.tets=…: unknown field `tets` (did you mean `test`?)"),
        );
        check(&["train.metric=\"mea\""], Err("unknown variant `mea` (did you mean `mae`?)"));
        check(&["train.models.9.udf=\"x\""], Err("models.9"));
        check(&["train.test=1.5"], Err("--set train.test=…: `train.test` is 1.5"));
        check(&["train.features=[\"y\"]"], Err("both a feature and the target"));
        check(&["train.models=[{udf=\"a#f\"},{udf=\"b#f\"}]"], Err("two models are called `f`"));
        check(&["train.models=[]"], Err("train.models"));
        check(&["transform=[{udf=\"t#f\", columns=5}]"], Err("`columns` is a list of columns"));
        check(&["limits.instances_max=4000000000"], Err("`limits.instances_max` is 4000000000, not from 1 to 1000"));
        check(&["limits.time_ms_max=0"], Err("`limits.time_ms_max` is 0, less than 1"));
        check(&["limits.memory_bytes_max=8589934592"], Err("not from 65536 to 4294967296"));
        check(&["input.paths=[]"], Err("input.paths"));
        check(
            &["input.types={ zip = \"utf9\" }"],
            Err("`input.types` of column `zip`: `utf9` is not the name of a type"),
        );
        check(&["input.delimiter=\";;\""], Err("`input.delimiter` is \";;\""));
        check(&["input.quote=\",\""], Err("`input.delimiter` and `input.quote`"));
        check(&["input.encoding=\"koi8-r\""], Err("`input.encoding` is `koi8-r`"));
        for key in ["model", "rank", "mae", "mse", "rmse", "r2", "rows_train", "rows_test", "params", "model_bytes"] {
            check(&[&format!("train.group_by=[\"k\", \"{key}\"]")], Err("a column of the output"));
        }
        for (path, expected) in [
            ("", "is no file"),
            ("out/", "is no file"),
            ("out/noext", "does not end in .parquet"),
            ("out/x.csv", "models are written as Parquet"),
            ("s3://bucket/x.parquet", "is a URL"),
        ] {
            check(&[&format!("output.path=\"{path}\"")], Err(expected));
        }
        check(&["output.partition_by=[\"k\"]"], Err("`output.partition_by` is for rows"));
    }

    #[test]
    fn errors_name_the_line() {
        let rows = "[input]\npaths = [\"data\"]\n[output]\npath = \"out.csv\"\n";
        assert!(Job::parse(rows, &[]).is_ok());
        for (text, expected) in [
            ("[input\npaths = 1".to_owned(), "j.toml, line 1, column 7: "),
            (rows.replace("paths", "pahts"), "j.toml, line 2, column 1: unknown field `pahts` (did you mean `paths`?)"),
            (rows.replace("[\"data\"]", "[]"), "j.toml, line 2, column 9: `input.paths` is empty"),
            (rows.replace("[\"data\"]", "7"), "j.toml, line 2, column 9: invalid type: integer `7`"),
            (rows.replace("out.csv", "out.exe"), "j.toml, line 4, column 8: the output `out.exe`"),
            (rows.replace("[output]\npath = \"out.csv\"\n", ""), "j.toml: missing field `output`"),
            (
                format!("{rows}partition_by = [\"k\"]\nformat = \"cvs\""),
                "line 6, column 10: unknown variant `cvs` (did you mean `csv`?)",
            ),
            (JOB.replace("[\"x\"]", "[\"y\"]"), "line 5, column 20: `y` is both a feature and the target"),
        ] {
            // Unrelated overrides are not blamed.
            for overrides in [&[][..], &["name=\"other\""], &["limits.time_ms_max=5", "name=\"other\""]] {
                let error = Job::parse(&text, &sets(overrides)).unwrap_err().describe("j.toml");
                assert!(error.contains(expected), "{error}\ninstead of {expected}");
            }
        }
    }

    #[test]
    fn keys_are_named_by_their_flag() {
        let overrides = [
            Override::new("--set", "train.models.1.udf=\"m#forest\""),
            Override::new("--input", "input.paths=[\"a\"]"),
        ];
        let job = Job::parse(JOB, &overrides).unwrap();
        for (key, expected) in [
            ("train.models[0].udf", "`train.models[0].udf`"),
            ("train.models[1].udf", "`--set train.models.1.udf=…`"),
            ("input.paths[0]", "`--input`"),
            ("input.paths_of_others", "`input.paths_of_others`"),
        ] {
            assert_eq!(job.key_label(key), expected);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_a_job_or_an_error(
            text in "[a-z.= \\[\\]{}\"0-9\n]{0,60}",
            key in "(train|input|transform|limits|x)?(\\.(models|params|seed|[0-9]|paths|)){0,4}",
            value in "[-0-9a-z\"\\[\\]{},. =]{0,12}",
            cut in any::<u16>(),
        ) {
            let _ = Job::parse(&text, &[]);
            let _ = Job::parse(&JOB[..usize::from(cut) % JOB.len()], &[]);
            if let Ok(job) = Job::parse(JOB, &sets(&[&format!("{key}={value}")])) {
                prop_assert!(job.check().is_ok());
            }
        }
    }
}
