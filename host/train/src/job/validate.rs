//! Validation of jobs.

use arrow_schema::Schema;

use super::{Job, ModelSpec, TrainSpec, ValidationError};
use crate::output;
use crate::results;

impl Job {
    /// Checks that the job can run. The error names the invalid key.
    pub(crate) fn check(&self) -> Result<(), ValidationError> {
        let invalid = |key: &str, message: String| Err(ValidationError::of_key(key, message));
        if self.input.paths.is_empty() {
            return invalid("input.paths", "`input.paths` is empty: name a file, a folder, a glob or a URL".into());
        }
        self.limits.check().map_err(|e| ValidationError::of_key(e.name, e.to_string()))?;
        self.input.text_options().map_err(|e| ValidationError::of_key(e.key, e.message))?;
        match &self.train {
            Some(train) => train.check()?,
            None if self.device.is_some() && self.transform.is_empty() => {
                return invalid("device", "`device` is for functions, and the job has none: leave it out".into());
            }
            None => {}
        }
        output::check(&self.output, self.train.is_some())
    }
}

impl TrainSpec {
    fn check(&self) -> Result<(), ValidationError> {
        let invalid = |key: &str, message: String| Err(ValidationError::of_key(key, message));
        if self.features.is_empty() {
            return invalid("train.features", "`train.features` is empty: name the columns to learn from".into());
        }
        if self.models.is_empty() {
            let message = "`train.models` is empty: name at least one trainer, such as { udf = \"models#linear\" }; a job that \
                 only writes rows has no `[train]`";
            return invalid("train.models", message.into());
        }
        if !(0.0..1.0).contains(&self.test) {
            return invalid(
                "train.test",
                format!("`train.test` is {}, not a share of the rows from 0 to below 1", self.test),
            );
        }
        if self.features.contains(&self.target) {
            return invalid("train.features", format!("`{}` is both a feature and the target", self.target));
        }
        let columns = results::output_schema(&Schema::empty());
        if let Some(key) = self.group_by.iter().find(|key| columns.field_with_name(key).is_ok()) {
            let message =
                format!("a key can't be named `{key}`, like a column of the output; rename it in a transform");
            return invalid("train.group_by", message);
        }
        let names: Vec<&str> = self.models.iter().map(ModelSpec::label).collect();
        if let Some(twice) = names.iter().enumerate().find_map(|(i, n)| names[..i].contains(n).then_some(n)) {
            return invalid("train.models", format!("two models are called `{twice}`: give one of them a `name`"));
        }
        Ok(())
    }
}
