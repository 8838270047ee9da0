//! Dry runs of programs: the first task and its arguments, before anything runs.

use std::path::Path;

use serde::Serialize;

use crate::arguments::{self, ArgumentPlan};
use crate::error::ProgramError;
use crate::runner::{MAIN, ProgramRunner, ProgramSpec, find_task};

/// The plan of a program: its first task and the task's arguments.
#[derive(Debug, Clone, Serialize)]
pub struct ProgramPlan {
    /// Program as given by the user.
    pub program: String,
    /// Name of the first task.
    pub task: String,
    /// Whether the program's crate must be built first. Until then, its tasks are unknown.
    pub is_to_build: bool,
    /// SHA-256 of the component.
    pub component: Option<String>,
    /// Arguments in the task's order.
    pub arguments: Option<Vec<ArgumentPlan>>,
}

impl ProgramRunner {
    /// Finds the first task of a program, as [`ProgramRunner::run`] does, and checks its arguments. Builds no crate, and runs
    /// no task.
    ///
    /// # Errors
    /// Fails if the program or task does not exist, or an argument is invalid.
    pub async fn plan(&self, spec: &ProgramSpec) -> Result<ProgramPlan, ProgramError> {
        let (path, task) = spec.program.rsplit_once('#').unwrap_or((&spec.program, MAIN));
        let path = Path::new(path);
        let is_to_build = self.functions.stale_crate(&self.functions.find("", path)?)?.is_some();
        let (program, task) = (spec.program.clone(), task.to_owned());
        if is_to_build {
            return Ok(ProgramPlan { program, task, is_to_build, component: None, arguments: None });
        }
        let loaded = self.load(path, spec.limits).await?;
        let component = Some(loaded.compiled.id().to_string());
        let (function, values) = (find_task(&loaded, &task, path)?, spec.arguments.clone());
        // This may look up many files on a slow disk.
        let arguments =
            tokio::task::spawn_blocking(move || arguments::plan_arguments(&loaded.tasks[function], &values));
        Ok(ProgramPlan { program, task, is_to_build, component, arguments: Some(arguments.await??) })
    }
}
