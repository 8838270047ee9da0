//! A job that is measured.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use models::tree::Splitter;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::paths;

/// A job that the host, the native program and the peers run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bench {
    /// Name in the report.
    pub name: String,
    pub input: Vec<PathBuf>,
    pub filter: Option<String>,
    /// Whether the rows go through `udfs/taxi#clean`.
    pub clean: bool,
    pub keys: Vec<String>,
    pub per_file: bool,
    pub features: Vec<String>,
    pub target: String,
    pub models: Vec<Model>,
}

/// A model of a job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Model {
    Linear,
    Tree(Splitter),
    /// A forest with this number of trees.
    Forest(u32),
}

impl Model {
    /// Returns the trainer's name and its parameters in TOML.
    pub fn trainer(self) -> (&'static str, String) {
        match self {
            Model::Linear => ("linear", "{}".to_owned()),
            Model::Tree(Splitter::Best) => ("tree", "{}".to_owned()),
            Model::Tree(Splitter::Random) => ("tree", "{ splitter = \"random\" }".to_owned()),
            Model::Forest(trees) => ("forest", format!("{{ n_estimators = {trees} }}")),
        }
    }

    /// Returns the model's name in the job.
    pub fn label(self) -> String {
        match self {
            Model::Linear => "linear".to_owned(),
            Model::Tree(Splitter::Best) => "tree".to_owned(),
            Model::Tree(Splitter::Random) => "tree-random".to_owned(),
            Model::Forest(trees) => format!("forest-{trees}"),
        }
    }
}

impl Bench {
    /// Returns the job file.
    pub fn toml(&self) -> Result<String, Failure> {
        let root = paths::root();
        let quoted = |text: &str| format!("{text:?}");
        let list = |texts: &[String]| texts.iter().map(|t| quoted(t)).collect::<Vec<_>>().join(", ");
        let paths: Vec<_> = self.input.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        let mut toml = format!("name = \"bench\"\n[input]\npaths = [{}]\n", list(&paths));
        if let Some(filter) = &self.filter {
            writeln!(toml, "filter = {}", quoted(filter))?;
        }
        if self.clean {
            writeln!(toml, "[[transform]]\nudf = {}", quoted(&format!("{}#clean", at(&root, "udfs/taxi"))))?;
        }
        let udf = |model: &Model| {
            let (trainer, params) = model.trainer();
            let udf = quoted(&format!("{}#{trainer}", at(&root, "udfs/models")));
            format!("{{ udf = {udf}, name = {}, params = {params} }}", quoted(&model.label()))
        };
        let models: Vec<String> = self.models.iter().map(udf).collect();
        writeln!(toml, "[train]\ngroup_by = [{}]\nper_file = {}", list(&self.keys), self.per_file)?;
        writeln!(toml, "features = [{}]\ntarget = {}", list(&self.features), quoted(&self.target))?;
        writeln!(toml, "test = 0.25\nseed = 201\nmin_rows = 4\nmetric = \"mae\"\nmodels = [{}]", models.join(", "))?;
        writeln!(toml, "[output]\npath = {}", quoted(&paths::data()?.join("models.parquet").to_string_lossy()))?;
        Ok(toml)
    }
}

fn at(root: &Path, folder: &str) -> String {
    root.join(folder).to_string_lossy().into_owned()
}
